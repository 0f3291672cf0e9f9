package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// modes is a site with one path for each failure mode.
const modes = trusting + `
:{$PORT} {
	rate_limit /open {
		zone open {
			limit 3/1d
		}
		on_error open
	}
	rate_limit /closed {
		zone closed {
			limit 3/1d
			on_error closed
		}
	}
	rate_limit /local {
		zone local {
			limit 3/1d
		}
	}
	rate_limit /both {
		zone lax {
			limit 3/1d
			on_error open
		}
		zone strict {
			limit 5/1d
			on_error local
		}
	}
	rate_limit /strict {
		zone lenient {
			limit 30/1d
			on_error open
		}
		zone firm {
			limit 30/1d
			on_error closed
		}
	}
	rate_limit /shadow {
		zone watching {
			limit 3/1d
			on_error closed
			mode shadow
		}
	}
	respond "welcome"
}`

// broken breaks a server in two ways: it is gone, or it stands still.
var broken = map[string]func(*testing.T, *testserver.Redis){
	"killed": func(_ *testing.T, server *testserver.Redis) { server.Kill() },
	"paused": func(t *testing.T, server *testserver.Redis) {
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
	},
}

// impatient is a backend whose deadline is short enough for tests to wait it out.
func impatient(server *testserver.Redis) string { return redisBackend(server, "timeout 100ms") }

func TestEachLimitDoesWhatItsOnErrorSaysWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	for name, breakIt := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.NewRedis(t)
			c := startCaddy(t, modes, impatient(server))
			c.get("/local", from("203.0.113.1")).wantStatus(t, 200)
			breakIt(t, server)

			c.sequence(10, "/open").want(t, tally{200: 10})
			c.sequence(10, "/closed").want(t, tally{503: 10})
			c.sequence(10, "/local").want(t, tally{200: 3, 429: 7})
			c.sequence(10, "/both").want(t, tally{200: 5, 429: 5})
			c.sequence(10, "/strict").want(t, tally{503: 10})
			c.sequence(10, "/shadow").want(t, tally{200: 10})

			a := c.get("/closed")
			p := a.wantProblem(t, 503, "rate_limit_unavailable", "closed")
			if wait := a.number(t, "Retry-After"); wait < 1 || p.RetryAfter != wait {
				t.Errorf("Retry-After: got %d, and %d in the body", wait, p.RetryAfter)
			}
			c.get("/local").wantProblem(t, 429, "rate_limited", "local")
		})
	}
}

