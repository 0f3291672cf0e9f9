package integration_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// used is what the admin API shows that a key has used of the limit that it has,
// and what is left.
func (m *manager) used(keyID string) (used, left int64) {
	m.t.Helper()
	var u struct {
		Items []struct {
			Used      int64 `json:"used"`
			Remaining int64 `json:"remaining"`
		} `json:"items"`
	}
	a := m.do(200, "GET", "/api-keys/"+keyID+"/usage", "")
	if err := json.Unmarshal([]byte(a.body), &u); err != nil || len(u.Items) != 1 {
		m.t.Fatalf("%v: %s", err, a.body)
	}
	return u.Items[0].Used, u.Items[0].Remaining
}

// An admin sees what a key has used, live, and gives it back; the audit knows.
// That the key was used is kept with it, some seconds late.
func TestTheUsageOfAKeyIsSeenGivenBackAndKept(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, instances ...*caddy) {
		m, there := manage(instances[0]), instances[len(instances)-1]
		k := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`)
		m.patch("/policies/default-pro", `{"limit": 5, "window": "1d"}`)
		manage(there).awaitLimit(k.id(), "5/1d")
		if record := m.do(200, "GET", "/api-keys/"+k.id(), "").read(t); record.LastUsed != nil {
			t.Errorf("a key that was never used was used last at %s", record.LastUsed)
		}
		before := time.Now()
		there.sequence(7, "/", apiKey(k.Key)).want(t, tally{200: 5, 429: 2})
		for range 2 { // looking takes nothing
			if used, left := m.used(k.id()); used != 5 || left != 0 {
				t.Errorf("%d used and %d left, want 5 and 0", used, left)
			}
		}
		m.do(204, "DELETE", "/api-keys/"+k.id()+"/usage", "")
		if used, left := m.used(k.id()); used != 0 || left != 5 {
			t.Errorf("after a reset, %d used and %d left, want 0 and 5", used, left)
		}
		eventually(t, "requests pass again", func() bool { return there.get("/", apiKey(k.Key)).status == 200 })
		if e := m.list("/audit")[0]; e.Action != "reset_usage" || e.Actor != "alice" || e.Key != k.id() {
			t.Errorf("the newest entry of the audit is %s of %s by %s", e.Action, e.Key, e.Actor)
		}
		eventually(t, "the last use is kept", func() bool {
			record := m.do(200, "GET", "/api-keys/"+k.id(), "").read(t)
			return record.LastUsed != nil && record.LastUsed.After(before.Add(-2*time.Second)) && record.LastUsed.Before(time.Now())
		})
	}
	onEachStore(t, test)
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, startCaddy(t, managed))
	})
}

// A database that stands still and answers nobody is noticed by no request: known
// keys pass as they did, and what is not known is anonymous. That is no matter of
// how long anything takes here: the database stands still until all is answered.
func TestPostgresThatStandsStillKeepsNoRequestWaiting(t *testing.T) {
	t.Parallel()
	pg := testserver.NewPostgres(t)
	c := startCaddy(t, managed, postgresProvider(pg.NewDatabase(t), "cache_ttl 1s"), redisBackend(testserver.NewRedis(t)))
	m := manage(c)
	m.patch("/policies/default-pro", `{"limit": 100000000}`)
	m.patch("/policies/default-anonymous", `{"limit": 100000000}`)
	known, unseen := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`), m.create("/api-keys", `{"client": "globex", "tier": "PRO"}`)
	s := &stage{t: t, there: c}
	s.awaitTier(known.Key, "PRO")
	m.awaitLimit(known.id(), "100000000/1m")

	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			n, longest := traffic(t, c, known.Key, "PRO k_"+known.id(), stop)
			t.Logf("%d requests, the longest took %s", n, longest)
		})
	}
	if err := pg.Pause(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for range 20 {
		if tier := tierOf(t, c.get("/", apiKey(unseen.Key))); tier != "anonymous" {
			t.Errorf("a key that was never seen is in tier %s", tier)
		}
	}
	t.Logf("20 requests with a key that nobody knows took %s; each waits 50ms at most, and none once the outage is known", time.Since(start))
	awaitHealth(c, 503)
	close(stop)
	wg.Wait()
	if err := pg.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitHealth(c, 200)
	s.awaitTier(unseen.Key, "PRO")
}

