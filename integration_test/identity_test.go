package integration_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"testing"
	"time"
)

// tiered is the head of a Caddyfile with three tiers and two API keys, whose
// texts are acmeKey and globexKey.
var tiered = fmt.Sprintf(`
{
	servers {
		trusted_proxies static 127.0.0.1/32 ::1/128
		max_header_size 1MB
	}
	rate_limit {
		backend {$BACKEND:memory}
		provider static {
			tier anonymous {
				policy * 3/1d
			}
			tier FREE {
				policy * 10/1d
				policy /login POST 2/1d
				policy /reports/* 4/1d
			}
			tier PRO {
				policy * 20/1d
			}
			api_key acme   %x FREE
			api_key globex %x PRO
		}
	}
}
`, sha256.Sum256([]byte(acmeKey)), sha256.Sum256([]byte(globexKey)))

const (
	acmeKey   = "tg_acme-9mVn3fQ2sXw7"
	globexKey = "tg_globex-4kLp8dRz1YcB"
)

const tieredSite = `
:{$PORT} {
	rate_limit {
		tiers
	}
	respond "{http.rate_limit.tier} {http.rate_limit.identity}"
}`

func TestTiersGiveEachClientItsOwnLimit(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+tieredSite, backend)
		acme, globex := with("X-API-Key", acmeKey), with("X-API-Key", globexKey)
		if a := c.get("/", acme); a.body != "FREE k_acme" {
			t.Errorf("known key: got %q", a.body)
		}
		if a := c.get("/", from("203.0.113.7")); a.body != "anonymous 203.0.113.7" {
			t.Errorf("no key: got %q", a.body)
		}
		burst(t, 40, "/", []option{acme}, c).want(t, tally{200: 9, 429: 31})
		burst(t, 40, "/", []option{globex}, c).want(t, tally{200: 20, 429: 20})
		burst(t, 10, "/", []option{from("203.0.113.7")}, c).want(t, tally{200: 2, 429: 8})
	})
}

// A known client is counted by its key, wherever it calls from; and an
// address that is over its limit does not take a known key with it.
func TestAKnownKeyIsNotLimitedByAddress(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+tieredSite, backend)
		c.sequence(5, "/", from("203.0.113.7")).want(t, tally{200: 3, 429: 2})
		for i := range 10 {
			c.get("/", from(fmt.Sprintf("203.0.113.%d", i)), with("X-API-Key", acmeKey)).wantStatus(t, 200)
		}
		c.get("/", from("203.0.113.200"), with("X-API-Key", acmeKey)).wantStatus(t, 429)
		c.get("/", from("203.0.113.0")).wantStatus(t, 200)
	})
}

func TestAPolicyOfARouteAndTheCeilingBothApply(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+tieredSite, backend)
		acme := with("X-API-Key", acmeKey)
		a := c.get("/login", method("POST"), acme).wantStatus(t, 200)
		if route, all := a.remaining(t, "FREE /login POST"), a.remaining(t, "FREE *"); route != 1 || all != 9 {
			t.Errorf("left: route %d, ceiling %d; want 1 and 9", route, all)
		}
		c.get("/login", method("POST"), acme).wantStatus(t, 200)
		c.get("/login", method("POST"), acme).wantProblem(t, 429, "rate_limited", "FREE /login POST")
		// neither another method nor a refusal touched the route's bucket or the ceiling
		c.get("/login", acme).wantStatus(t, 200).wantNumber(t, "X-RateLimit-Remaining", 7)
		c.sequence(6, "/reports/q3", acme).want(t, tally{200: 4, 429: 2})
		c.sequence(5, "/", acme).want(t, tally{200: 3, 429: 2})
		c.get("/", acme).wantProblem(t, 429, "rate_limited", "FREE *")
	})
}

// Other spellings of a path reach the same handler, so they meet the same
// limit.
func TestOtherSpellingsOfAPathDoNotEscapeItsPolicy(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, tiered+tieredSite)
	acme := with("X-API-Key", acmeKey)
	for _, path := range []string{"/login", "/LOGIN"} {
		c.get(path, method("POST"), acme).wantStatus(t, 200)
	}
	for _, path := range []string{"/Login", "//login", "/./login", "/x/../login", "/%6Cogin", "/login?x=1"} {
		c.get(path, method("POST"), acme).wantProblem(t, 429, "rate_limited", "FREE /login POST")
	}
}

