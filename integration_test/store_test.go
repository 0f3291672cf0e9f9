package integration_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// tierOf is the tier that an answer of the site managed was decided by.
func tierOf(t *testing.T, a answer) string {
	t.Helper()
	text := a.body
	if a.status == 429 {
		text = a.problem(t).Policy
	}
	tier, _, _ := strings.Cut(text, " ")
	return tier
}

func apiKey(key string) option { return with("X-API-Key", key) }

// stage is where keys and policies live: admins work here, and clients call there.
type stage struct {
	t           *testing.T
	here, there *caddy
	between     func() // the acts
}

// awaitTier waits until a key is in a tier, there.
func (s *stage) awaitTier(key, tier string) {
	s.t.Helper()
	eventually(s.t, "the key is in tier "+tier, func() bool { return tierOf(s.t, s.there.get("/", apiKey(key))) == tier })
}

// call sends n requests with a key, of which so many must pass.
func (s *stage) call(n, pass int, key string) {
	s.t.Helper()
	s.there.sequence(n, "/", apiKey(key)).want(s.t, tally{200: pass, 429: n - pass}.nonzero())
}

// restart ends the process and starts it again, from what it has stored.
func (c *caddy) restart() {
	c.t.Helper()
	c.stop()
	c.start("run", "--adapter", "caddyfile", "--config", filepath.Join(c.dir, "Caddyfile"))
}

func TestTheLifeOfAPolicyAndOfAKey(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, instances ...*caddy) {
		s := &stage{t: t, here: instances[0], there: instances[len(instances)-1], between: func() {}}
		if s.here == s.there {
			s.between = s.here.restart
		}
		m := manage(s.here)
		m.create("/tiers", `{"name": "GOLD"}`)
		p := m.create("/policies", `{"tier": "GOLD", "route": "*", "limit": 3, "window": "1d"}`)
		k := m.create("/api-keys", `{"client": "acme", "tier": "GOLD"}`)
		s.between()
		s.policyLife(p.id(), k)
		keys := s.rotation(p.id(), k)
		s.between()
		s.endOfAKey(k.id(), keys)
		s.expiry()
		s.cleanUp(p.id(), k.id())
	})
}

// policyLife leaves 8 units used. All that is used stays used, whatever the limit.
func (s *stage) policyLife(policyID string, k stored) {
	s.t.Helper()
	here, there := manage(s.here), manage(s.there)
	there.awaitLimit(k.id(), "3/1d")
	a := s.there.get("/", apiKey(k.Key)).wantStatus(s.t, 200)
	if want := "GOLD k_" + k.id(); a.body != want {
		s.t.Errorf("client: got %q, want %q", a.body, want)
	}
	s.call(3, 2, k.Key) // 3 used
	here.patch("/policies/"+policyID, `{"limit": 5}`)
	there.awaitLimit(k.id(), "5/1d")
	s.call(3, 2, k.Key) // 5 used
	here.patch("/policies/"+policyID, `{"limit": 4}`)
	there.awaitLimit(k.id(), "4/1d")
	s.there.get("/", apiKey(k.Key)).wantStatus(s.t, 429).wantNumber(s.t, "X-RateLimit-Limit", 4)

	s.between()
	own := manage(s.here).create("/policies", `{"api_key_id": %q, "route": "*", "limit": 8, "window": "1d"}`, k.id())
	manage(s.there).awaitLimit(k.id(), "8/1d")
	s.call(4, 3, k.Key) // 8 used
	manage(s.here).remove("/policies/" + own.id())
	manage(s.there).awaitLimit(k.id(), "4/1d")
	s.call(2, 0, k.Key)
}

// rotation gives the client a second and a third key, which share one bucket with
// the first. It returns all, the last one being the only one that works.
func (s *stage) rotation(policyID string, k stored) []string {
	s.t.Helper()
	here, path := manage(s.here), "/api-keys/"+k.id()+"/rotate"
	here.patch("/policies/"+policyID, `{"limit": 12}`)
	manage(s.there).awaitLimit(k.id(), "12/1d")
	second := here.do(200, "POST", path, `{"grace": "1h"}`).read(s.t)
	if second.Key == "" || second.Key == k.Key || second.id() != k.id() {
		s.t.Fatalf("rotated into %s, the same key: %t", second.id(), second.Key == k.Key)
	}
	s.call(1, 1, second.Key)
	s.call(2, 2, k.Key)
	s.call(2, 1, second.Key) // 12 used
	s.call(1, 0, k.Key)

	third := here.do(200, "POST", path, `{"grace": "0s"}`).read(s.t)
	s.awaitTier(k.Key, "anonymous")
	s.awaitTier(second.Key, "anonymous")
	s.awaitTier(third.Key, "GOLD")
	s.call(1, 0, third.Key) // the same bucket, which is empty
	return []string{k.Key, second.Key, third.Key}
}

