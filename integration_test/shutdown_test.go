package integration_test

import (
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// patientSite is a site with a bucket that lets requests wait for their turn, and
// with others that ask Redis.
func patientSite(graceful string) string {
	return `
{
	grace_period ` + graceful + `
	rate_limit {
		backend {$BACKEND:memory}
	}
}
:{$PORT} {
	rate_limit /turn {
		zone turn {
			limit 1/2s
			algorithm leaky_bucket
			max_delay 10m
		}
	}
	rate_limit /closed {
		zone closed {
			limit 1000/1d
			on_error closed
		}
	}
	rate_limit /local {
		zone local {
			limit 1000/1d
		}
	}
	respond "welcome"
}`
}

// inFlight sends a request in the background and returns how to wait for its
// answer: its status, or 0 if there was none.
func (c *caddy) inFlight(path string) (answered func() int) {
	status := make(chan int, 1)
	go func() {
		resp, err := c.client.Get("http://" + c.addr() + path)
		if err != nil {
			status <- 0
			return
		}
		resp.Body.Close()
		status <- resp.StatusCode
	}()
	return sync.OnceValue(func() int { return <-status })
}

// serving is on the stack of every request that is being decided.
const serving = "ratelimit.(*Handler).ServeHTTP"

// terminate asks the process to end, as an operator does.
func (c *caddy) terminate() {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
}

// awaitEnd waits until the process has ended by itself, and returns when it did.
func (c *caddy) awaitEnd() time.Time {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Fatal("Caddy does not end")
	}
	return time.Now()
}

// Requests that wait for Redis when the process is asked to end are decided: by
// Redis, or without it as on_error says.
func TestRequestsThatWaitForRedisAreDecidedBeforeTheProcessEnds(t *testing.T) {
	t.Parallel()
	p := testserver.NewPatient(t)
	c := startCaddy(t, patientSite("20s"), "BACKEND=redis "+p.URL()+" {\n timeout 3s\n }\n")
	eventually(t, "decisions come from Redis", func() bool { return c.get("/closed").status == 200 })
	p.Proxy.Blackhole(true)
	closed, local := c.inFlight("/closed"), c.inFlight("/local")
	eventually(t, "both wait for Redis", func() bool { return c.goroutinesIn(serving) == 2 })
	c.terminate()
	if got := [2]int{closed(), local()}; got != [2]int{http.StatusServiceUnavailable, http.StatusOK} {
		t.Errorf("answered %v", got)
	}
	c.awaitEnd()
	if lines := c.log.lines(`"level":"error"`, "aborting"); len(lines) > 0 {
		t.Errorf("logged %v", lines)
	}
}

// An answer of Redis that is on its way still arrives.
func TestAnAnswerOfRedisThatIsOnItsWayIsTheDecision(t *testing.T) {
	t.Parallel()
	p := testserver.NewPatient(t)
	c := startCaddy(t, patientSite("20s"), "BACKEND=redis "+p.URL()+" {\n timeout 10s\n }\n")
	eventually(t, "decisions come from Redis", func() bool { return c.get("/closed").status == 200 })
	p.Proxy.Blackhole(true)
	received := p.Proxy.Received()
	closed := c.inFlight("/closed")
	eventually(t, "its call is on the way", func() bool { return p.Proxy.Received() > received })
	c.terminate()
	eventually(t, "the process is ending", func() bool { return len(c.log.lines("shutting down")) > 0 })
	p.Proxy.Blackhole(false)
	if status := closed(); status != http.StatusOK {
		t.Errorf("answered %d", status)
	}
	c.awaitEnd()
}

// A request that waits for its turn gets it, if the turn comes within the grace
// period; one whose turn is later does not keep the process.
func TestRequestsThatWaitForTheirTurnGetItWithinTheGracePeriod(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		grace  string
		before int // requests ahead of the last one
		status int // of the last one
	}{
		{"60s", 1, http.StatusOK},
		{"1s", 60, 0},
	} {
		t.Run(tt.grace, func(t *testing.T) {
			t.Parallel()
			c := startCaddy(t, patientSite(tt.grace))
			for range tt.before {
				c.inFlight("/turn")
			}
			eventually(t, "those ahead are counted", func() bool { return c.goroutinesIn("ratelimit.wait") >= tt.before-1 })
			last := c.inFlight("/turn")
			eventually(t, "the last one waits", func() bool { return c.goroutinesIn("ratelimit.wait") >= tt.before })
			c.terminate()
			if status := last(); status != tt.status {
				t.Errorf("the last one was answered %d, want %d", status, tt.status)
			}
			c.awaitEnd()
		})
	}
}

// A Redis that does not answer keeps no process from ending, with or without an
// outage that is known.
func TestARedisThatStandsStillKeepsNoProcessFromEnding(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	c := startCaddy(t, modes, impatient(server))
	c.get("/local").wantStatus(t, 200)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	burst(t, 50, "/local", nil, c)
	c.terminate()
	c.awaitEnd()
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its connections are closed", func() bool { return connectedClients(t, server) == 1 })
}
