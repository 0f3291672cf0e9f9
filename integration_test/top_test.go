package integration_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// ranked is a site with a limit by address, then tiers, for API keys and tokens.
const ranked = `
{
	servers {
		trusted_proxies static 127.0.0.1/32 ::1/128
	}
	rate_limit {
		provider embedded
	}
}
:{$PORT} {
	rate_limit /* 1000/1d address
	rate_limit {
		tiers
		identify {
			api_key header X-API-Key
			jwt {
				secret ` + clientSecret + `
			}
		}
		exempt path /healthz
	}
	respond "welcome"
}
:{$PORT2} {
	rate_limit_admin {
		jwt {
			secret ` + adminSecret + `
		}
	}
}`

// topRow is a client in the answer of /top.
type topRow struct {
	APIKeyID string `json:"api_key_id"`
	Client   string
	Account  string
	Address  string
	Tier     string
	AtLeast  int `json:"at_least"`
	AtMost   int `json:"at_most"`
}

// String leaves out what a test cannot foresee.
func (r topRow) String() string {
	who := r.Client + r.Address
	if r.Account != "" {
		who = "account"
	}
	if r.AtLeast != r.AtMost {
		return fmt.Sprintf("%s %s between %d and %d", who, r.Tier, r.AtLeast, r.AtMost)
	}
	return fmt.Sprintf("%s %s %d", who, r.Tier, r.AtLeast)
}

// top asks for a window, and returns the rows of both lists.
func (m *manager) top(query string) (allowed, refused string) {
	m.t.Helper()
	a := m.do(200, "GET", "/top?"+query, "")
	var found struct{ Allowed, Refused []topRow }
	if err := json.Unmarshal([]byte(a.body), &found); err != nil {
		m.t.Fatalf("GET /top: %v: %s", err, a.body)
	}
	return strings.Trim(fmt.Sprint(found.Allowed), "[]"), strings.Trim(fmt.Sprint(found.Refused), "[]")
}

func (m *manager) wantTop(query, wantAllowed, wantRefused string) {
	m.t.Helper()
	allowed, refused := m.top(query)
	if allowed != wantAllowed {
		m.t.Errorf("GET /top?%s: allowed: got %q, want %q", query, allowed, wantAllowed)
	}
	if refused != wantRefused {
		m.t.Errorf("GET /top?%s: refused: got %q, want %q", query, refused, wantRefused)
	}
}

func TestTheAdminAPISaysWhoIsAllowedAndRefusedMost(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, ranked)
	m := manage(c)
	m.create("/tiers", `{"name": "GOLD"}`)
	m.create("/policies", `{"tier": "GOLD", "route": "*", "limit": 6, "window": "1d"}`)
	key := m.create("/api-keys", `{"client": "acme", "tier": "GOLD"}`).Key
	token := with("Authorization", "Bearer "+signed(t, jwt.SigningMethodHS256, []byte(clientSecret), claimsOf(nil), nil))

	c.sequence(9, "/", apiKey(key)).want(t, tally{200: 6, 429: 3})
	c.sequence(5, "/", token).want(t, tally{200: 5})
	c.sequence(32, "/", from("203.0.113.7")).want(t, tally{200: 30, 429: 2})
	c.sequence(4, "/", from("2001:db8::1"))
	c.sequence(3, "/", from("2001:db8::2")) // the same network
	c.sequence(2, "/healthz", from("203.0.113.8"))
	c.sequence(1, "/", with("Authorization", "Bearer a.b.c"), from("203.0.113.9")).want(t, tally{401: 1})

	allowed := "203.0.113.7 anonymous 30 2001:db8::/64 anonymous 7 acme GOLD 6 account PRO 5 203.0.113.8 anonymous 2"
	refused := "acme GOLD 3 203.0.113.7 anonymous 2 203.0.113.9 anonymous 1"
	for _, window := range []string{"1m", "5m", "1h"} {
		m.wantTop("window="+window, allowed, refused)
	}
	m.wantTop("limit=1", "203.0.113.7 anonymous 30", "acme GOLD 3")
	m.do(422, "GET", "/top?window=2h", "")

	c.reload(ranked + "\n# changed\n")
	if problem := c.load(strings.Replace(ranked, "1000/1d", "1000/1y", 1)); problem == "" {
		t.Fatal("a wrong configuration was loaded")
	}
	m.wantTop("window=1h", allowed, refused)
	if body := m.do(200, "GET", "/top", "").body; strings.Contains(body, key) {
		t.Error("the answer holds an API key")
	}
}

// More addresses than are kept: the one that calls most is found all the same.
func TestWhoCallsMostIsFoundAmongManyAddresses(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, ranked)
	m := manage(c)
	for i := range 2000 {
		c.get("/", from(fmt.Sprintf("10.0.%d.%d", i/250, i%250)))
		if i%50 == 0 {
			c.get("/", from("203.0.113.7"))
		}
	}
	allowed, _ := m.top("window=5m&limit=1")
	if !strings.HasPrefix(allowed, "203.0.113.7 anonymous ") {
		t.Errorf("got %q, want the address that called most", allowed)
	}
}

// What an admin wants to know during an outage does not end with the database.
func TestWhoCallsMostKeepsItsNamesWhilePostgresIsDown(t *testing.T) {
	t.Parallel()
	database := testserver.NewPostgres(t)
	c := startCaddy(t, managed, postgresProvider(database.NewDatabase(t), "cache_ttl 1s"))
	m := manage(c)
	seen, unseen := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`), m.create("/api-keys", `{"client": "late", "tier": "PRO"}`)
	for _, k := range []string{seen.Key, seen.Key, unseen.Key} {
		eventually(t, "the key is known", func() bool { return tierOf(t, c.get("/", apiKey(k))) == "PRO" })
	}
	if allowed, _ := m.top("limit=1"); !strings.HasPrefix(allowed, "acme PRO ") {
		t.Errorf("before the outage: got %q", allowed)
	}
	database.Kill()
	got := m.do(200, "GET", "/top", "").body
	for _, want := range []string{
		`"client":"acme","prefix":"` + seen.Key[:6], `"api_key_id":"` + seen.id() + `"`, `"api_key_id":"` + unseen.id() + `"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("during the outage: %s is not in %s", want, got)
		}
	}
}
