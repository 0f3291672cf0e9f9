package integration_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// scrape is what Prometheus reads of one process: values by name and labels.
type scrape map[string]float64

// metrics reads what the admin endpoint serves.
func (c *caddy) metrics() scrape {
	c.t.Helper()
	return c.scrapeFrom(c.admin, "http://localhost/metrics")
}

// siteMetrics reads what a site serves with Caddy's directive metrics.
func (c *caddy) siteMetrics(path string) scrape {
	c.t.Helper()
	return c.scrapeFrom(c.client, "http://"+c.addr()+path)
}

func (c *caddy) scrapeFrom(client *http.Client, url string) scrape {
	c.t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		c.t.Fatalf("reading metrics: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("reading metrics: %v", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil {
		c.t.Fatalf("metrics that Prometheus cannot read: %v\n%s", err, body)
	}
	found := make(scrape)
	for name, family := range families {
		if short, ok := strings.CutPrefix(name, "caddy_rate_limit_"); ok {
			found.add(short, family)
		}
	}
	return found
}

func (s scrape) add(name string, family *dto.MetricFamily) {
	for _, m := range family.GetMetric() {
		values := make([]string, len(m.GetLabel()))
		for i, l := range m.GetLabel() { // in the order of their names
			values[i] = l.GetName() + "=" + l.GetValue()
		}
		key := name + "{" + strings.Join(values, ",") + "}"
		switch {
		case m.GetCounter() != nil:
			s[key] = m.GetCounter().GetValue()
		case m.GetGauge() != nil:
			s[key] = m.GetGauge().GetValue()
		case m.GetHistogram() != nil:
			s[key+" count"] = float64(m.GetHistogram().GetSampleCount())
		}
	}
}

// requests is the outcomes that were counted: "zone tier status".
func (s scrape) requests() map[string]float64 {
	found := make(map[string]float64)
	for key, value := range s {
		labels, ok := strings.CutPrefix(key, "requests_total{")
		if !ok || value == 0 {
			continue
		}
		parts := strings.Split(strings.TrimSuffix(labels, "}"), ",")
		var status, tier, zone string
		for _, p := range parts {
			name, value, _ := strings.Cut(p, "=")
			switch name {
			case "status":
				status = value
			case "tier":
				tier = value
			case "zone":
				zone = value
			}
		}
		found[zone+"|"+tier+"|"+status] = value
	}
	return found
}