func TestAnAPIKeyIsFoundWhereTheSiteLooksForIt(t *testing.T) {
	t.Parallel()
	cases := []struct {
		source  string
		path    string
		options []option
	}{
		{"header X-API-Key", "/", []option{with("X-API-Key", acmeKey)}},
		{"header x-api-key", "/", []option{with("X-Api-Key", acmeKey)}},
		{"header Authorization", "/", []option{with("Authorization", "Bearer "+acmeKey)}},
		{"header Authorization", "/", []option{with("Authorization", "bearer "+acmeKey)}},
		{"query api_key", "/?x=1&api_key=" + acmeKey, nil},
		{"cookie session", "/", []option{with("Cookie", "a=b; session="+acmeKey)}},
	}
	for _, tc := range cases {
		t.Run(tc.source, func(t *testing.T) {
			t.Parallel()
			c := startCaddy(t, tiered+`
:{$PORT} {
	rate_limit {
		identify {
			api_key `+tc.source+`
		}
		tiers
	}
	respond "{http.rate_limit.tier} {http.rate_limit.identity}"
}`)
			if a := c.get(tc.path, tc.options...); a.body != "FREE k_acme" {
				t.Errorf("got %q, want the client acme", a.body)
			}
			if a := c.get("/", from("203.0.113.7")); a.body != "anonymous 203.0.113.7" {
				t.Errorf("without the key: got %q", a.body)
			}
		})
	}
}

func TestTheFirstSourceThatIsPresentWins(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, tiered+`
:{$PORT} {
	rate_limit {
		identify {
			api_key header X-API-Key
			api_key query key
			placeholder {http.request.header.X-User}
		}
		tiers
	}
	respond "{http.rate_limit.tier} {http.rate_limit.identity}"
}`)
	acme, globex := with("X-API-Key", acmeKey), "/?key="+globexKey
	for want, a := range map[string]answer{
		"FREE k_acme":            c.get(globex, acme, with("X-User", "bob")),
		"PRO k_globex":           c.get(globex, with("X-User", "bob")),
		"anonymous 203.0.113.71": c.get(globex, with("X-API-Key", "made up"), from("203.0.113.71")),
		"anonymous 203.0.113.72": c.get("/?key=made+up", with("X-User", "bob"), from("203.0.113.72")),
		"anonymous 203.0.113.73": c.get("/", from("203.0.113.73")),
	} {
		if a.body != want {
			t.Errorf("got %q, want %q", a.body, want)
		}
	}
	bob, eve := c.get("/", with("X-User", "bob")), c.get("/", with("X-User", "eve"))
	if bob.body == eve.body || bob.status != 200 || eve.status != 200 {
		t.Errorf("two users: %q and %q, want two clients", bob.body, eve.body)
	}
}

// Whoever a trusted placeholder names is counted by that name, from any
// address, and never by a name that stands in the open.
func TestAPlaceholderNamesAClient(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		// The hash is of the word "hiccup", by bcrypt at its cheapest.
		c := startCaddy(t, tiered+`
:{$PORT} {
	route {
		basic_auth {
			bob $2a$04$sGh9vbA.TA2kyoEwXezvLOmNX4PLs1uaNy9iqSSzFBJrfksgwJjTy
		}
		rate_limit {
			identify {
				placeholder {http.auth.user.id}
			}
			zone users {
				key {http.rate_limit.identity}
				limit 2/1d
			}
		}
		respond "{http.rate_limit.identity}"
	}
}`, backend)
		bob := with("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("bob:hiccup")))
		first := c.get("/", bob, from("203.0.113.7")).wantStatus(t, 200)
		second := c.get("/", bob, from("203.0.113.8")).wantStatus(t, 200)
		c.get("/", bob, from("203.0.113.9")).wantStatus(t, 429)
		if first.body != second.body || first.body == "bob" || first.body == "" {
			t.Errorf("identities: %q and %q", first.body, second.body)
		}
	})
}