// endOfAKey moves the key to another tier and revokes it.
func (s *stage) endOfAKey(id string, keys []string) {
	s.t.Helper()
	m, last := manage(s.here), keys[len(keys)-1]
	m.patch("/api-keys/"+id, `{"tier": "PRO"}`)
	s.awaitTier(last, "PRO")
	s.call(5, 5, last)
	m.do(200, "POST", "/api-keys/"+id+"/revoke", "")
	start := time.Now()
	if tier := tierOf(s.t, s.here.get("/", apiKey(last))); tier != "anonymous" {
		s.t.Errorf("where it was revoked, the key is in tier %s", tier)
	}
	s.awaitTier(last, "anonymous")
	s.t.Logf("revoked there after %s", time.Since(start))
	m.do(409, "POST", "/api-keys/"+id+"/rotate", "")
	s.between()
	for _, key := range keys {
		s.awaitTier(key, "anonymous")
	}
}

// expiry sees a key work until its time, and no longer.
func (s *stage) expiry() {
	s.t.Helper()
	m := manage(s.here)
	k := m.create("/api-keys", `{"client": "guest", "tier": "PRO"}`)
	s.awaitTier(k.Key, "PRO")
	at := time.Now().Add(1500 * time.Millisecond)
	m.patch("/api-keys/"+k.id(), `{"expires_at": %q}`, at.UTC().Format(time.RFC3339Nano))
	eventually(s.t, "the key has expired", func() bool {
		tier := tierOf(s.t, s.there.get("/", apiKey(k.Key)))
		if tier != "PRO" && time.Now().Before(at.Truncate(time.Microsecond)) {
			s.t.Fatalf("in tier %s before it expires", tier)
		}
		return tier == "anonymous"
	})
	m.patch("/api-keys/"+k.id(), `{"expires_at": null}`)
	s.awaitTier(k.Key, "PRO")
	m.remove("/api-keys/" + k.id())
	s.awaitTier(k.Key, "anonymous")
}

// cleanUp deletes all in the order that is possible, and reads what the audit has
// of the life.
func (s *stage) cleanUp(policyID, keyID string) {
	s.t.Helper()
	m := manage(s.here)
	m.do(409, "DELETE", "/tiers/GOLD", "", ifMatch("*"))
	m.remove("/api-keys/" + keyID)
	m.remove("/policies/" + policyID)
	m.remove("/tiers/GOLD")
	count := make(map[string]int)
	for _, e := range m.list("/audit") {
		count[e.Kind+" "+e.Action]++
	}
	want := map[string]int{
		"tier create": 1, "tier delete": 1, "policy create": 2, "policy update": 3, "policy delete": 2,
		"api_key create": 2, "api_key update": 3, "api_key rotate": 2, "api_key revoke": 1, "api_key delete": 2,
	}
	if fmt.Sprint(count) != fmt.Sprint(want) {
		s.t.Errorf("audit: got %v, want %v", count, want)
	}
}

// secretsOf makes keys in every way, uses them, and returns them.
func secretsOf(t *testing.T, c *caddy) (keys []string, one stored) {
	t.Helper()
	m := manage(c)
	made := m.create("/api-keys", `{"client": "made", "tier": "PRO"}`)
	idempotent := m.do(201, "POST", "/api-keys", `{"client": "again", "tier": "PRO"}`, with("Idempotency-Key", "9e1d-of-this-test")).read(t)
	const imported = "an-imported-key-of-another-make-5xTz8Q"
	m.create("/api-keys", `{"client": "imported", "tier": "PRO", "sha256": "%x", "prefix": "an-impor"}`, sha256.Sum256([]byte(imported)))
	rotated := m.do(200, "POST", "/api-keys/"+idempotent.id()+"/rotate", "").read(t)
	keys = []string{made.Key, idempotent.Key, imported, rotated.Key}
	for _, key := range keys {
		c.get("/", apiKey(key)).wantStatus(t, 200)
		c.get("/", apiKey(key+"x")).wantStatus(t, 200)
	}
	return keys, made
}