func (s scrape) wantRequests(t *testing.T, want map[string]float64) {
	t.Helper()
	got := s.requests()
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[key]; !ok {
			t.Errorf("requests_total %s: got %v, want no such series", key, got[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			t.Errorf("requests_total %s: got %v, want %v", key, got[key], want[key])
		}
	}
}

func (s scrape) want(t *testing.T, key string, want float64) {
	t.Helper()
	if got, ok := s[key]; !ok || got != want {
		t.Errorf("%s: got %v (there: %t), want %v", key, got, ok, want)
	}
}

// countedSite is a site with a path for each outcome of a request.
const countedSite = trusting + `
:{$PORT} {
	handle /metrics {
		metrics
	}
	rate_limit /two {
		zone first {
			limit 3/1d
		}
		zone second {
			limit 10/1d
		}
	}
	rate_limit /shadow {
		zone watching {
			limit 2/1d
			mode shadow
		}
		zone wide {
			limit 4/1d
		}
	}
	rate_limit /zero {
		zone never {
			limit 0/1d
		}
		zone after {
			limit 10/1d
		}
	}
	rate_limit /key {
		zone keyed {
			key {header.X-Client}
			missing_key reject
			limit 5/1d
		}
	}
	rate_limit /token {
		identify {
			jwt {
				secret ` + clientSecret + `
			}
		}
		zone address {
			limit 4/1d
		}
		zone account {
			key {http.rate_limit.identity}
			limit 2/1d
		}
	}
	rate_limit /skipped {
		exempt path /skipped
		zone skipped {
			limit 1/1d
		}
	}
	respond "welcome"
}`

func TestEveryOutcomeOfARequestIsCountedOnceForTheLimitThatDecided(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, countedSite, backend)
		c.sequence(5, "/two").want(t, tally{200: 3, 429: 2})
		c.sequence(5, "/shadow").want(t, tally{200: 4, 429: 1})
		c.sequence(2, "/zero").want(t, tally{429: 2})
		c.sequence(2, "/key").want(t, tally{400: 2})
		c.sequence(6, "/key", with("X-Client", "acme")).want(t, tally{200: 5, 429: 1})
		c.sequence(3, "/skipped").want(t, tally{200: 3})
		good := with("Authorization", "Bearer "+signed(t, jwt.SigningMethodHS256, []byte(clientSecret), claimsOf(nil), nil))
		c.sequence(3, "/token", good, from("203.0.113.1")).want(t, tally{200: 2, 429: 1})
		c.sequence(6, "/token", with("Authorization", "Bearer a.b.c"), from("203.0.113.2")).want(t, tally{401: 2, 429: 4})

		want := map[string]float64{
			"first|anonymous|allowed": 3, "first|anonymous|blocked": 2, "second|anonymous|allowed": 3,
			"watching|anonymous|allowed": 2, "watching|anonymous|shadow_blocked": 2, "wide|anonymous|allowed": 4, "wide|anonymous|blocked": 1,
			"never|anonymous|blocked": 2,
			"keyed|anonymous|invalid": 2, "keyed|anonymous|allowed": 5, "keyed|anonymous|blocked": 1,
			// Two tokens that are not valid were counted, and passed the zones before they were refused.
			"address|anonymous|allowed": 2 + 2, "account|anonymous|allowed": 2 + 2, "account|anonymous|blocked": 1 + 4, "|anonymous|invalid": 2,
		}
		c.metrics().wantRequests(t, want)
		c.siteMetrics("/metrics").wantRequests(t, want)

		c.reload(countedSite + "\n# changed\n")
		c.metrics().wantRequests(t, want)
		if problem := c.load(strings.Replace(countedSite, "limit 3/1d", "limit 3/1d\nburst 5\nalgorithm fixed_window", 1)); problem == "" {
			t.Fatal("a wrong configuration was loaded")
		}
		c.sequence(1, "/two").want(t, tally{429: 1})
		want["first|anonymous|blocked"]++
		c.metrics().wantRequests(t, want)
		c.siteMetrics("/metrics").wantRequests(t, want)
	})
}

// expectedSite has zones that can end in different ways, and tiers.
const expectedSite = `{
	rate_limit {
		backend {$BACKEND}
		provider static {
			tier anonymous {
				policy * 30/1m
			}
			tier FREE {
				policy * 600/1m
				policy /login POST 5/1m on_error closed
			}
		}
	}
}
:{$PORT} {
	rate_limit /plain {
		zone plain {
			limit 3/1d
		}
		zone watching {
			limit 2/1d
			mode shadow
			on_error open
		}
	}
	rate_limit {
		tiers
		zone keyed {
			key {header.X-Client}
			missing_key reject
			limit 5/1d
		}
	}
}`

