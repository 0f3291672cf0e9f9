package integration_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// reloadsUnderLoad is how often each soak test reloads; make soak wants a thousand.
func reloadsUnderLoad(t *testing.T) int {
	t.Helper()
	text := os.Getenv("TOLLGATE_RELOADS")
	if text == "" {
		return 60
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 20 {
		t.Fatalf("TOLLGATE_RELOADS=%s is no number of reloads; write one from 20", text)
	}
	return n
}

// soak is two configurations that take turns while clients call.
type soak struct {
	// what stands in the global option of each, besides zones
	settings [2]string

	keys  []string // of API keys, if clients have some; one client each
	redis *redis.Client
	pg    *pgx.Conn
}

// A limit that gives nothing back while a test runs, and leaves every answer a
// number of its own: what is missing in the row was lost or counted twice.
const onceAYear = "limit 100000000/366d\nalgorithm fixed_window"

// site is one of the two configurations. The zones of both are alike; they stand
// in another order, and two of them only in one.
func (s *soak) site(turn int) string {
	zone := func(name, more string) string {
		return "zone " + name + " {\nkey {http.request.header.X-Client}\n" + more + "\n}\n"
	}
	always, first, second := zone("always", onceAYear), zone("first", onceAYear), zone("second", onceAYear)
	over := zone("over", "limit 1/366d\nalgorithm fixed_window\nmatch header X-Over *")
	zones := [2]string{over + always + first, second + over + "\n" + always}[turn]
	tiers := ""
	if len(s.keys) > 0 {
		tiers = "tiers\n"
	}
	return "{\nrate_limit {\n" + s.settings[turn] + "\n}\n}\n" + `
:{$PORT} {
	rate_limit {
		` + tiers + zones + `
	}
	respond "{http.rate_limit.tier}"
}
:{$PORT2} {
	rate_limit_admin {
		jwt {
			secret ` + adminSecret + `
		}
	}
}`
}

// inOrder are broken configurations, to be tried in turn.
func inOrder() (texts []string) {
	for _, name := range slices.Sorted(maps.Keys(failing)) {
		texts = append(texts, trusting+failing[name])
	}
	return texts
}

// reloadAll reloads n times, alternating, every tenth time with one that must fail.
func (s *soak) reloadAll(c *caddy, n int) {
	c.t.Helper()
	broken := inOrder()
	for i := range n {
		if i%10 == 9 {
			if problem := c.load(broken[i/10%len(broken)]); problem == "" {
				c.t.Errorf("reload %d: the configuration was taken", i+1)
			}
			continue
		}
		if problem := c.load(s.site(i % 2)); problem != "" {
			c.t.Fatalf("reload %d was refused: %s", i+1, problem)
		}
	}
}

// client sends requests one after the other until it is told to stop, and keeps the
// books: each answer must leave one less in every zone that it names.
func (s *soak) client(t *testing.T, c *caddy, i int, stop <-chan struct{}) (n int) {
	options := []option{with("X-Client", fmt.Sprint(i))}
	tier := "anonymous"
	if len(s.keys) > 0 {
		options, tier = append(options, apiKey(s.keys[i])), "PRO"
	}
	left := make(map[string]int64)
	for ; ; n++ {
		select {
		case <-stop:
			return n
		default:
		}
		a, err := c.try("/", options...)
		if err != nil || a.status != 200 || a.body != tier && len(s.keys) > 0 {
			t.Errorf("client %d, request %d: %d %.200q %v", i, n+1, a.status, a.body, err)
			return n
		}
		for _, q := range a.quotas(t, "RateLimit") {
			before, seen := left[q.name]
			if q.params["r"] != before-1 && seen && slices.Contains([]string{"always", "first", "second"}, q.name) {
				t.Errorf("client %d, request %d: zone %s has %d left, and had %d", i, n+1, q.name, q.params["r"], before)
			}
			left[q.name] = q.params["r"]
		}
	}
}

// whoIsOver is over its limit, and must stay so.
func (s *soak) whoIsOver(t *testing.T, c *caddy, stop <-chan struct{}) (n int) {
	for ; ; n++ {
		select {
		case <-stop:
			return n
		default:
		}
		a, err := c.try("/", with("X-Client", "over"), with("X-Over", "yes"))
		if want := map[bool]int{true: 200, false: 429}[n == 0]; err != nil || a.status != want {
			t.Errorf("who is over its limit, request %d: got %d (%v), want %d", n+1, a.status, err, want)
			return n
		}
	}
}

// run lets clients call while configurations change, and compares what the process
// holds before and after.
func (s *soak) run(t *testing.T, c *caddy) {
	t.Helper()
	stop, counts := make(chan struct{}), make(chan int, 5)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { counts <- s.client(t, c, i, stop) })
	}
	wg.Go(func() { counts <- s.whoIsOver(t, c, stop) })
	n := reloadsUnderLoad(t)
	s.reloadAll(c, 20) // both have been there, and what is kept for good is there
	before := s.holdings(t, c)
	s.reloadAll(c, n)
	after := s.holdings(t, c)
	close(stop)
	wg.Wait()
	close(counts)
	requests := 0
	for count := range counts {
		requests += count
	}
	if requests < n/2 {
		t.Errorf("%d requests during %d reloads: no load", requests, n)
	}
	eventually(t, "what earlier configurations held is given back", func() bool {
		after = s.holdings(t, c)
		return after.goroutines <= before.goroutines+20 && after.redis <= before.redis+4 && after.postgres <= before.postgres+2
	})
	t.Logf("%d reloads, %d requests\nbefore: %v\nafter:  %v", n, requests, before, after)
	if most := before.heap + before.heap/2 + 16<<20; after.heap > most {
		t.Errorf("the heap has grown from %d to %d bytes", before.heap, after.heap)
	}
}

