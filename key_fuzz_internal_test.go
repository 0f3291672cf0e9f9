package ratelimit

import (
	"bufio"
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// FuzzZoneKeysNeverMeet looks for two clients whose values make one key, for a
// value that breaks out of its key, and for one that becomes an address.
func FuzzZoneKeysNeverMeet(f *testing.F) {
	f.Add("a", "bc", "ab", "c")
	f.Add("", "192.0.2.7", "192.0.2.7", "")
	f.Add("{http.request.method}", "GET", "GET", "{http.request.method}")
	f.Add("*", "", "", "*")
	f.Add("}:{", "\x00", "\xff", "\r\n")
	f.Add(`\{`, `\`, `\`, `\}`)
	f.Fuzz(func(t *testing.T, a1, b1, a2, b2 string) {
		const key = "{http.request.header.X-A}:{http.request.header.X-B}"
		first := valuesIdentity(t, key, a1, b1)
		second := valuesIdentity(t, key, a2, b2)
		if same := a1 == a2 && b1 == b2; (first == second) != same {
			t.Errorf("%q and %q, %q and %q: keys %q and %q", a1, b1, a2, b2, first, second)
		}
		if blank := a1 == "" && b1 == ""; (first == "192.0.2.7") != blank {
			t.Errorf("%q and %q: key %q", a1, b1, first)
		}
		if strings.ContainsFunc(first, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '{' || r == '}' }) {
			t.Errorf("%q and %q: the key %q is not plain", a1, b1, first)
		}
	})
}

func valuesIdentity(t *testing.T, key, a, b string) string {
	t.Helper()
	header := make(http.Header)
	for name, value := range map[string]string{"X-A": a, "X-B": b} {
		header[name] = []string{value}
	}
	e := request(t, "192.0.2.7", nil)
	e.r.Header = header
	identity, _ := identityOf(t, key, "", e)
	return identity
}

// FuzzRequest sends whatever net/http reads as a request through every source of
// identity: it is decided, and nobody becomes the client whose key it does not have.
func FuzzRequest(f *testing.F) {
	const head = "GET /?key=a HTTP/1.1\r\nHost: a\r\n"
	for _, text := range []string{
		head + "\r\n", head + "Authorization: Bearer a.b.c\r\n\r\n", head + "X-API-Key: a\r\nX-API-Key: b\r\n\r\n", head + "Cookie: key=\"a\"; key=b\r\n\r\n",
		"GET /?key=%zz&key HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
		head + "X-User: \xff\r\nX-Cost: -1\r\n\r\n", head + "X-Cost: 99999999999999999999\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	s := newSite(f, `
{
	rate_limit {
		provider static {
			tier anonymous {
				policy * 1000000/1s
			}
			tier PRO {
				policy * 1000000/1s
			}
			api_key acme 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b PRO
		}
	}
}
:80 {
	rate_limit {
		identify {
			jwt {
				secret "a secret that no input of the fuzzer knows"
			}
			api_key header Authorization
			api_key header X-API-Key
			api_key query key
			api_key cookie key
			placeholder {http.request.header.X-User}
		}
		tiers
		zone odd {
			key {http.request.header.X-Client}{http.request.uri.query.client}{http.request.cookie.client}
			limit 1000000/1s
			cost {http.request.header.X-Cost}
		}
	}
}`)
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(text)))
		if err != nil || bytes.Contains(text, []byte("secret")) { // the key of acme
			return
		}
		status, identity := s.decide(t, r)
		if status != 200 && status != 400 && status != 401 && status != 429 {
			t.Errorf("%q: got %d", text, status)
		}
		if identity == "k_acme" || strings.ContainsFunc(identity, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '{' || r == '}' }) {
			t.Errorf("%q is taken for %q", text, identity)
		}
	})
}

// decide sends a request through the handler alone.
func (s *site) decide(t *testing.T, r *http.Request) (status int, identity string) {
	t.Helper()
	r.RemoteAddr = "192.0.2.7:1234"
	w := httptest.NewRecorder()
	repl := caddy.NewReplacer()
	r = caddyhttp.PrepareRequest(r, repl, w, nil)
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "192.0.2.7")
	err := s.h.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil }))
	if err != nil {
		t.Fatal(err)
	}
	identity, _ = repl.GetString("http.rate_limit.identity")
	return w.Code, identity
}