// A series that appears with its first value has no increase up to it, so that the
// first burst of a new instance would be seen by nobody.
func TestEverySeriesOfAConfigurationIsThereBeforeItsFirstRequest(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, expectedSite, redisBackend(testserver.NewRedis(t)))
	expected := func(zone, tier string, outcomes ...string) (keys []string) {
		for _, o := range outcomes {
			keys = append(keys, fmt.Sprintf("requests_total{status=%s,tier=%s,zone=%s}", o, tier, zone))
		}
		return keys
	}
	want := slices.Concat(
		expected("plain", "anonymous", "allowed", "blocked", "allowed_local", "blocked_local"),
		expected("watching", "anonymous", "allowed", "shadow_blocked", "allowed_open"),
		expected("keyed", "anonymous", "allowed", "blocked", "allowed_local", "blocked_local", "invalid"),
		expected("keyed", "FREE", "allowed", "blocked", "allowed_local", "blocked_local", "invalid"),
		expected("anonymous *", "anonymous", "allowed", "blocked", "allowed_local", "blocked_local"),
		expected("FREE *", "FREE", "allowed", "blocked", "allowed_local", "blocked_local"),
		expected("FREE /login POST", "FREE", "allowed", "blocked", "unavailable"),
	)
	compare := func(when string) {
		t.Helper()
		got := c.metrics()
		maps.DeleteFunc(got, func(key string, _ float64) bool { return !strings.HasPrefix(key, "requests_total{") })
		slices.Sort(want)
		if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) {
			t.Errorf("%s: got the series\n%s\nwant\n%s", when, strings.Join(keys, "\n"), strings.Join(want, "\n"))
		}
		for key, value := range got {
			if value != 0 {
				t.Errorf("%s: %s is %v", when, key, value)
			}
		}
	}
	compare("at the start")
	for _, kind := range []string{"timeout", "connection", "memory"} {
		c.metrics().want(t, "redis_errors_total{kind="+kind+"}", 0)
	}
	for _, mode := range []string{"open", "local", "closed"} {
		c.metrics().want(t, "fallback_total{mode="+mode+"}", 0)
	}
	c.reload(strings.Replace(expectedSite, "zone plain {", "zone added {\n\t\t\tlimit 1/1d\n\t\t}\n\t\tzone plain {", 1))
	want = append(want, expected("added", "anonymous", "allowed", "blocked", "allowed_local", "blocked_local")...)
	compare("after a reload")
}

func TestDecisionsWithoutRedisAreCountedAsSuch(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	c := startCaddy(t, modes, impatient(server))
	c.sequence(1, "/local").want(t, tally{200: 1})
	before := c.metrics()
	before.want(t, "breaker_state{}", 0)
	before.want(t, "fallback_total{mode=local}", 0)
	before.want(t, "redis_duration_seconds{} count", 1)

	server.Kill()
	c.sequence(5, "/open").want(t, tally{200: 5})
	c.sequence(5, "/closed").want(t, tally{503: 5})
	c.sequence(5, "/local").want(t, tally{200: 2, 429: 3})
	c.sequence(6, "/both").want(t, tally{200: 5, 429: 1})
	c.sequence(2, "/strict").want(t, tally{503: 2})
	c.sequence(5, "/shadow").want(t, tally{200: 5})
	after := c.metrics()
	after.wantRequests(t, map[string]float64{
		"open|anonymous|allowed_open":   5,
		"closed|anonymous|unavailable":  5,
		"local|anonymous|allowed":       1,
		"local|anonymous|allowed_local": 2, "local|anonymous|blocked_local": 3,
		"lax|anonymous|allowed_open":     5,
		"strict|anonymous|allowed_local": 5, "strict|anonymous|blocked_local": 1,
		"firm|anonymous|unavailable":      2,
		"watching|anonymous|allowed_open": 5,
	})
	after.want(t, "fallback_total{mode=closed}", 7)
	after.want(t, "fallback_total{mode=local}", 11)
	after.want(t, "fallback_total{mode=open}", 10)
	eventually(t, "the breaker is open", func() bool {
		c.sequence(1, "/open")
		return c.metrics()["breaker_state{}"] >= 1
	})
	c.reload(modes + "\n# changed\n")
	if got := c.metrics()["breaker_state{}"]; got < 1 {
		t.Errorf("breaker_state after a reload: got %v, want an open breaker", got)
	}
	if c.metrics()["redis_errors_total{kind=connection}"] == 0 {
		t.Error("connections were refused, and no error is counted")
	}

	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the breaker is closed", func() bool { return c.metrics()["breaker_state{}"] == 0 })
	before = c.metrics()
	c.sequence(2, "/open").want(t, tally{200: 2})
	if got, want := c.metrics()["requests_total{status=allowed,tier=anonymous,zone=open}"], before["requests_total{status=allowed,tier=anonymous,zone=open}"]+2; got != want {
		t.Errorf("after the outage: got %v requests allowed by Redis, want %v", got, want)
	}
}

