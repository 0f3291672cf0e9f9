package redisbackend_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// ward is a backend and the server that a fault happens to.
type ward struct {
	*testserver.Patient
	t     *testing.T
	fault testserver.Fault
	b     *redisbackend.Backend
	told  *changes

	asked atomic.Int64 // clients that each asked once
}

const wardConnections = 6

func newWard(t *testing.T, fault testserver.Fault) *ward {
	w := &ward{Patient: testserver.NewPatient(t), t: t, fault: fault}
	w.b = &redisbackend.Backend{URLs: []string{w.URL()}, Timeout: timeoutFor(fault), MaxConnections: wardConnections}
	_, w.told = start(t, w.b)
	eventually(t, "the first answer", func() bool { _, err := take(w.b, bucket(t, "ip", "1000/366d")); return err == nil })
	w.crowd(100) // so that there are as many connections as there may be
	eventually(t, "a good start", w.b.Settled)
	return w
}

// timeoutFor is a timeout that tests of a fault run into only if it is to be noticed by
// that: of another one, nothing is to time out, on a busy machine, too.
func timeoutFor(fault testserver.Fault) caddy.Duration {
	if fault.Kind == "" || fault.Kind == "timeout" {
		return brief
	}
	return patient
}

// once is one unit of a limit of one, for a client that asks only once.
func (w *ward) once() policy.Bucket { return w.client(w.asked.Add(1)) }

func (w *ward) client(n int64) policy.Bucket {
	bk := bucket(w.t, "once", "2/366d")
	bk.Identity = policy.KeyIdentity(fmt.Sprint(n))
	return bk
}

// crowd lets clients ask all at once, and returns how many were not answered.
func (w *ward) crowd(clients int) int {
	var failures atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			if _, err := take(w.b, w.once()); err != nil {
				failures.Add(1)
			}
		})
	}
	wg.Wait()
	return int(failures.Load())
}

// contacts counts what has gone to the server: connections and chunks.
func (w *ward) contacts() int64 { return w.Proxy.Accepted() + w.Proxy.Received() }

// checkSilence checks that requests do not touch the server while it is down: of
// what goes there, the probes are all.
func (w *ward) checkSilence() {
	w.t.Helper()
	before, begin := w.contacts(), time.Now()
	const requests = 2000
	failures := w.crowd(requests)
	probes := int64(time.Since(begin)/redisbackend.ProbeInterval) + 2
	if w.b.Settled() {
		return // it has ended meanwhile, as a passing fault does
	}
	if !w.fault.Passing && failures != requests {
		w.t.Errorf("%d requests of %d failed", failures, requests)
	}
	if n := w.contacts() - before; n > 6*probes {
		w.t.Errorf("%d connections and commands for %d requests while the breaker was open, and at most %d probes", n, requests, probes)
	}
}

// checkChargedOnce checks that no client was charged more than once, whatever
// became of its call.
func (w *ward) checkChargedOnce() {
	w.t.Helper()
	r := connect(w.t, w.Redis)
	for n := int64(1); n <= w.asked.Load(); n++ {
		if key := "ratelimit:{" + w.client(n).Identity + "}:once"; r.Exists(w.t.Context(), key).Val() == 0 {
			continue
		}
		look := w.client(n)
		look.Cost = 2
		eventually(w.t, "a look", func() bool {
			d, err := take(w.b, look)
			if err == nil && d[0].Remaining != 1 {
				w.t.Fatalf("client %d was charged twice", n)
			}
			return err == nil
		})
	}
}

