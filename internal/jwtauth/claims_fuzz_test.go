package jwtauth

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

// FuzzClaims looks for a header or claims that whoever has the secret can sign and
// that make the verifier panic, or let somebody in who is nobody.
func FuzzClaims(f *testing.F) {
	for _, payload := range []string{
		`{}`, `null`, `[]`, `{"sub":"a","exp":1e300}`, `{"sub":"a","exp":4000000000}`, `{"sub":1,"exp":4000000000}`, `{"sub":"","exp":4000000000}`,
		`{"sub":"a","exp":4000000000,"iss":"https://issuer.example.com","aud":["api",1,null]}`, `{"sub":"a","sub":"b","exp":4000000000}`,
		`{"sub":"\u0000","exp":4000000000,"iss":"https://issuer.example.com","aud":"api"}`, `{"sub":"a","exp":"x","nbf":-1e999}`, strings.Repeat("[", 1000),
	} {
		f.Add(goodHeader, payload)
	}
	f.Add(`{"alg":"HS256","crit":["exp"]}`, `{"sub":"a"}`)
	f.Add(`{"alg":["HS256"]}`, `{"sub":"a"}`)
	verifier, _ := newTestVerifier(f, secretConfig())
	f.Fuzz(func(t *testing.T, header, payload string) {
		claims, err := verifier.Verify(t.Context(), signRaw(testSecret, header, payload))
		switch {
		case err != nil && (claims != nil || !errors.Is(err, ErrInvalid)):
			t.Errorf("%q, %q: got %+v and %v", header, payload, claims, err)
		case err == nil && (claims == nil || claims.Account == ""):
			t.Errorf("%q, %q: nobody got in: %+v", header, payload, claims)
		}
	})
}

// FuzzBearer looks for a header Authorization that is read as something that it
// does not say.
func FuzzBearer(f *testing.F) {
	for _, value := range []string{"", "Bearer", "Bearer ", "Bearer a", "bearer  a ", "Bearer\ta", "BearerX a", "Bearer a b", "Basic a", " Bearer a", "Bearer \x00"} {
		f.Add(value, value)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		tokens := Bearer(&http.Request{Header: http.Header{"Authorization": {first, second}}})
		if len(tokens) > 2 {
			t.Fatalf("%q and %q are read as %q", first, second, tokens)
		}
		for _, token := range tokens {
			said := strings.Contains(first, token) && strings.EqualFold(first[:min(7, len(first))], "Bearer ") ||
				strings.Contains(second, token) && strings.EqualFold(second[:min(7, len(second))], "Bearer ")
			if !said || token != strings.TrimSpace(token) {
				t.Errorf("%q and %q are read as %q", first, second, tokens)
			}
		}
	})
}
