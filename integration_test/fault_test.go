package integration_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// observed is modes with an admin API on the second port, which tells health, and
// a log of events.
var observed = strings.Replace(modes, "\n{\n", "\n{\n\tdebug\n", 1) + `
:{$PORT2} {
	rate_limit_admin {
		jwt {
			secret ` + adminSecret + `
		}
	}
}`

// faulty is a Caddy whose Redis something happens to.
type faulty struct {
	*caddy
	*testserver.Patient
	t       *testing.T
	strict  bool // no outage but that which the test makes
	clients int
}

func startFaulty(t *testing.T, fault testserver.Fault) *faulty {
	p, timeout, strict := testserver.NewPatient(t), "10s", true // it objects: on a busy machine, too, nothing is to time out
	if fault.Kind == "" || fault.Kind == "timeout" {
		timeout, strict = "100ms", false
	}
	f := &faulty{t: t, Patient: p, strict: strict, caddy: startCaddy(t, observed, "BACKEND=redis "+p.URL()+" {\n timeout "+timeout+"\n }\n")}
	eventually(t, "decisions come from Redis", f.decides)
	return f
}

// newcomer is a client that was never seen before.
func (f *faulty) newcomer() option {
	f.clients++
	return from(fmt.Sprintf("198.51.%d.%d", f.clients/250, f.clients%250))
}

// decides reports whether Redis decides: for what may not be decided without it.
func (f *faulty) decides() bool { return f.get("/closed", f.newcomer()).status == 200 }

// events counts those that were emitted, in the log that Caddy keeps of them.
func (f *faulty) events(name string) int {
	return len(f.log.lines(`"logger":"events"`, `"msg":"event"`, `"name":"rate_limit.`+name+`"`, f.Proxy.Addr()))
}

// said counts the lines about Redis of a level.
func (f *faulty) said(level string) int {
	return len(f.log.lines(`"level":"`+level+`"`, `"logger":"rate_limit`, "redis "))
}

// telling is how often outages and their ends were emitted, and how often logged.
type telling struct{ downs, ups, errors, infos int }

func (f *faulty) told() telling {
	return telling{f.events("backend_down"), f.events("backend_up"), f.said("error"), f.said("info")}
}

// once reports whether each outage and each end was both emitted and logged.
func (n telling) once() bool { return n.errors == n.downs && n.infos == n.ups }

// wantModes checks what each mode does for clients who come for the first time
// while Redis does not decide.
func (f *faulty) wantModes() {
	f.t.Helper()
	f.sequence(6, "/open", f.newcomer()).want(f.t, tally{200: 6})
	f.sequence(6, "/local", f.newcomer()).want(f.t, tally{200: 3, 429: 3})
	f.sequence(6, "/closed", f.newcomer()).want(f.t, tally{503: 6})
	f.sequence(6, "/both", f.newcomer()).want(f.t, tally{200: 5, 429: 1}) // open drops out, local counts
	f.sequence(6, "/strict", f.newcomer()).want(f.t, tally{503: 6})       // closed wins over open
	f.sequence(6, "/shadow", f.newcomer()).want(f.t, tally{200: 6})
	a := f.get("/closed", f.newcomer())
	a.wantProblem(f.t, 503, "rate_limit_unavailable", "closed")
	if a.number(f.t, "Retry-After") < 1 {
		f.t.Error("Retry-After is less than a second")
	}
}

// wantQuiet checks that requests leave Redis alone, and that what they make is
// bounded, while the breaker is open.
func (f *faulty) wantQuiet() {
	f.t.Helper()
	goroutines, contacts := f.goroutines(), f.Proxy.Accepted()+f.Proxy.Received()
	const requests = 400
	burst(f.t, requests, "/open", []option{f.newcomer()}, f.caddy).want(f.t, tally{200: requests})
	if n := f.Proxy.Accepted() + f.Proxy.Received() - contacts; n >= requests/2 {
		f.t.Errorf("%d connections and commands for %d requests", n, requests)
	}
	if n := f.goroutines(); n > goroutines+100 {
		f.t.Errorf("%d goroutines, before the requests %d", n, goroutines)
	}
}

// The table of docs/failure-modes.md, seen from outside: what each mode does, what
// is logged and emitted, what healthz says, and that it ends by itself.
func TestEveryFaultOfRedisIsWhatTheTableOfFailureModesSays(t *testing.T) {
	t.Parallel()
	for _, fault := range testserver.Faults {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			f := startFaulty(t, fault)
			if fault.Passing {
				f.passes(fault)
				return
			}
			awaitHealth(f.caddy, 200)
			if err := fault.Begin(f.Patient); err != nil {
				t.Fatal(err)
			}
			f.wantModes()
			eventually(t, "the outage is emitted", func() bool {
				f.get("/open").wantStatus(t, 200)
				n := f.told()
				return n.once() && n.downs == n.ups+1
			})
			before := f.told()
			f.wantModes()
			f.wantQuiet()
			awaitHealth(f.caddy, 503)
			if n := f.told(); n != before || f.strict && n != (telling{downs: 1, errors: 1}) {
				t.Errorf("told is %+v during the outage, at its beginning %+v", n, before)
			}
			if fault.Kind != "" && len(f.log.lines(`"name":"rate_limit.backend_down"`, `"reason":"`+fault.Kind+`"`)) == 0 {
				t.Errorf("the reason is not %s", fault.Kind)
			}

			accepted := f.Proxy.Accepted()
			if err := fault.End(f.Patient); err != nil {
				t.Fatal(err)
			}
			awaitHealth(f.caddy, 200)
			eventually(t, "decisions come from Redis again", f.decides)
			f.wantRecovered(accepted)
		})
	}
}

