package redisbackend_test

import (
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// noticed are the faults that a server without traffic shows. That it cannot write, or
// not for this user, only a call finds out.
func noticed(fault testserver.Fault) bool {
	switch fault.Kind {
	case "timeout", "connection", "loading", "auth", "persistence", "":
		return !fault.Passing
	}
	return false
}

func TestAnOutageIsToldAlthoughNobodyAsks(t *testing.T) {
	t.Parallel()
	for _, fault := range testserver.Faults {
		if !noticed(fault) {
			continue
		}
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			p := testserver.NewPatient(t)
			b := &redisbackend.Backend{URLs: []string{p.URL()}, Timeout: timeoutFor(fault)}
			logs, told := start(t, b)
			r := connect(t, p.Redis)
			eventually(t, "the look is over", func() bool { return infoNumber(t, r, "number_of_cached_scripts") == 2 })
			if err := fault.Begin(p); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the outage is told", told.down)
			if up, _, err := b.Health(); up || err == nil {
				t.Errorf("health is %t, %v", up, err)
			}
			list := told.all()
			if down := list[len(list)-1]; fault.Kind != "" && down.Kind != fault.Kind {
				t.Errorf("the kind is %q: %v", down.Kind, down.Err)
			}
			if err := fault.End(p); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the recovery is told", told.upAgain)
			checkToldOnce(t, p.Proxy.Addr(), logs, told)
		})
	}
}

// A master is missed, whoever the others serve.
func TestAMasterThatNobodyAsksIsMissed(t *testing.T) {
	t.Parallel()
	nodes := testserver.NewCluster(t, 3)
	b := &redisbackend.Backend{Timeout: brief}
	for _, n := range nodes {
		b.URLs = append(b.URLs, n.URL())
	}
	_, told := start(t, b)
	for _, n := range nodes {
		r := connect(t, n)
		eventually(t, "the look is over", func() bool { return infoNumber(t, r, "number_of_cached_scripts") == 2 })
	}
	if err := nodes[1].Pause(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the outage is told", func() bool { return len(told.all()) > 0 })
	if down := told.all()[0]; down.Up || down.Address != nodes[1].Addr() {
		t.Errorf("told was %+v, not of %s", down, nodes[1].Addr())
	}
	if err := nodes[1].Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", b.Settled)
}

// Being looked after costs a server that works one ping a second, and none while it is
// asked.
func TestAnIdleServerIsPingedOnceASecondAndOneThatIsAskedNever(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}, connect(t, s)
	begun := time.Now()
	_, told := start(t, b)
	eventually(t, "two pings", func() bool { return calls(t, r, "ping") >= 3 }) // the first was the test server's
	if n, most := calls(t, r, "ping")-1, int(time.Since(begun)/time.Second); n > most {
		t.Errorf("%d pings in %d whole seconds", n, most)
	}
	if n := calls(t, r, "evalsha") + calls(t, r, "eval"); n > 0 {
		t.Errorf("%d scripts were run for nobody", n)
	}

	bk := bucket(t, "ip", "1000000/1h")
	mustTake(t, b, bk)
	before, begun := calls(t, r, "ping"), time.Now()
	for time.Since(begun) < 3*time.Second {
		asked := time.Now()
		mustTake(t, b, bk)
		if time.Since(asked) > 500*time.Millisecond { // the machine stood still
			before, begun = calls(t, r, "ping"), time.Now()
		}
	}
	if n := calls(t, r, "ping") - before; n > 1 { // one may have been on its way
		t.Errorf("%d pings of a server that was asked all the time", n)
	}
	if len(told.all()) > 0 {
		t.Errorf("told was %+v", told.all())
	}
}

// Who may not ping is answered that, and an answer is an answer.
func TestAUserWhoMayNotPingHasNoOutage(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	r := connect(t, s)
	if err := r.Do(t.Context(), "acl", "setuser", "default", "-ping").Err(); err != nil {
		t.Fatal(err)
	}
	b := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	_, told := start(t, b)
	eventually(t, "pings are refused", func() bool { return rejected(t, r, "ping") >= 3 })
	if up, _, err := b.Health(); !up || len(told.all()) > 0 {
		t.Errorf("health is %t, %v; told was %+v", up, err, told.all())
	}
}

// One request is too few to open the breaker, and a ping would not show what it met.
func TestAfterARequestThatFailedAnIdleServerIsAskedWhatItWasAsked(t *testing.T) {
	t.Parallel()
	p := testserver.NewPatient(t)
	b := &redisbackend.Backend{URLs: []string{p.URL()}, Timeout: patient}
	_, told := start(t, b)
	bk := bucket(t, "ip", "1000/1h")
	mustTake(t, b, bk)
	if err := p.Redis.Do("CONFIG SET maxmemory 1"); err != nil {
		t.Fatal(err)
	}
	mustFail(t, b, bk)
	eventually(t, "the outage is told", told.down)
	if kind := told.all()[0].Kind; kind != "memory" {
		t.Errorf("the kind is %q", kind)
	}
	if err := p.Redis.Do("CONFIG SET maxmemory 0"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", b.Settled)
}