func TestTheTableInMemoryIsMeasured(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, countedSite)
	c.metrics().want(t, "keys{}", 0)
	for i := range 7 {
		c.get("/two", from(fmt.Sprint("203.0.113.", i)))
	}
	c.metrics().want(t, "keys{}", 14)
	c.reload(countedSite + "\n# changed\n")
	c.metrics().want(t, "keys{}", 14)
	if _, ok := c.metrics()["breaker_state{}"]; ok {
		t.Error("there is no Redis, but the state of a breaker is told")
	}
}

// The labels must not grow with what clients send, nor tell who they are.
func TestLabelsNeverHoldAKeyOrAnAddressOrATierThatAClientMadeUp(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, strings.Replace(managed, "tiers", `tiers
		identify {
			api_key header X-API-Key
			jwt {
				secret `+clientSecret+`
			}
		}`, 1))
	m := manage(c)
	k := m.create("/api-keys", `{"client": "acme", "tier": "FREE"}`)
	m.create("/policies", `{"api_key_id": %q, "route": "/own", "limit": 2, "window": "1d"}`, k.id())
	c.sequence(3, "/own", apiKey(k.Key)).want(t, tally{200: 2, 429: 1})
	for i := range 5 {
		claims := claimsOf(jwt.MapClaims{"tier": fmt.Sprint("made-up-", i), "sub": fmt.Sprint("account-", i)})
		c.get("/", with("Authorization", "Bearer "+signed(t, jwt.SigningMethodHS256, []byte(clientSecret), claims, nil))).wantStatus(t, 200)
		c.get("/", apiKey(fmt.Sprint("made-up-", i)), from(fmt.Sprint("203.0.113.", i))).wantStatus(t, 200)
	}
	s := c.metrics()
	s.wantRequests(t, map[string]float64{
		"api_key /own|FREE|allowed": 2, "api_key /own|FREE|blocked": 1, "FREE *|FREE|allowed": 2,
		"anonymous *|anonymous|allowed": 10,
	})
	for key := range s {
		for _, secret := range []string{k.Key, k.id(), "made-up", "203.0.113", "account-"} {
			if strings.Contains(key, secret) {
				t.Errorf("%q stands in the series %s", secret, key)
			}
		}
	}
}

func TestAChangeOfAPolicyIsMeasuredOnEveryInstance(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, instances ...*caddy) {
		here, there := instances[0], instances[len(instances)-1]
		m := manage(here)
		key := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`)
		for i := range 3 {
			m.do(200, "PATCH", "/policies/default-pro", fmt.Sprintf(`{"limit": %d}`, 1000+i), ifMatch("*"))
			manage(there).awaitLimit(key.id(), fmt.Sprintf("%d/1m", 1000+i))
		}
		for _, c := range []*caddy{here, there} {
			eventually(t, "four changes are measured", func() bool { return c.metrics()["policy_propagation_seconds{} count"] == 4 })
			s := c.metrics()
			if age, ok := s["policy_age_seconds{}"]; !ok || age < 0 || math.IsInf(age, 0) {
				t.Errorf("policy_age_seconds: got %v (there: %t), want the seconds since the policies were read", age, ok)
			}
		}
	})
}

func TestLookUpsOfAPIKeysAreCountedByTheirResult(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, instances ...*caddy) {
		here, there := instances[0], instances[len(instances)-1]
		m := manage(here)
		key := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`).Key
		gone := m.create("/api-keys", `{"client": "gone", "tier": "PRO"}`)
		m.remove("/api-keys/" + gone.id())
		eventually(t, "the key has arrived", func() bool { return tierOf(t, there.get("/", apiKey(key))) == "PRO" })
		there.get("/", apiKey(gone.Key))
		before := there.metrics()
		there.sequence(4, "/", apiKey(key))
		there.sequence(3, "/", apiKey(gone.Key))
		there.sequence(2, "/", apiKey(key[:len(key)-1]+"-")) // by its looks no key
		there.sequence(2, "/")
		after := there.metrics()
		for result, want := range map[string]float64{"hit": 4, "negative": 3, "miss": 0, "timeout": 0, "skipped": 0} {
			name := "policy_cache_total{result=" + result + "}"
			if got := after[name] - before[name]; got != want {
				t.Errorf("%s: got %v more, want %v", name, got, want)
			}
		}
	})
}