func TestConcurrentRequestsWhileRedisIsAwayAreCountedExactlyInTheProcess(t *testing.T) {
	t.Parallel()
	for name, breakIt := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.NewRedis(t)
			c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit 10/1d login
	respond "welcome"
}`, impatient(server))
			breakIt(t, server)
			burst(t, 60, "/", nil, c).want(t, tally{200: 10, 429: 50})
		})
	}
}

// steady is a backend whose deadline no healthy test on a busy machine reaches: each
// outage is one that the test has made.
func steady(server *testserver.Redis) string { return redisBackend(server, "timeout 10s") }

// tripLines are the error lines of a breaker that has opened.
func tripLines(c *caddy) []string { return c.log.lines(`"level":"error"`, "redis") }

// isDown reports whether the outage that was logged last has not ended. With a short
// deadline a busy machine may have made some of its own.
func isDown(c *caddy) bool { return len(tripLines(c)) > len(c.log.lines("redis is back")) }

// backendUp reports whether decisions come from Redis again: the bucket of a
// client that was never seen before is stored there.
func backendUp(t *testing.T, c *caddy, server *testserver.Redis) func() bool {
	looker := inspect(t, server)
	next := 0
	return func() bool {
		next++
		client := fmt.Sprintf("198.51.%d.%d", next/250, next%250)
		c.get("/local", from(client)).wantStatus(t, 200)
		n, err := looker.Exists(t.Context(), "ratelimit:{"+client+"}:local").Result()
		return err == nil && n == 1
	}
}

func TestAnOutageIsLoggedOnceAndEndsByItself(t *testing.T) {
	t.Parallel()
	for name, breakIt := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.NewRedis(t)
			backend := steady(server)
			if name == "paused" {
				backend = impatient(server)
			}
			c := startCaddy(t, modes, backend)
			c.get("/local").wantStatus(t, 200)
			for range 2 {
				breakIt(t, server)
				eventually(t, "the outage is noticed", func() bool {
					c.get("/open", from("203.0.113.7")).wantStatus(t, 200)
					return isDown(c)
				})
				before := len(tripLines(c))
				c.sequence(40, "/open", from("203.0.113.7")).want(t, tally{200: 40})
				if lines := tripLines(c); len(lines) != before {
					t.Fatalf("%d error lines, before 40 requests %d:\n%s", len(lines), before, strings.Join(lines, ""))
				}
				revive(t, server, name)
				eventually(t, "decisions come from Redis again", backendUp(t, c, server))
				eventually(t, "the end is logged", func() bool { return !isDown(c) })
			}
			if lines := tripLines(c); backend == steady(server) && len(lines) != 2 {
				t.Errorf("%d error lines after two outages:\n%s", len(lines), strings.Join(lines, ""))
			}
		})
	}
}

func revive(t *testing.T, server *testserver.Redis, how string) {
	t.Helper()
	restore := server.Restart
	if how == "paused" {
		restore = server.Resume
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
}

// Once the breaker is open, an outage costs no request the deadline: forty
// requests would wait 20 seconds.
func TestAnOutageCostsNoRequestTheDeadline(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	c := startCaddy(t, modes, redisBackend(server, "timeout 500ms"))
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the outage is noticed", func() bool {
		c.get("/open").wantStatus(t, 200)
		return len(tripLines(c)) > 0
	})
	start := time.Now()
	c.sequence(40, "/open").want(t, tally{200: 40})
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("40 requests took %s", took)
	}
}

func TestCaddyStartsWithoutRedisAndFindsItLater(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	server.Kill()
	c := startCaddy(t, modes, steady(server))
	c.sequence(5, "/local").want(t, tally{200: 3, 429: 2})
	c.get("/closed").wantStatus(t, 503)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "decisions come from Redis", backendUp(t, c, server))
	eventually(t, "what must not be decided without Redis is decided", func() bool { return c.get("/closed").status == 200 })
	if lines := tripLines(c); len(lines) != 1 {
		t.Errorf("%d error lines, want one:\n%s", len(lines), strings.Join(lines, ""))
	}
}

// Nothing is there that Caddy asks: it starts, says of each once that it is missing,
// and finds both when they come.
func TestCaddyStartsWithoutRedisAndWithoutPostgresAndFindsBothLater(t *testing.T) {
	t.Parallel()
	pg, server := testserver.NewPostgres(t), testserver.NewRedis(t)
	url := pg.NewDatabase(t)
	pg.Kill()
	server.Kill()
	c := startCaddy(t, managed, postgresProvider(url, "cache_ttl 1s"), steady(server))
	awaitHealth(c, 503)
	c.get("/").wantStatus(t, 200).wantNumber(t, "X-RateLimit-Limit", 30) // the strictest built-in limit
	eventually(t, "both are said to be missing", func() bool {
		return len(tripLines(c)) == 1 && len(c.log.lines(`"level":"error"`, "strictest built-in limit")) == 1
	})
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := pg.Restart(); err != nil {
		t.Fatal(err)
	}
	awaitHealth(c, 200)
	k := manage(c).create("/api-keys", `{"client": "acme", "tier": "ENTERPRISE"}`)
	(&stage{t: t, there: c}).awaitTier(k.Key, "ENTERPRISE")
	eventually(t, "buckets are in Redis", func() bool {
		c.get("/", apiKey(k.Key)).wantStatus(t, 200)
		return slices.Contains(storedKeys(t, inspect(t, server)), "ratelimit:{k_"+k.id()+"}:global")
	})
	for _, text := range []string{"redis is unavailable", "postgres is unavailable", "strictest built-in limit"} {
		if lines := c.log.lines(`"level":"error"`, text); len(lines) != 1 {
			t.Errorf("%d errors say %s, want one", len(lines), text)
		}
	}
}

// The counters are those of the new server from the first request on; a request that
// the old one is asked about when the configuration changes is answered by it.
func TestAReloadMovesOverToAnotherRedis(t *testing.T) {
	t.Parallel()
	old, next := testserver.NewPatient(t), testserver.NewRedis(t)
	at := func(url string) string {
		return strings.ReplaceAll(patientSite("10s"), "{$BACKEND:memory}", "redis "+url+" {\n timeout 10s\n }\n")
	}
	c := startCaddy(t, at(old.URL()))
	c.get("/closed").wantStatus(t, 200).wantNumber(t, "X-RateLimit-Remaining", 999)
	old.Proxy.Blackhole(true)
	received := old.Proxy.Received()
	before := c.inFlight("/closed")
	eventually(t, "a call is on its way to the old server", func() bool { return old.Proxy.Received() > received })

	reloaded := make(chan string)
	go func() { reloaded <- c.load(at(next.URL())) }()
	eventually(t, "the new server is there", func() bool { return connectedClients(t, next) > 1 })
	eventually(t, "it decides", func() bool {
		c.get("/closed", from("203.0.113.7"))
		return len(storedKeys(t, inspect(t, next))) > 0
	})
	old.Proxy.Blackhole(false)
	if problem := <-reloaded; problem != "" {
		t.Fatal(problem)
	}
	if status := before(); status != 200 {
		t.Errorf("the request in between was answered %d", status)
	}
	eventually(t, "the connections to the old server are closed", func() bool { return connectedClients(t, old.Redis) == 1 })
}

// Redis comes back empty after a crash: the scripts must be brought again.
func TestARestartOfRedisReachesNoClient(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	c := startCaddy(t, modes, redisBackend(server))
	c.get("/closed").wantStatus(t, 200)
	if err := inspect(t, server).ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	c.sequence(4, "/closed").want(t, tally{200: 2, 429: 2})
}

// A configuration may change while Redis is away, and the counters of the
// process are kept.
func TestAReloadDuringAnOutageKeepsWhatTheProcessCounted(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	c := startCaddy(t, modes, impatient(server))
	server.Kill()
	c.sequence(2, "/local").want(t, tally{200: 2})
	c.reload(modes)
	c.sequence(3, "/local").want(t, tally{200: 1, 429: 2})
}

func TestTiersFollowOnErrorOfTheirPolicyElseOfTheHandler(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	c := startCaddy(t, `
{
	rate_limit {
		backend {$BACKEND}
		provider static {
			tier anonymous {
				policy * 100/1d
				policy /closed 100/1d on_error closed
				policy /open 1/1d on_error open
			}
		}
	}
}
:{$PORT} {
	rate_limit {
		tiers
		on_error open
	}
	respond "welcome"
}`, impatient(server))
	server.Kill()
	c.sequence(5, "/").want(t, tally{200: 5})
	c.sequence(5, "/open").want(t, tally{200: 5})
	c.sequence(5, "/closed").want(t, tally{503: 5})
}

func TestThePasswordOfRedisComesFromTheEnvironmentAndStaysSecret(t *testing.T) {
	t.Parallel()
	const password = "s3cr3t-of-redis"
	server := testserver.NewRedis(t, "--requirepass", password)
	for given, want := range map[string]int{password: 200, "wr0ng-" + password: 503} {
		c := startCaddy(t, "{\n debug\n"+strings.TrimPrefix(modes, "\n{\n"),
			redisBackend(server, "timeout 10s", "password {env.REDIS_PASSWORD}"), "REDIS_PASSWORD="+given)
		a := c.get("/closed").wantStatus(t, want)
		c.stop()
		if told := a.body + c.log.String(); strings.Contains(told, password) {
			t.Errorf("the password is told")
		}
	}
}

// Redis that dies under load is noticed by nobody but the operator: each
// request is decided, by Redis before and by the process after.
func TestRedisThatDiesDuringABurstFailsNoRequest(t *testing.T) {
	t.Parallel()
	for name, breakIt := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.NewRedis(t)
			c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit 10/1d login
	respond "welcome"
}`, impatient(server))
			c.get("/").wantStatus(t, 200)
			counted := make(chan tally)
			go func() { counted <- burst(t, 300, "/", nil, c) }()
			breakIt(t, server)
			count := <-counted
			// at most what Redis gave and, after it, what the process gave
			if passed := count[200]; passed < 9 || passed > 19 || passed+count[429] != 300 {
				t.Errorf("answers by status: %v, want 9 to 19 to pass and the others refused", count)
			}
		})
	}
}

