package jwtauth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const goodHeader = `{"alg":"HS256","typ":"JWT"}`

// rawClaims writes claims out, for what no honest encoder writes.
func rawClaims(rest string) string {
	return fmt.Sprintf(`{"sub":"alice","iss":"https://issuer.example.com","aud":"api"%s}`, rest)
}

// Each of these tokens is one that somebody might send; none passes, and each for
// its own reason.
func TestEachHostileTokenIsRefusedForItsReason(t *testing.T) {
	rsaConfig := &Config{PublicKey: rsaKeys().publicPEM()}
	ecdsaConfig := &Config{PublicKey: ecdsaKeys().publicPEM()}
	tomorrow := noon.Add(24 * time.Hour).Unix()
	exp := fmt.Sprintf(`,"exp":%d`, tomorrow)
	deep := strings.Repeat(`{"a":`, 20) + "1" + strings.Repeat("}", 20)
	for _, c := range []struct {
		name   string
		config *Config // nil: a secret, an issuer and an audience
		token  string
		want   error
	}{
		// what is no JWT
		{"nothing", nil, "", errMalformed},
		{"two dots only", nil, "..", errMalformed},
		{"no dots", nil, "tg_1234", errMalformed},
		{"four dots, as encrypted tokens have", nil, "a.b.c.d.e", errMalformed},
		{"huge", nil, signHS(jwt.MapClaims{"pad": strings.Repeat("x", 8<<10)}), errTooLong},
		{"megabytes of dots", nil, strings.Repeat(".", 4<<20), errTooLong},
		{"header is no base64", nil, "!." + encode("{}") + ".", errMalformed},
		{"header is no JSON", nil, signRaw(testSecret, "HS256", rawClaims(exp)), errMalformed},
		{"header is null", nil, signRaw(testSecret, "null", rawClaims(exp)), errAlgorithm},
		{"header is a list", nil, signRaw(testSecret, `["HS256"]`, rawClaims(exp)), errMalformed},
		{"payload is null", nil, signRaw(testSecret, goodHeader, "null"), errNoExpiry},
		{"payload is a list", nil, signRaw(testSecret, goodHeader, "[]"), errMalformed},
		{"payload with more behind it", nil, signRaw(testSecret, goodHeader, rawClaims(exp)+"{}"), errMalformed},
		{"payload nested deep", nil, signRaw(testSecret, goodHeader, rawClaims(exp+`,"deep":`+deep)), errMalformed},
		{"padding in the signature", nil, signHS(nil) + "=", errMalformed},

		// what lies about the algorithm
		{"none", nil, unsigned(`{"alg":"none"}`), errAlgorithm},
		{"None", nil, unsigned(`{"alg":"None"}`), errAlgorithm},
		{"none for a public key", rsaConfig, unsigned(`{"alg":"none"}`), errAlgorithm},
		{"none with a signature", nil, signRaw(testSecret, `{"alg":"none"}`, rawClaims(exp)), errAlgorithm},
		{"no algorithm", nil, unsigned(`{"typ":"JWT"}`), errAlgorithm},
		{"algorithm is a number", nil, unsigned(`{"alg":256}`), errAlgorithm},
		{"algorithm that nobody knows", nil, unsigned(`{"alg":"HS257"}`), errAlgorithm},
		{"longer hash with the right secret", nil, sign(jwt.SigningMethodHS512, []byte(testSecret), claims(nil), nil), errAlgorithm},
		{"HS256 signed with the public key", rsaConfig, sign(jwt.SigningMethodHS256, []byte(rsaKeys().publicPEM()), claims(nil), nil), errAlgorithm},
		{"HS256 signed with the public ECDSA key", ecdsaConfig, sign(jwt.SigningMethodHS256, []byte(ecdsaKeys().publicPEM()), claims(nil), nil), errAlgorithm},
		{"RS256 for a secret", nil, sign(jwt.SigningMethodRS256, rsaKeys().private, claims(nil), nil), errAlgorithm},
		{"RS256 for an ECDSA key", ecdsaConfig, sign(jwt.SigningMethodRS256, rsaKeys().private, claims(nil), nil), errAlgorithm},
		{
			"ECDSA of another curve", ecdsaConfig,
			sign(jwt.SigningMethodES384, must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)), claims(nil), nil), errAlgorithm,
		},

		// what is signed by somebody else
		{"another secret", nil, sign(jwt.SigningMethodHS256, []byte(strings.Repeat("x", 32)), claims(nil), nil), errSignature},
		{"another RSA key", rsaConfig, sign(jwt.SigningMethodRS256, otherRSA().private, claims(nil), nil), errSignature},
		{"signature left out", nil, unsigned(goodHeader), errSignature},
		{"ECDSA signature of zeros", ecdsaConfig, unsigned(`{"alg":"ES256"}`) + strings.Repeat("A", 86), errSignature},
		{
			"claims changed after signing", nil, func() string {
				parts := strings.Split(signHS(nil), ".")
				return parts[0] + "." + encode(rawClaims(exp+`,"tier":"ENTERPRISE"`)) + "." + parts[2]
			}(), errSignature,
		},
		{"key of its own in the header", rsaConfig, sign(jwt.SigningMethodRS256, otherRSA().private, claims(nil), map[string]any{"jwk": map[string]any{"kty": "RSA"}}), errSignature},
		{"key by URL in the header", rsaConfig, sign(jwt.SigningMethodRS256, otherRSA().private, claims(nil), map[string]any{"jku": "https://evil.example.com/keys"}), errSignature},

		// what readers might understand differently
		{"critical extension", nil, signRaw(testSecret, `{"alg":"HS256","crit":["b64"],"b64":false}`, rawClaims(exp)), errCritical},
		{"empty list of critical extensions", nil, signRaw(testSecret, `{"alg":"HS256","crit":[]}`, rawClaims(exp)), errCritical},
		{"algorithm twice", nil, signRaw(testSecret, `{"alg":"none","alg":"HS256"}`, rawClaims(exp)), errMalformed},
		{"claim twice", nil, signRaw(testSecret, goodHeader, rawClaims(exp+`,"tier":"FREE","tier":"PRO"`)), errMalformed},
		{"subject twice, one of them escaped", nil, signRaw(testSecret, goodHeader, rawClaims(exp+`,"\u0073ub":"bob"`)), errMalformed},
		{"claim twice further in", nil, signRaw(testSecret, goodHeader, rawClaims(exp+`,"a":{"b":1,"b":2}`)), errMalformed},
		{"key id is a number", nil, signRaw(testSecret, `{"alg":"HS256","kid":1}`, rawClaims(exp)), errKey},
		{"key id is huge", nil, signRaw(testSecret, `{"alg":"HS256","kid":"`+strings.Repeat("k", 300)+`"}`, rawClaims(exp)), errKey},

		// times
		{"expired", nil, signHS(jwt.MapClaims{"exp": noon.Add(-time.Minute).Unix()}), errExpired},
		{"expired just beyond the leeway", nil, signHS(jwt.MapClaims{"exp": noon.Add(-time.Second).Unix()}), errExpired},
		{"expired at the beginning of time", nil, signHS(jwt.MapClaims{"exp": 0}), errExpired},
		{"no expiry", nil, signHS(jwt.MapClaims{"exp": nil}), errNoExpiry},
		{"expiry is text", nil, signHS(jwt.MapClaims{"exp": fmt.Sprint(tomorrow)}), errMalformed},
		{"expiry is null", nil, signRaw(testSecret, goodHeader, rawClaims(`,"exp":null`)), errMalformed},
		{"expiry is huge", nil, signRaw(testSecret, goodHeader, rawClaims(`,"exp":1e300`)), errMalformed},
		{"expiry is beyond all numbers", nil, signRaw(testSecret, goodHeader, rawClaims(`,"exp":1e999`)), errMalformed},
		{"expiry wraps around 64 bits", nil, signRaw(testSecret, goodHeader, rawClaims(`,"exp":18446744073709551615`)), errMalformed},
		{"expiry is negative", nil, signHS(jwt.MapClaims{"exp": -1}), errMalformed},
		{"expiry is a fraction in the past", nil, signRaw(testSecret, goodHeader, rawClaims(`,"exp":1799999998.5`)), errExpired},
		{"not valid yet", nil, signHS(jwt.MapClaims{"nbf": noon.Add(time.Minute).Unix()}), errNotYet},
		{"not before is text", nil, signHS(jwt.MapClaims{"nbf": "tomorrow"}), errMalformed},

		// for somebody else
		{"another issuer", nil, signHS(jwt.MapClaims{"iss": "https://issuer.example.com.evil.example"}), errIssuer},
		{"no issuer", nil, signHS(jwt.MapClaims{"iss": nil}), errIssuer},
		{"issuer is a list", nil, signHS(jwt.MapClaims{"iss": []string{"https://issuer.example.com"}}), errMalformed},
		{"another audience", nil, signHS(jwt.MapClaims{"aud": "shop"}), errAudience},
		{"no audience", nil, signHS(jwt.MapClaims{"aud": nil}), errAudience},
		{"audience is empty", nil, signHS(jwt.MapClaims{"aud": []string{}}), errAudience},
		{"audience holds numbers", nil, signHS(jwt.MapClaims{"aud": []any{"api", 1}}), errMalformed},

		// about nobody
		{"no account", nil, signHS(jwt.MapClaims{"sub": nil}), errNoAccount},
		{"account is empty", nil, signHS(jwt.MapClaims{"sub": ""}), errNoAccount},
		{"account is no UTF-8", nil, signRaw(testSecret, goodHeader, strings.Replace(rawClaims(exp), `"alice"`, "\"alice\xff\"", 1)), errNoAccount},
		{"account is half a surrogate pair", nil, signRaw(testSecret, goodHeader, strings.Replace(rawClaims(exp), `"alice"`, `"\ud800"`, 1)), errNoAccount},
		{"account is a list", nil, signHS(jwt.MapClaims{"sub": []string{"alice"}}), errNoAccount},
		{"account is a fraction", nil, signHS(jwt.MapClaims{"sub": 1.5}), errNoAccount},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.config == nil {
				c.config = secretConfig()
			}
			v, _ := newTestVerifier(t, c.config)
			for range 2 { // the second is not let in by what is remembered
				got, err := v.Verify(t.Context(), c.token)
				if got != nil || err != c.want || !errors.Is(err, ErrInvalid) { //nolint:errorlint // the very error
					t.Fatalf("got %+v, %v; want %v", got, err, c.want)
				}
			}
			if leaks(c.want, c.token) {
				t.Errorf("the error %q repeats the token", c.want)
			}
		})
	}
}