// A dashboard shows the share of known keys whatever the provider is.
func TestLookUpsOfKeysThatTheCaddyfileHoldsAreCounted(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, fmt.Sprintf(`{
	rate_limit {
		provider static {
			tier FREE {
				policy * 60/1m
			}
			api_key acme %x FREE
		}
	}
}
:{$PORT} {
	rate_limit {
		tiers
	}
}`, sha256.Sum256([]byte("open sesame"))))
	c.sequence(3, "/", apiKey("open sesame"))
	c.sequence(2, "/", apiKey("close sesame"))
	c.sequence(1, "/")
	got := c.metrics()
	got.want(t, "policy_cache_total{result=hit}", 3)
	got.want(t, "policy_cache_total{result=negative}", 2)
	got.want(t, "policy_cache_total{result=miss}", 0)
}

// The kind tells an operator what to mend.
func TestFailuresOfRedisAreCountedByTheirKind(t *testing.T) {
	t.Parallel()
	for kind, breakIt := range map[string]func(*testing.T, *testserver.Redis){
		"timeout": func(t *testing.T, server *testserver.Redis) {
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
		},
		"memory": func(t *testing.T, server *testserver.Redis) {
			if err := inspect(t, server).ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
				t.Fatal(err)
			}
		},
		"readonly": func(t *testing.T, server *testserver.Redis) {
			if err := inspect(t, server).ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
				t.Fatal(err)
			}
		},
		"wrongtype": func(t *testing.T, server *testserver.Redis) {
			if err := inspect(t, server).HSet(t.Context(), "ratelimit:{127.0.0.1}:local", "x", "y").Err(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := testserver.NewRedis(t)
			c := startCaddy(t, modes, impatient(server))
			c.get("/open").wantStatus(t, 200)
			before := c.metrics() // a slow machine may have had a timeout
			breakIt(t, server)
			c.get("/local").wantStatus(t, 200)
			s := c.metrics()
			if name := "redis_errors_total{kind=" + kind + "}"; s[name]-before[name] != 1 {
				t.Errorf("%s: got %v more, want 1", name, s[name]-before[name])
			}
			s.want(t, "fallback_total{mode=local}", 1)
			for key, n := range s {
				n -= before[key]
				if strings.HasPrefix(key, "redis_errors_total") && n != 0 && !strings.Contains(key, kind) {
					t.Errorf("%s: got %v, want none", key, n)
				}
			}
		})
	}
}

func TestAnOutageOfPostgresShowsInTheAgeOfThePolicies(t *testing.T) {
	t.Parallel()
	database := testserver.NewPostgres(t)
	c := startCaddy(t, managed, postgresProvider(database.NewDatabase(t), "cache_ttl 100ms", "lookup_timeout 10s"))
	m := manage(c)
	key := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`).Key
	late := m.create("/api-keys", `{"client": "late", "tier": "PRO"}`).Key
	eventually(t, "the key is in tier PRO", func() bool { return tierOf(t, c.get("/", apiKey(key))) == "PRO" })
	database.Kill()
	eventually(t, "the policies have aged", func() bool { return c.metrics()["policy_age_seconds{}"] > 1 })
	before := c.metrics()
	c.get("/", apiKey(key)).wantStatus(t, 200)
	c.get("/", apiKey(late)).wantStatus(t, 200)
	after := c.metrics()
	for result, want := range map[string]float64{"hit": 1, "skipped": 1, "negative": 0, "miss": 0} {
		name := "policy_cache_total{result=" + result + "}"
		if got := after[name] - before[name]; got != want {
			t.Errorf("%s: got %v more, want %v", name, got, want)
		}
	}
}