// Each row of the table in docs/failure-modes.md that is about the server or the
// network. A request waits at most for the timeout, none once the breaker is open,
// and the server's return is noticed without traffic and without a stampede.
func TestEveryFaultIsNoticedCostsLittleAndIsOverWhenItIsOver(t *testing.T) {
	t.Parallel()
	for _, fault := range testserver.Faults {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			w := newWard(t, fault)
			if err := fault.Begin(w.Patient); err != nil {
				t.Fatal(err)
			}
			dialed := w.Proxy.Accepted()
			passed := false // by itself, as a fault may that only cost connections
			eventually(t, "the breaker opens", func() bool {
				failures := w.crowd(20)
				up, _, _ := w.b.Health()
				passed = up && failures == 0 && fault.Passing
				return !up || passed
			})
			if passed {
				w.checkChargedOnce()
				return
			}
			eventually(t, "the outage is told", func() bool { return len(w.told.all()) > 0 })
			if down := w.told.all()[0]; down.Up || fault.Kind != "" && down.Kind != fault.Kind {
				t.Errorf("told was %+v of the kind %q, not %q", down, down.Kind, fault.Kind)
			}
			w.checkSilence()
			if n := w.Proxy.Accepted() - dialed; !fault.Passing && n > 200 {
				t.Errorf("%d connections were made while it was down", n)
			}

			dialed = w.Proxy.Accepted()
			if err := fault.End(w.Patient); err != nil {
				t.Fatal(err)
			}
			eventually(t, "recovery without traffic", w.b.Settled)
			w.crowd(500)
			if n := w.Proxy.Accepted() - dialed; n > 3*wardConnections {
				t.Errorf("%d connections were made at its return", n)
			}
			eventually(t, "everybody is answered again", func() bool { return w.crowd(5) == 0 })
			w.checkChargedOnce()
		})
	}
}

// Connections that lost their other end look as good as new, and calls wait at some
// of them. They are dropped when the breaker opens, so that after that none costs a
// probe or a request its timeout.
func TestConnectionsWithoutAnotherEndAreDroppedTogether(t *testing.T) {
	t.Parallel()
	w := newWard(t, testserver.Fault{Name: "half-open"})
	var asking sync.WaitGroup
	w.Proxy.Delay(time.Duration(brief) / 2)
	eventually(t, "enough connections to meet in a row", func() bool {
		asking.Go(func() { _, _ = take(w.b, w.once()) }) // while others wait for their answers
		return w.b.Connections() == wardConnections
	})
	w.Proxy.Delay(0)
	asking.Wait()
	eventually(t, "a good start", w.b.Settled)
	w.Proxy.Orphan()
	answers := 0 // in a row: a connection was made before enough of the old ones were met
	eventually(t, "the breaker opens", func() bool {
		if _, err := take(w.b, w.once()); err == nil { // one after the other, so that most connections stay idle
			answers++
		} else {
			answers = 0
		}
		up, _, _ := w.b.Health()
		return !up || answers == 100
	})
	if answers == 100 {
		return
	}
	before := w.Proxy.Received()
	eventually(t, "recovery", w.b.Settled)
	if n := w.Proxy.Received() - before; n > 6 {
		t.Errorf("%d commands until it was found back, after one probe without an answer at most", n)
	}
	if n := w.b.Connections(); n > 2 {
		t.Errorf("%d connections are kept, of which only the probe's has another end", n)
	}
	eventually(t, "everybody is answered again", func() bool { return w.crowd(5) == 0 })
}

// A server of another kind that speaks the same protocol is not taken for one
// that decides.
func TestRepliesOfAnotherShapeAreAnOutage(t *testing.T) {
	t.Parallel()
	p := testserver.NewPatient(t)
	b := &redisbackend.Backend{URLs: []string{p.URL()}, Timeout: patient}
	_, told := start(t, b)
	bk := bucket(t, "ip", "1000/1h")
	mustTake(t, b, bk)
	p.Proxy.Replace("$32\r\n", "$30\r\n")
	wantText(t, mustFail(t, b, bk), "the reply is not Redis's")
	trip(t, b, bk)
	stayDown(t, b)
	p.Proxy.Replace("", "")
	eventually(t, "recovery", b.Settled)
	if list := told.all(); list[0].Kind != "connection" {
		t.Errorf("told was %+v", list)
	}
}
