package integration_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// delays are how long changes took to arrive.
type delays []time.Duration

// tell logs what is expected to be tens of milliseconds. It is no condition: a
// machine may be busy.
func (d delays) tell(t *testing.T, what string) {
	t.Helper()
	slices.Sort(d)
	n := len(d)
	t.Logf("%s, %d times: p50 %s, p99 %s, max %s", what, n, d[n/2], d[(n*99-1)/100], d[n-1])
}

// twoInstances run on one database and one Redis, which no other test uses.
func twoInstances(t *testing.T) (here, there *caddy) {
	t.Helper()
	provider, backend := postgresProvider(testserver.NewPostgres(t).NewDatabase(t)), redisBackend(testserver.NewRedis(t))
	return startCaddy(t, managed, provider, backend), startCaddy(t, managed, provider, backend)
}

// The time is taken from the answer to an admin at one instance to the first
// decision of the other that heeds the change. It runs beside no other test, so
// that it measures something. Policies are never looked at unasked here, so what
// arrives was pushed.
func TestAChangeOfAPolicyReachesTheOtherInstance(t *testing.T) {
	here, there := twoInstances(t)
	m := manage(here)
	key := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`).Key
	there.get("/", apiKey(key)).wantNumber(t, "X-RateLimit-Limit", 600)
	var took delays
	for i := range int64(100) {
		limit := 100_000 + i
		m.do(200, "PATCH", "/policies/default-pro", fmt.Sprintf(`{"limit": %d}`, limit), ifMatch("*"))
		start := time.Now()
		await(t, "the limit arrives", func() bool {
			return there.get("/", apiKey(key)).number(t, "X-RateLimit-Limit") == limit
		})
		took = append(took, time.Since(start))
		here.get("/", apiKey(key)).wantNumber(t, "X-RateLimit-Limit", limit) // and where it was made it has taken effect before the answer
	}
	took.tell(t, "a changed policy")
}

// await is eventually without a pause in between, for what is measured.
func await(t *testing.T, what string, met func() bool) {
	t.Helper()
	for start := time.Now(); !met(); {
		if time.Since(start) > patience {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
	}
}

func TestARevocationReachesTheOtherInstance(t *testing.T) {
	here, there := twoInstances(t)
	m := manage(here)
	m.patch("/policies/default-anonymous", `{"limit": 1000000}`)
	var took delays
	for range 50 {
		k := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`)
		if tier := tierOf(t, there.get("/", apiKey(k.Key))); tier != "PRO" {
			t.Fatalf("a new key is in tier %s", tier)
		}
		m.do(200, "POST", "/api-keys/"+k.id()+"/revoke", "")
		start := time.Now()
		await(t, "the key ceases to work", func() bool { return tierOf(t, there.get("/", apiKey(k.Key))) == "anonymous" })
		took = append(took, time.Since(start))
	}
	took.tell(t, "a revoked key")
}

// A key that both instances know to be over its limit passes again as soon as an
// admin says so: at once where the admin works, and elsewhere when the change has
// arrived, or for a reset of its usage after a second.
func TestKnownRefusalsEndWithWhatTheyWereAbout(t *testing.T) {
	here, there := twoInstances(t)
	m := manage(here)
	k := m.create("/api-keys", `{"client": "acme", "tier": "FREE"}`)
	m.patch("/policies/default-free", `{"limit": 5, "window": "1d"}`)
	manage(there).awaitLimit(k.id(), "5/1d")
	key := apiKey(k.Key)
	exhaust := func() {
		t.Helper()
		for _, c := range []*caddy{here, there} {
			eventually(t, "the limit is used up", func() bool { return c.get("/", key).status == 429 })
		}
	}
	passes := func(what string) {
		t.Helper()
		start := time.Now()
		here.get("/", key).wantStatus(t, 200)
		await(t, what, func() bool { return there.get("/", key).status == 200 })
		t.Logf("%s elsewhere after %s", what, time.Since(start))
	}
	exhaust()
	m.patch("/policies/default-free", `{"limit": 7}`)
	passes("a raised limit")
	exhaust()
	m.do(204, "DELETE", "/api-keys/"+k.id()+"/usage", "")
	passes("a reset")
	exhaust()
	m.patch("/policies/default-free", `{"cost": 0}`)
	passes("a request that is free now")
}