// Whoever reads the database, Redis, the logs, the metrics or the disk finds the
// beginning of a key, its hash and its id; never the key.
func TestNoKeyStandsAnywhereInClear(t *testing.T) {
	t.Parallel()
	pg, server := testserver.NewPostgres(t), testserver.NewRedis(t)
	url := pg.NewDatabase(t)
	site := strings.Replace(managed, "{\n\tservers", "{\n\tdebug\n\tmetrics\n\tservers", 1)
	for name, env := range map[string][]string{
		"postgres": {postgresProvider(url), redisBackend(server)}, "embedded": {redisBackend(server)},
	} {
		c := startCaddy(t, site, env...)
		keys, made := secretsOf(t, c)
		places := map[string]string{"metrics": metricsOf(c), "Redis": everythingIn(t, server)}
		c.stop()
		places["log"], places["disk"] = c.log.String(), everyFile(t, c.dir+"/data")
		sum := sha256.Sum256([]byte(made.Key))
		wantAll(t, places["Redis"], "k_"+made.id()) // what is searched holds what may be there
		wantAll(t, places["metrics"], "rate_limit")
		wantAll(t, places["log"], `"level":"debug"`)
		if name == "postgres" {
			dump, err := exec.Command(pg.Program("pg_dump"), "--dbname="+url).CombinedOutput()
			if err != nil {
				t.Fatalf("pg_dump: %v %s", err, dump)
			}
			places["database"] = string(dump)
			wantAll(t, places["database"], made.Prefix, hex.EncodeToString(sum[:]))
		} else {
			wantAll(t, places["disk"], made.Prefix)
		}
		for place, text := range places {
			for i, key := range keys {
				if strings.Contains(text, key[8:]) {
					t.Errorf("%s: the %s holds key %d in clear", name, place, i)
				}
			}
		}
	}
}