// What a client makes up never names a bucket: all its keys share the bucket
// of its address.
func TestMadeUpKeysAreCountedByAddress(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+tieredSite, backend)
		count := make(tally)
		for i := range 20 {
			count[c.get("/", from("203.0.113.7"), with("X-API-Key", fmt.Sprintf("tg_made-up-%d", i))).status]++
		}
		count.want(t, tally{200: 3, 429: 17})
		c.get("/", from("203.0.113.7")).wantStatus(t, 429)
		c.get("/", from("203.0.113.8"), with("X-API-Key", "tg_made-up-0")).wantStatus(t, 200)
	})
}

func TestARejectedClientIsStillCountedByAddress(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+`
:{$PORT} {
	rate_limit {
		identify {
			api_key header X-API-Key
			unknown reject
		}
		tiers
	}
	respond "welcome"
}`, backend)
		guess := func(i int) answer {
			return c.get("/", from("203.0.113.7"), with("X-API-Key", fmt.Sprintf("guess %d", i)))
		}
		for i := range 3 {
			a := guess(i).wantStatus(t, 401)
			if p := a.problem(t); p.Error != "invalid_token" {
				t.Errorf("error: got %q", p.Error)
			}
		}
		guess(4).wantProblem(t, 429, "rate_limited", "anonymous *")
		c.get("/", from("203.0.113.7")).wantStatus(t, 429)
		c.get("/", from("203.0.113.8")).wantStatus(t, 401)
		c.get("/", from("203.0.113.7"), with("X-API-Key", acmeKey)).wantStatus(t, 200)
	})
}

// A provider without a tier for strangers does not leave them unlimited.
func TestWithoutAnAnonymousTierStrangersGetTheStrictestLimit(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, fmt.Sprintf(`
{
	rate_limit {
		provider static {
			tier FREE {
				policy * 100/1d
			}
			api_key acme %x FREE
		}
	}
}
`, sha256.Sum256([]byte(acmeKey)))+tieredSite)
	start := time.Now()
	count := c.sequence(60, "/")
	most := 30 + int(time.Since(start)/(2*time.Second))
	if count[200] < 30 || count[200] > most || count[200]+count[429] != 60 {
		t.Errorf("answers by status: %v, want 30 a minute", count)
	}
}

func TestTiersAndZonesOfOneHandlerAreAllOrNothing(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+`
:{$PORT} {
	rate_limit {
		zone address {
			limit 2/1d
		}
		tiers
	}
	respond "welcome"
}`, backend)
		acme := with("X-API-Key", acmeKey)
		burst(t, 30, "/", []option{acme, from("203.0.113.7")}, c).want(t, tally{200: 2, 429: 28})
		a := c.get("/", acme, from("203.0.113.8")).wantStatus(t, 200)
		if left := a.remaining(t, "FREE *"); left != 7 {
			t.Errorf("left of the tier's limit: %d, want 7", left)
		}
	})
}

func TestAZoneMayBeKeyedByTheTier(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, tiered+`
:{$PORT} {
	rate_limit {
		identify {
			api_key header X-API-Key
		}
		zone tiers {
			key {http.rate_limit.tier}
			limit 2/1d
		}
	}
	respond "welcome"
}`)
	c.sequence(3, "/", with("X-API-Key", acmeKey)).want(t, tally{200: 2, 429: 1})
	c.sequence(3, "/", with("X-API-Key", globexKey)).want(t, tally{200: 2, 429: 1})
	c.get("/", from("203.0.113.7")).wantStatus(t, 200)
	c.get("/", from("203.0.113.8")).wantStatus(t, 200)
	c.get("/", from("203.0.113.9")).wantStatus(t, 429)
}

// Without any provider named, the tiers of a new store apply.
func TestTiersWorkWithoutNamingAProvider(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, ":{$PORT} {\n rate_limit {\n tiers\n }\n respond {http.rate_limit.tier}\n }\n")
	a := c.get("/").wantStatus(t, 200)
	a.wantNumber(t, "X-RateLimit-Limit", 30)
	if a.body != "anonymous" {
		t.Errorf("tier: got %q", a.body)
	}
}