// Who has nothing but psql changes what every instance does. What cannot be used
// is seen in the log and by health, and holds nothing up.
func TestRowsThatAreChangedWithPsqlReachEveryInstance(t *testing.T) {
	t.Parallel()
	pg := testserver.NewPostgres(t)
	address := pg.NewDatabase(t)
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	database := strings.TrimPrefix(parsed.Path, "/")
	psql := func(sql string) {
		t.Helper()
		if err := pg.Exec(database, sql); err != nil {
			t.Fatal(err)
		}
	}
	provider, backend := postgresProvider(address), redisBackend(testserver.NewRedis(t))
	instances := []*caddy{startCaddy(t, managed, provider, backend), startCaddy(t, managed, provider, backend)}
	k := manage(instances[0]).create("/api-keys", `{"client": "acme", "tier": "PRO"}`)
	arrives := func(limit string) {
		t.Helper()
		for _, c := range instances {
			manage(c).awaitLimit(k.id(), limit)
		}
	}
	psql("UPDATE rate_limit_policies SET limit_count = 7 WHERE tier = 'PRO'")
	arrives("7/1m")
	// as somebody did before the schema refused it
	psql(`ALTER TABLE rate_limit_policies DROP CONSTRAINT rate_limit_policies_exact;
		UPDATE rate_limit_policies SET limit_count = 301, window_us = 31622400000000 WHERE tier = 'FREE';
		UPDATE rate_limit_policies SET limit_count = 8 WHERE tier = 'PRO'`)
	arrives("8/1m")
	for _, c := range instances {
		wantAll(t, manage(c).do(200, "GET", "/healthz", "").body, `"status":"degraded"`, `"refused_policies":1`)
		wantAll(t, strings.Join(c.log.lines(`"level":"error"`, "cannot be used"), ""), `"id":"default-free"`, "write a smaller count")
	}
	manage(instances[0]).patch("/policies/default-free", `{"limit": 61, "window": "1m"}`)
	for _, c := range instances {
		eventually(t, "health is well again", func() bool { return !strings.Contains(manage(c).get("/healthz").body, "refused") })
	}
	psql("UPDATE rate_limit_api_keys SET revoked_at = now()")
	for _, c := range instances {
		(&stage{t: t, there: c}).awaitTier(k.Key, "anonymous")
	}
}

// A policy may let requests wait for their turn, whoever keeps it.
func TestAPolicyLetsRequestsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, instances ...*caddy) {
		m, there := manage(instances[0]), instances[len(instances)-1]
		k := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`)
		m.patch("/policies/default-pro", `{"limit": 2, "window": "2s", "algorithm": "leaky_bucket", "max_delay": "20s"}`)
		manage(there).awaitLimit(k.id(), "2/2s")
		start := time.Now()
		for i := range 3 {
			there.get("/", apiKey(k.Key)).wantStatus(t, 200)
			if took, least := time.Since(start), time.Duration(i)*time.Second-100*time.Millisecond; took < least {
				t.Errorf("request %d came after %s, before its turn", i, took)
			}
		}
		wantAll(t, m.do(200, "GET", "/explain?path=/&api_key_id="+url.QueryEscape(k.id()), "").body, `"max_delay":"20s"`)
		a := m.do(422, "PATCH", "/policies/default-pro", `{"algorithm": "token_bucket"}`, ifMatch("*"))
		wantAll(t, a.body, `"max_delay"`, fmt.Sprintf("%q", "leaky_bucket")[1:12])
	})
}