// What the section "What local can admit" of docs/failure-modes.md says, with two
// instances and a limit of three.
func TestTheSwitchToLocalAdmitsWhatIsSaidOfIt(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	site := strings.Replace(modes, "\n{\n", "\n{\n\tdebug\n", 1)
	one, other := startCaddy(t, site, steady(server)), startCaddy(t, site, steady(server))
	for _, c := range []*caddy{one, other} {
		eventually(t, "decisions come from Redis", backendUp(t, c, server))
	}
	known, shared, fresh := from("203.0.113.1"), from("203.0.113.2"), from("203.0.113.3")
	one.sequence(5, "/local", known).want(t, tally{200: 3, 429: 2})
	one.sequence(1, "/local", shared).want(t, tally{200: 1})
	other.sequence(1, "/local", shared).want(t, tally{200: 1})
	server.Kill()
	for _, c := range []*caddy{one, other} {
		eventually(t, "the outage is noticed", func() bool { c.get("/open"); return len(tripLines(c)) == 1 })
	}

	one.sequence(3, "/local", known).want(t, tally{429: 3})           // goes on where Redis stood
	other.sequence(5, "/local", known).want(t, tally{200: 3, 429: 2}) // was never told of it
	one.sequence(5, "/local", shared).want(t, tally{200: 2, 429: 3})  // heard of one used
	other.sequence(5, "/local", shared).want(t, tally{200: 1, 429: 4})
	for _, c := range []*caddy{one, other} { // each gives the limit
		c.sequence(5, "/local", fresh).want(t, tally{200: 3, 429: 2})
	}

	if err := server.Restart(); err != nil { // empty
		t.Fatal(err)
	}
	for _, c := range []*caddy{one, other} {
		eventually(t, "decisions come from Redis again", backendUp(t, c, server))
	}
	count := one.sequence(5, "/local", fresh)
	if count[200] != 3 { // Redis was not told what was counted meanwhile
		t.Errorf("after the return: %v, want one limit more", count)
	}
}