// FuzzVerify looks for a token that passes without its signature, and for a panic.
func FuzzVerify(f *testing.F) {
	for _, token := range []string{
		"", "..", signHS(nil), unsigned(`{"alg":"none"}`), unsigned(goodHeader),
		signRaw("another secret, as long as the other", goodHeader, rawClaims(`,"exp":1e300`)),
		signRaw("another secret, as long as the other", `{"alg":"HS256","crit":[]}`, rawClaims(`,"exp":"1"`)),
	} {
		f.Add(token)
	}
	verifier, _ := newTestVerifier(f, &Config{Secret: "a secret that no input can know, " + newSecret()})
	f.Fuzz(func(t *testing.T, token string) {
		claims, err := verifier.Verify(t.Context(), token)
		if err == nil || claims != nil || !errors.Is(err, ErrInvalid) {
			t.Errorf("%q passed: %+v, %v", token, claims, err)
		}
	})
}

// FuzzStrictObject compares the strict reader with the standard one: what it
// accepts, the standard library reads alike.
func FuzzStrictObject(f *testing.F) {
	for _, text := range []string{`{}`, `{"a":1,"a":2}`, `{"a":[1,{"b":null}]}`, `null`, `[]`, `{"a":1}{}`, `{"a"`, `{"a":}`, `{"\u0061":1,"a":2}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { compareWithStandard(t, text) })
}
