package ratelimit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/internal/jwtauth"
)

const jwtSecret = "0123456789abcdef0123456789abcdef"

// token mints a token; its own issuer may differ from the verifier's.
func token(t testing.TB, account, tier, issuer string, ttl time.Duration) string {
	t.Helper()
	config := &jwtauth.Config{Secret: jwtSecret, Issuer: issuer}
	minted, err := jwtauth.Mint(config, jwtauth.Grant{Subject: account, Tier: tier, TTL: ttl}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return minted
}

// jwtSite is a site with tiers, one API key and the given words in identify.
func jwtSite(t testing.TB, identify string) *site {
	return newSite(t, `{
	rate_limit {
		provider static {
			tier anonymous {
				policy * 3/1d
			}
			tier PRO {
				policy * 100/1d
			}
			api_key acme c0629be90c7891ee213abc3bf4641d2fd9d15cc12e4595bc05bde060257e257b PRO
		}
	}
}
:80 {
	rate_limit {
		identify {
			`+identify+`
		}
		tiers
		zone address {
			limit 5/1d
		}
	}
}`)
}

const jwtWords = "jwt {\n secret " + jwtSecret + "\n}\n"

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

func TestATokenNamesTheClientAndItsTier(t *testing.T) {
	s := jwtSite(t, jwtWords)
	first := s.request("203.0.113.1", bearer(token(t, "alice", "PRO", "a", time.Hour))...)
	again := s.request("203.0.113.2", bearer(token(t, "alice", "PRO", "a", 2*time.Hour))...)
	for name, w := range map[string]*httptest.ResponseRecorder{"bob": s.request("203.0.113.3", bearer(token(t, "bob", "PRO", "a", time.Hour))...), "alice of another issuer": s.request("203.0.113.3", bearer(token(t, "alice", "PRO", "b", time.Hour))...)} {
		if w.Header().Get("Seen-Identity") == first.Header().Get("Seen-Identity") {
			t.Errorf("%s is the same client as alice", name)
		}
	}
	if id := first.Header().Get("Seen-Identity"); id != again.Header().Get("Seen-Identity") || !strings.HasPrefix(id, "h_") || strings.Contains(id, "alice") {
		t.Errorf("two tokens of one account are %q and %q", id, again.Header().Get("Seen-Identity"))
	}
	if tier := first.Header().Get("Seen-Tier"); tier != "PRO" {
		t.Errorf("the tier is %q", tier)
	}
	if got := again.Header().Get("RateLimit"); !strings.Contains(got, `"PRO *";r=98`) {
		t.Errorf("two requests of one account from two addresses leave %s", got)
	}
	for _, tier := range []string{"", "ULTRA"} {
		w := s.request("203.0.113.4", bearer(token(t, "carol", tier, "a", time.Hour))...)
		if w.Code != 200 || w.Header().Get("Seen-Tier") != "anonymous" || w.Header().Get("Seen-Identity") == "203.0.113.4" {
			t.Errorf("tier %q: %d, %s, %s; want anonymous, by account", tier, w.Code, w.Header().Get("Seen-Tier"), w.Header().Get("Seen-Identity"))
		}
	}
}

func TestWhatAClientPresentsDecidesItsAnswer(t *testing.T) {
	good := token(t, "alice", "PRO", "", time.Hour)
	const key = "tollgate-test-key"
	for _, c := range []struct {
		name     string
		identify string
		headers  []string
		status   int
		tier     string // if it passes
		detail   string // of a refusal
	}{
		{"good token", jwtWords, bearer(good), 200, "PRO", ""},
		{"no token", jwtWords, nil, 200, "anonymous", ""},
		{"no token, unknown reject", jwtWords + "unknown reject", nil, 401, "", "An API key or token that is known here is required."},
		{"another scheme", jwtWords, []string{"Authorization", "Basic YTpi"}, 200, "anonymous", ""},
		{"not valid, unknown anonymous", jwtWords + "unknown anonymous", bearer("a.b.c"), 401, "", "The token is not valid: it is not a well-formed JWT."},
		{"two dots only", jwtWords, bearer(".."), 401, "", "The token is not valid: it is not a well-formed JWT."},
		{"no dots at all", jwtWords, bearer("opaque"), 401, "", "The token is not valid: it is not a well-formed JWT."},
		{"expired", jwtWords, bearer(token(t, "alice", "PRO", "", -time.Minute)), 401, "", "The token is not valid: it has expired."},
		{"signature changed", jwtWords, bearer(good[:len(good)-4] + "AAAA"), 401, "", "The token is not valid: its signature is wrong."},
		{"two tokens", jwtWords, append(bearer(good), bearer(good)...), 401, "", "The token is not valid: there are several."},
		{"another issuer", "jwt {\n secret " + jwtSecret + "\n issuer me\n}", bearer(good), 401, "", "The token is not valid: its issuer is another one."},
		{"keys that are not available", "jwt {\n jwks http://127.0.0.1:1/keys\n}", bearer("eyJhbGciOiJSUzI1NiJ9.e30.AAAA"), 503, "", "The keys to verify tokens by are not available."},

		{"key in its own header before the token", "api_key header X-API-Key\n" + jwtWords, append(bearer("a.b.c"), "X-API-Key", key), 200, "PRO", ""},
		{"token before the key", jwtWords + "api_key header X-API-Key", append(bearer("a.b.c"), "X-API-Key", key), 401, "", "The token is not valid: it is not a well-formed JWT."},
		{"token in the header of keys", "api_key header Authorization\n" + jwtWords, bearer(good), 200, "PRO", ""},
		{"bad token in the header of keys", "api_key header Authorization\n" + jwtWords, bearer(".."), 401, "", "The token is not valid: it is not a well-formed JWT."},
		{"key in the header of tokens", jwtWords + "api_key header Authorization", bearer(key), 200, "PRO", ""},
		{"unknown key in the header of tokens", jwtWords + "api_key header Authorization", bearer("tg_unknown"), 200, "anonymous", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := jwtSite(t, c.identify).request("203.0.113.1", c.headers...)
			if w.Code != c.status || w.Header().Get("Seen-Tier") != c.tier || !strings.Contains(w.Body.String(), c.detail) {
				t.Errorf("got %d, %q, %s; want %d, %q, %s", w.Code, w.Header().Get("Seen-Tier"), w.Body, c.status, c.tier, c.detail)
			}
			if c.status == 401 && (w.Header().Get("WWW-Authenticate") != `Bearer error="invalid_token"` || !strings.Contains(w.Body.String(), `"error":"invalid_token"`)) {
				t.Errorf("WWW-Authenticate is %q, the body %s", w.Header().Get("WWW-Authenticate"), w.Body)
			}
		})
	}
}