// holdings is what a process holds.
type holdings struct {
	goroutines      int
	redis, postgres int   // connections
	heap, resident  int64 // bytes
}

func (h holdings) String() string {
	return fmt.Sprintf("goroutines %d, connections to Redis %d and to Postgres %d, heap %.1f MiB, resident %.1f MiB",
		h.goroutines, h.redis, h.postgres, float64(h.heap)/(1<<20), float64(h.resident)/(1<<20))
}

func (s *soak) holdings(t *testing.T, c *caddy) (h holdings) {
	t.Helper()
	h.heap = c.heap()
	h.goroutines = c.goroutines()
	h.resident = c.resident()
	if s.redis != nil {
		list, err := s.redis.ClientList(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		h.redis = strings.Count(list, "\n") - 1 // the looker's own
	}
	if s.pg != nil {
		const count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
		if err := s.pg.QueryRow(t.Context(), count).Scan(&h.postgres); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

var heapInUse = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)`)

// heap is what the process still needs after collecting its garbage, in bytes.
func (c *caddy) heap() int64 {
	c.t.Helper()
	resp, err := c.admin.Get("http://localhost/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return lastNumber(c.t, heapInUse, string(text))
}

var residentSize = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB`)

// resident is the memory that the system has given to the process, in bytes.
func (c *caddy) resident() int64 {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.cmd.Process.Pid), "status"))
	if err != nil {
		c.t.Fatal(err)
	}
	return lastNumber(c.t, residentSize, string(text)) << 10
}

func lastNumber(t *testing.T, pattern *regexp.Regexp, text string) int64 {
	t.Helper()
	m := pattern.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in %.200q", pattern, text)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestReloadsUnderLoadLoseNothingInMemory(t *testing.T) {
	t.Parallel()
	s := &soak{settings: [2]string{"backend memory", "backend memory {\nmax_keys 5000\n}"}}
	s.run(t, startCaddy(t, s.site(0)))
}

func TestReloadsUnderLoadLoseNothingInRedis(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	s := &soak{redis: inspect(t, server), settings: redisTurns(server)}
	s.run(t, startCaddy(t, s.site(0)))
}

// redisTurns are two configurations of one server that share no connection.
func redisTurns(server *testserver.Redis) [2]string {
	return [2]string{
		"backend redis " + server.URL() + " {\ntimeout 10s\nmax_connections 8\n}",
		"backend redis " + server.URL() + " {\ntimeout 9s\nmax_connections 6\n}",
	}
}

func TestReloadsUnderLoadLoseNothingInRedisAndPostgres(t *testing.T) {
	t.Parallel()
	server, url := testserver.NewRedis(t), testserver.NewPostgres(t).NewDatabase(t)
	s := &soak{redis: inspect(t, server), settings: redisTurns(server)}
	for i, lines := range []string{"cache_ttl 1h\nmax_connections 4", "cache_ttl 59m\nmax_connections 5"} {
		s.settings[i] += "\nprovider postgres " + url + " {\nlookup_timeout 10s\n" + lines + "\n}"
	}
	var err error
	if s.pg, err = pgx.Connect(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.pg.Close(context.WithoutCancel(t.Context())) })
	c := startCaddy(t, s.site(0))
	m := manage(c)
	m.patch("/policies/default-pro", `{"limit": 100000000}`)
	m.patch("/policies/default-anonymous", `{"limit": 100000000}`)
	for i := range 4 {
		k := m.create("/api-keys", `{"client": "%d", "tier": "PRO"}`, i)
		m.awaitLimit(k.id(), "100000000/1m")
		s.keys = append(s.keys, k.Key)
	}
	c.reload(s.site(0)) // with tiers
	s.run(t, c)
}

// A site that moves to another Redis fails no request, begins there anew, and lets
// the old one go.
func TestAnotherRedisIsMovedToCleanly(t *testing.T) {
	t.Parallel()
	servers := [2]*testserver.Redis{testserver.NewRedis(t), testserver.NewRedis(t)}
	s := &soak{}
	for i, server := range servers {
		s.settings[i] = "backend redis " + server.URL() + " {\ntimeout 10s\n}"
	}
	old := inspect(t, servers[0])
	c := startCaddy(t, s.site(0))
	c.get("/", with("X-Client", "mover")).wantStatus(t, 200)

	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if a, err := c.try("/", with("X-Client", fmt.Sprint(i))); err != nil || a.status != 200 {
					t.Errorf("client %d, request %d: got %d (%v)", i, n+1, a.status, err)
					return
				}
			}
		})
	}
	c.reload(s.site(1))
	if left := c.get("/", with("X-Client", "mover")).remaining(t, "always"); left != 99_999_999 {
		t.Errorf("%d are left after the move, want all but one", left)
	}
	eventually(t, "the old server has no client any more", func() bool {
		list, err := old.ClientList(t.Context()).Result()
		return err == nil && strings.Count(list, "\n") == 1
	})
	close(stop)
	wg.Wait()
	if lines := c.log.lines("did not decide"); len(lines) > 0 {
		t.Errorf("a request was decided without Redis: %s", lines[0])
	}
}
