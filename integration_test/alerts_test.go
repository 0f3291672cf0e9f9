package integration_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// hurried makes the alerts' minutes two seconds long, and policies old after five.
var hurried = []string{"15m", "30s", "10m", "20s", "5m", "10s", "1m", "2s", " > 60", " > 5"}

// alarms are the alerts that a Prometheus has raised so far.
type alarms struct {
	t          *testing.T
	prometheus *testserver.Prometheus
	raised     map[string]bool
}

// firing lists those that fire now.
func (a *alarms) firing() []string {
	a.t.Helper()
	samples, err := a.prometheus.Query(`ALERTS{alertstate="firing"}`)
	if err != nil {
		a.t.Fatal(err)
	}
	var names []string
	for _, s := range samples {
		names = append(names, s.Labels["alertname"])
		a.raised[s.Labels["alertname"]] = true
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// waitFor keeps something going on until each of the alerts has been raised.
func (a *alarms) waitFor(goOn func(), alerts ...string) {
	a.t.Helper()
	a.raised = make(map[string]bool)
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(100 * time.Millisecond) {
		goOn()
		a.firing()
		missing := slices.DeleteFunc(slices.Clone(alerts), func(name string) bool { return a.raised[name] })
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("waited in vain for %s; raised were %v", strings.Join(missing, ", "), slices.Sorted(maps.Keys(a.raised)))
		}
	}
}

// waitForCalm keeps something going on until no alert fires.
func (a *alarms) waitForCalm(goOn func()) {
	a.t.Helper()
	for deadline := time.Now().Add(2 * patience); len(a.firing()) > 0; time.Sleep(100 * time.Millisecond) {
		goOn()
		if time.Now().After(deadline) {
			a.t.Fatalf("waited in vain for these to end: %v", a.firing())
		}
	}
}

// The events that the alerts name really happen here. While the breaker is open,
// requests do not call Redis, and the alert on its errors must fire all the same.
func TestARealOutageRaisesItsAlertsAndTheyEndWithIt(t *testing.T) {
	t.Parallel()
	redis, database := testserver.NewRedis(t), testserver.NewPostgres(t)
	c := startCaddy(t, watchedSite, redisBackend(redis), postgresProvider(database.NewDatabase(t), "cache_ttl 1s"))
	a := &alarms{t: t, prometheus: prometheusFor(t, c, hurried...), raised: make(map[string]bool)}
	eventually(t, "Prometheus reads the metrics", func() bool { return has(t, a.prometheus, `up{job="tollgate"} == 1`) })
	key := manage(c).create("/api-keys", `{"client": "acme", "tier": "PRO"}`).Key
	n := 0
	known := func() { n++; c.get("/", from(fmt.Sprintf("10.0.%d.%d", n/200, 1+n%200)), apiKey(key)) }
	a.waitForCalm(known)

	redis.Kill()
	a.waitFor(func() {
		if c.metrics()["breaker_state{}"] == 0 {
			known()
		}
	}, "TollgateDecidesWithoutRedis", "TollgateBreakerOpen", "TollgateRedisErrors")
	eventually(t, "requests have been absent for a while", func() bool { return !slices.Contains(a.firing(), "TollgateDecidesWithoutRedis") })
	if got := a.firing(); !slices.Contains(got, "TollgateBreakerOpen") || !slices.Contains(got, "TollgateRedisErrors") {
		t.Errorf("Redis is still down, and of its alerts fire only %v", got)
	}
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	a.waitForCalm(known)

	database.Kill()
	a.waitFor(func() { c.get("/", apiKey(policy.NewKey())) }, "TollgatePoliciesOld", "TollgateKeysNotFound")
	if err := database.Restart(); err != nil {
		t.Fatal(err)
	}
	a.waitForCalm(known)

	c.stop()
	a.waitFor(func() {}, "TollgateDown")
}

func TestAFullMemoryRaisesItsAlertWhateverItsSize(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `{
	servers {
		trusted_proxies static 127.0.0.1/32 ::1/128
	}
	rate_limit {
		backend memory {
			max_keys 100
		}
	}
}
http://:{$PORT} {
	rate_limit 2/2s
}
http://:{$PORT2} {
	metrics
}`)
	a := &alarms{t: t, prometheus: prometheusFor(t, c, hurried...), raised: make(map[string]bool)}
	n := 0
	a.waitFor(func() {
		for range 50 {
			n++
			c.get("/", from(fmt.Sprintf("10.%d.%d.%d", n/40000, n/200%200, 1+n%200)))
		}
	}, "TollgateMemoryNearlyFull")
	a.waitForCalm(func() { c.get("/", from("203.0.113.7")) })
}

func TestSlownessAndAnAttackRaiseTheirAlerts(t *testing.T) {
	t.Parallel()
	patient, database := testserver.NewPatient(t), testserver.NewPostgres(t)
	dsn := database.NewDatabase(t)
	link := testserver.NewProxy(t, database.Addr())
	c := startCaddy(t, watchedSite, "BACKEND=redis "+patient.URL()+" {\ntimeout 10s\n}\n",
		postgresProvider(strings.Replace(dsn, database.Addr(), link.Addr(), 1), "cache_ttl 1s"))
	a := &alarms{t: t, prometheus: prometheusFor(t, c, hurried...), raised: make(map[string]bool)}
	n := 0
	attack := func() {
		n++
		c.get("/", from(fmt.Sprintf("10.0.%d.%d", n/200, 1+n%200)))
		c.sequence(3, "/", from("203.0.113.7"))
	}
	patient.Proxy.Delay(30 * time.Millisecond)
	a.waitFor(attack, "TollgateRedisSlow", "TollgateRefusesMuch")
	patient.Proxy.Delay(0)
	a.waitForCalm(func() {})

	// Somebody else changes a policy while this instance cannot hear of it.
	other := manage(startCaddy(t, watchedSite, redisBackend(patient.Redis), postgresProvider(dsn)))
	link.Blackhole(true)
	other.patch("/policies/default-pro", `{"limit": %d}`, 777)
	eventually(t, "the change is late", func() bool { return c.metrics()["policy_age_seconds{}"] > 3 })
	link.Blackhole(false)
	a.waitFor(func() {}, "TollgateChangesArriveLate")
	a.waitForCalm(func() {})
}