// The zone address has 5/1d, the tier anonymous 3/1d: both count bad tokens.
func TestAnInvalidTokenCountsAgainstItsAddress(t *testing.T) {
	s := jwtSite(t, jwtWords)
	for i, want := range []int{401, 401, 401, 429, 429} {
		if got := s.request("203.0.113.1", bearer("a.b.c")...).Code; got != want {
			t.Errorf("request %d with a bad token: %d, want %d", i+1, got, want)
		}
	}
	if got := s.request("203.0.113.1", bearer(token(t, "alice", "PRO", "", time.Hour))...); got.Code != 200 || !strings.Contains(got.Header().Get("RateLimit"), `"address";r=1`) {
		t.Errorf("a good token from there: %d, %s; want 200, and 1 left of 5 after 3 bad ones and itself", got.Code, got.Header().Get("RateLimit"))
	}
	if got := s.request("203.0.113.2", bearer("a.b.c")...).Code; got != 401 {
		t.Errorf("another address: %d, want 401", got)
	}
}

// counted counts how often a site looks at what its clients present.
func (s *site) counted() *atomic.Int32 {
	looks := new(atomic.Int32)
	for i, source := range s.h.identifier.sources {
		s.h.identifier.sources[i] = func(ctx context.Context, r *http.Request, repl *caddy.Replacer) (finding, bool) {
			looks.Add(1)
			return source(ctx, r, repl)
		}
	}
	return looks
}

func TestAnExhaustedAddressIsRefusedBeforeItsTokenIsLookedAt(t *testing.T) {
	s := newSite(t, `
:80 {
	rate_limit {
		identify {
			`+jwtWords+`
		}
		zone account {
			key {http.rate_limit.identity}
			limit 100/1d
		}
		zone address {
			limit 2/1d
		}
	}
}`)
	looks := s.counted()
	good, bad := bearer(token(t, "alice", "", "", time.Hour)), bearer("a.b.c")
	for i, c := range []struct {
		address     string
		token       []string
		status      int
		looks, call int32 // so far
	}{
		{"203.0.113.1", bad, 401, 1, 1},
		{"203.0.113.1", good, 200, 2, 2},
		{"203.0.113.1", bad, 429, 3, 3}, // nobody knew
		{"203.0.113.1", bad, 429, 3, 3},
		{"203.0.113.1", good, 429, 3, 3},
		{"203.0.113.2", good, 200, 4, 4},
	} {
		w := s.request(c.address, c.token...)
		if w.Code != c.status || looks.Load() != c.looks || s.calls() != c.call {
			t.Errorf("row %d: %d after %d looks and %d calls; want %d after %d and %d", i+1, w.Code, looks.Load(), s.calls(), c.status, c.looks, c.call)
		}
	}
}

// A zone that depends on who the client is must not refuse before that is known.
func TestAZoneOfTheClientIsNotJudgedBeforeTheClientIsKnown(t *testing.T) {
	for _, zone := range []string{
		"key {http.rate_limit.identity}\n limit 1/1d",
		"key {http.rate_limit.tier}-{client_ip}\n limit 1/1d",
		"match {\n expression {http.rate_limit.identity}.startsWith(\"h_\")\n }\n limit 1/1d",
		"cost {http.rate_limit.tier}\n limit 1/1d",
	} {
		s := newSite(t, ":80 {\n rate_limit {\n identify {\n "+jwtWords+"\n }\n zone z {\n "+zone+"\n }\n }\n}")
		if !s.h.Zones[0].ofClient {
			t.Errorf("a zone with %s does not depend on its client", zone)
		}
	}
	s := newSite(t, ":80 {\n rate_limit {\n identify {\n "+jwtWords+"\n }\n zone z {\n key {http.rate_limit.identity}\n limit 1/1d\n }\n }\n}")
	for i, want := range []int{200, 429, 429} {
		if got := s.request("203.0.113.1").Code; got != want {
			t.Errorf("request %d without a token: %d, want %d", i+1, got, want)
		}
	}
	if got := s.request("203.0.113.1", bearer(token(t, "alice", "", "", time.Hour))...).Code; got != 200 {
		t.Errorf("alice, from an address whose anonymous client is known to be over its limit: %d, want 200", got)
	}
	s = newSite(t, ":80 {\n rate_limit 1/1d\n}")
	if s.h.Zones[0].ofClient {
		t.Error("a zone by address depends on its client")
	}
}

func TestTwoTokenSourcesAreRefused(t *testing.T) {
	i := &Identify{Sources: []*Source{{JWT: &jwtauth.Config{Secret: jwtSecret}}, {JWT: &jwtauth.Config{Secret: jwtSecret}}}}
	if err := i.Validate(); err == nil || !strings.Contains(err.Error(), "jwt twice") {
		t.Errorf("got %v", err)
	}
}
