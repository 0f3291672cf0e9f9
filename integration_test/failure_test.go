package integration_test

import (
	"fmt"
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

// tripLines are the error lines of a breaker that has opened.
func tripLines(c *caddy) []string { return c.log.lines(`"level":"error"`, "redis") }

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
			c := startCaddy(t, modes, impatient(server))
			c.get("/local").wantStatus(t, 200)
			for outage := 1; outage <= 2; outage++ {
				breakIt(t, server)
				eventually(t, "the outage is noticed", func() bool {
					c.get("/open", from("203.0.113.7")).wantStatus(t, 200)
					return len(tripLines(c)) == outage
				})
				c.sequence(40, "/open", from("203.0.113.7")).want(t, tally{200: 40})
				if lines := tripLines(c); len(lines) != outage {
					t.Fatalf("%d error lines after outage %d, want one each:\n%s", len(lines), outage, strings.Join(lines, ""))
				}
				revive(t, server, name)
				eventually(t, "decisions come from Redis again", backendUp(t, c, server))
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
	c := startCaddy(t, modes, impatient(server))
	c.sequence(5, "/local").want(t, tally{200: 3, 429: 2})
	c.get("/closed").wantStatus(t, 503)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "decisions come from Redis", backendUp(t, c, server))
	eventually(t, "what must not be decided without Redis is decided", func() bool { return c.get("/closed").status == 200 })
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