// wantRecovered checks that a crowd is served after the outage without a
// connection for each, and that it was told once.
func (f *faulty) wantRecovered(accepted int64) {
	f.t.Helper()
	f.wantDecided(300)
	if n, outages := f.Proxy.Accepted()-accepted, int64(f.events("backend_down")); n > 40*outages {
		f.t.Errorf("%d connections were made at the return of Redis, after %d outages", n, outages)
	}
	eventually(f.t, "each outage and each end is emitted and logged", func() bool {
		n := f.told()
		return n.once() && n.downs == n.ups
	})
	if n := f.told(); f.strict && n != (telling{1, 1, 1, 1}) {
		f.t.Errorf("told is %+v, want one each", n)
	}
}

// wantDecided checks that requests are decided, by whomever: the limit is three.
func (f *faulty) wantDecided(requests int) {
	f.t.Helper()
	if count := burst(f.t, requests, "/open", []option{f.newcomer()}, f.caddy); count[200] < 3 || count[200]+count[429] != requests {
		f.t.Errorf("answers by status: %v", count)
	}
}

// passes checks a fault that ends in its own time: it fails nobody who is not
// closed, and is forgotten.
func (f *faulty) passes(fault testserver.Fault) {
	f.t.Helper()
	if err := fault.Begin(f.Patient); err != nil {
		f.t.Fatal(err)
	}
	f.wantDecided(200)
	awaitHealth(f.caddy, 200)
	eventually(f.t, "decisions come from Redis again", f.decides)
	eventually(f.t, "each outage and each end is emitted and logged", func() bool { return f.told().once() })
}

// Nobody sends a request, and yet an operator sees that Redis is away: health, the
// metric, the log, and the event. Health is asked often, and logged once.
func TestAnOutageWithoutRequestsIsSeenByTheOperator(t *testing.T) {
	t.Parallel()
	for name, breakIt := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.NewRedis(t)
			c := startCaddy(t, observed, redisBackend(server, "timeout 1s")) // a busy machine makes no outage of its own
			emitted := func(event string) int {
				return len(c.log.lines(`"logger":"events"`, `"msg":"event"`, `"name":"rate_limit.`+event+`"`, server.Addr()))
			}
			awaitHealth(c, 200)
			breakIt(t, server)
			awaitHealth(c, 503)
			for range 20 {
				manage(c).get("/healthz")
			}
			if got := c.metrics()["breaker_state{}"]; got < 1 {
				t.Errorf("breaker_state is %v", got)
			}
			eventually(t, "the outage is emitted", func() bool { return emitted("backend_down") == 1 })
			revive(t, server, name)
			awaitHealth(c, 200)
			eventually(t, "the recovery is emitted", func() bool { return emitted("backend_up") == 1 })
			for _, once := range [][]string{
				{`"level":"error"`, "redis"},
				{"redis is back"},
				{`"level":"warn"`, "the backend is not healthy"},
				{`"level":"info"`, "the backend is healthy again"},
			} {
				eventually(t, "it is logged", func() bool { return len(c.log.lines(once...)) > 0 })
				if lines := c.log.lines(once...); len(lines) != 1 {
					t.Errorf("%d lines with %q, want one: %v", len(lines), once, lines)
				}
			}
		})
	}
}

// Something else answers where Redis is said to be, and says what would fill the memory
// of who believes it, or sends it. Requests are decided without it, and the process
// lives, stays small and ends when it is told to.
func TestWhatAnswersInPlaceOfRedisDoesTheProcessNoHarm(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"a string without end":     "$99999999999\r\n",
		"a list without end":       "*2000000000\r\n",
		"a map without end":        "%2000000000\r\n",
		"a depth without bottom":   strings.Repeat("|1\r\n", 1<<20),
		"lists of lists":           strings.Repeat("*100000\r\n", 1000),
		"a long string that comes": "$16000000\r\n" + strings.Repeat("x", 16_000_000) + "\r\n",
		"a long error that comes":  "-ERR " + strings.Repeat("x", 15<<20) + "\r\n",
		"nothing":                  "*-1\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, greets := range []bool{false, true} {
				p := testserver.NewPretender(t, reply, greets)
				c := startCaddy(t, observed, "BACKEND=redis "+p.URL()+" {\n timeout 10s\n }\n")
				before := c.resident()
				c.sequence(6, "/local").want(t, tally{200: 3, 429: 3})
				c.sequence(6, "/closed").want(t, tally{503: 6})
				burst(t, 300, "/open", nil, c).want(t, tally{200: 300})
				awaitHealth(c, 503)
				if lines := tripLines(c); len(lines) != 1 || len(lines[0]) > 2000 {
					t.Errorf("%d errors are logged, want a short one", len(lines))
				}
				if grown := c.resident() - before; grown > 300<<20 {
					t.Errorf("the process has grown by %d MB", grown>>20)
				}
				c.terminate()
				c.awaitEnd()
			}
		})
	}
}