func metricsOf(c *caddy) string {
	c.t.Helper()
	resp, err := c.admin.Get("http://localhost/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	var text strings.Builder
	if err := resp.Write(&text); err != nil {
		c.t.Fatal(err)
	}
	return text.String()
}

// everythingIn is all names and values of a Redis server.
func everythingIn(t *testing.T, server *testserver.Redis) string {
	t.Helper()
	client := inspect(t, server)
	var text strings.Builder
	for _, key := range storedKeys(t, client) {
		value, err := client.Dump(t.Context(), key).Result()
		if err != nil && !errors.Is(err, redis.Nil) { // one that has drained meanwhile
			t.Fatal(err)
		}
		text.WriteString(key + "\n" + value + "\n")
	}
	return text.String()
}

func everyFile(t *testing.T, dir string) string {
	t.Helper()
	var text strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		text.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// traffic is a client that sends a key again and again until it is stopped, and
// reports every answer that is not what the key gives.
func traffic(t *testing.T, c *caddy, key, body string, stop <-chan struct{}) (n int, longest time.Duration) {
	for {
		select {
		case <-stop:
			return n, longest
		default:
		}
		start := time.Now()
		a, err := c.try("/", apiKey(key))
		n, longest = n+1, max(longest, time.Since(start))
		if err != nil || a.status != 200 || a.body != body {
			t.Errorf("request %d: %d %q %v, want 200 %q", n, a.status, a.body, err, body)
			return n, longest
		}
	}
}

// A database that dies under load is noticed by no client whose key is known.
func TestPostgresThatDiesDuringTrafficCostsNoRequestAnything(t *testing.T) {
	t.Parallel()
	pg := testserver.NewPostgres(t)
	provider, backend := postgresProvider(pg.NewDatabase(t), "cache_ttl 1s"), redisBackend(testserver.NewRedis(t))
	instances := []*caddy{startCaddy(t, managed, provider, backend), startCaddy(t, managed, provider, backend)}
	m := manage(instances[0])
	m.patch("/policies/default-pro", `{"limit": 100000000}`)
	known, unseen := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`), m.create("/api-keys", `{"client": "globex", "tier": "PRO"}`)
	(&stage{t: t, there: instances[0]}).awaitTier(known.Key, "PRO")
	(&stage{t: t, there: instances[1]}).awaitTier(known.Key, "PRO")
	manage(instances[1]).awaitLimit(known.id(), "100000000/1m")

	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			n, longest := traffic(t, instances[i%2], known.Key, "PRO k_"+known.id(), stop)
			t.Logf("%d requests, the longest took %s", n, longest)
		})
	}
	pg.Kill()
	for _, c := range instances {
		awaitHealth(c, 503)
		for range 5 { // not known, and nobody can be asked
			if tier := tierOf(t, c.get("/", apiKey(unseen.Key))); tier != "anonymous" {
				t.Errorf("a key that was never seen is in tier %s", tier)
			}
		}
		manage(c).do(503, "PATCH", "/policies/default-pro", `{"limit": 1}`, ifMatch("*"))
	}
	if err := pg.Restart(); err != nil {
		t.Fatal(err)
	}
	for _, c := range instances {
		awaitHealth(c, 200)
		(&stage{t: t, there: c}).awaitTier(unseen.Key, "PRO")
	}
	close(stop)
	wg.Wait()
	m.patch("/policies/default-pro", `{"limit": 5}`)
	eventually(t, "changes arrive again", func() bool {
		return instances[1].get("/", apiKey(known.Key)).number(t, "X-RateLimit-Limit") == 5
	})
}

// awaitHealth waits until the admin API of the process says how it is.
func awaitHealth(c *caddy, status int) {
	c.t.Helper()
	m := manage(c)
	eventually(c.t, fmt.Sprintf("health is %d", status), func() bool { return m.get("/healthz").status == status })
}

// An instance starts from the policies that it has saved, whoever is away, and gets
// well when they are back.
func TestCaddyStartsFromTheSavedPoliciesWithoutPostgresAndWithoutRedis(t *testing.T) {
	t.Parallel()
	for _, redisToo := range []bool{false, true} {
		t.Run(fmt.Sprintf("without Redis %t", redisToo), func(t *testing.T) {
			t.Parallel()
			pg, server := testserver.NewPostgres(t), testserver.NewRedis(t)
			c := startCaddy(t, managed, postgresProvider(pg.NewDatabase(t), "cache_ttl 1s", "lookup_timeout 10s"), redisBackend(server))
			m := manage(c)
			m.patch("/policies/default-anonymous", `{"limit": 7, "window": "1d"}`)
			k := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`)
			eventually(t, "the policies are saved", func() bool { return strings.Contains(everyFile(t, c.dir+"/data"), `"limit":7,`) })
			pg.Kill()
			if redisToo {
				server.Kill()
			}
			c.restart()
			wantAll(t, strings.Join(c.log.lines(`"level":"warn"`, "saved last"), ""), `"age"`, `"saved_at"`)
			awaitHealth(c, 503)
			c.sequence(9, "/", apiKey(k.Key)).want(t, tally{200: 7, 429: 2})
			c.sequence(9, "/", from("203.0.113.7")).want(t, tally{200: 7, 429: 2})

			if redisToo {
				if err := server.Restart(); err != nil {
					t.Fatal(err)
				}
			}
			if err := pg.Restart(); err != nil {
				t.Fatal(err)
			}
			(&stage{t: t, there: c}).awaitTier(k.Key, "PRO")
			awaitHealth(c, 200)
			eventually(t, "buckets are in Redis", func() bool {
				c.get("/", apiKey(k.Key)).wantStatus(t, 200)
				return slices.Contains(storedKeys(t, inspect(t, server)), "ratelimit:{k_"+k.id()+"}:global")
			})
			manage(c).patch("/policies/default-anonymous", `{"limit": 9}`)
			c.sequence(9, "/", from("203.0.113.9")).want(t, tally{200: 9})
		})
	}
}

// Without a database and without saved policies everybody has the strictest limit
// that is built in; the schema is made as soon as there is a database.
func TestCaddyStartsWithoutAnythingAndGetsWellByItself(t *testing.T) {
	t.Parallel()
	pg := testserver.NewPostgres(t)
	url := pg.NewDatabase(t)
	pg.Kill()
	c := startCaddy(t, managed, postgresProvider(url, "cache_ttl 1s"))
	if lines := c.log.lines(`"level":"error"`, "strictest built-in limit"); len(lines) != 1 {
		t.Errorf("%d errors say so, want one", len(lines))
	}
	a := c.get("/").wantStatus(t, 200)
	a.wantNumber(t, "X-RateLimit-Limit", 30)
	if err := pg.Restart(); err != nil {
		t.Fatal(err)
	}
	awaitHealth(c, 200)
	k := manage(c).create("/api-keys", `{"client": "acme", "tier": "ENTERPRISE"}`)
	(&stage{t: t, there: c}).awaitTier(k.Key, "ENTERPRISE")
}
