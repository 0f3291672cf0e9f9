package memorybackend

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/goleak"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// All tests together leave no goroutine.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

// config is a loaded configuration with a memory backend in it.
type config struct {
	*Backend
	cancel context.CancelFunc
}

// load does what Caddy does with a configuration up to running it.
func load(t *testing.T, json string) (config, error) {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	module, err := ctx.LoadModuleByID("rate_limit.backends.memory", []byte(json))
	if err != nil {
		cancel()
		return config{}, err
	}
	c := config{module.(*Backend), cancel}
	t.Cleanup(c.cancel)
	return c, nil
}

// run loads a configuration and starts it.
func run(t *testing.T, json string) config {
	t.Helper()
	c, err := load(t, json)
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c config) ask(t *testing.T, identity string, r *policy.Rule, cost int64) policy.Decision {
	t.Helper()
	decisions := make([]policy.Decision, 1)
	if err := c.Take(t.Context(), request(identity, r, cost), decisions); err != nil {
		t.Fatal(err)
	}
	return decisions[0]
}

func (c config) maxKeys() int {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	return c.store.maxKeys
}

func TestCountersSurviveAThousandReloadsAndAConfigurationWithoutLimits(t *testing.T) {
	r := limit(t, "2000/366d") // a unit takes four hours
	old := run(t, `{}`)
	for i := range int64(1000) {
		next := run(t, `{"max_keys": `+[]string{"10", "1000000", "5000"}[i%3]+`}`)
		old.cancel()
		old = next
		if d := old.ask(t, "client", r, 1); d.Remaining != 1999-i {
			t.Fatalf("after %d reloads %d units are left, want %d", i+1, d.Remaining, 1999-i)
		}
	}
	old.cancel()
	if d := run(t, `{}`).ask(t, "client", r, 0); d.Remaining != 1000 {
		t.Errorf("after a configuration without limits %d units are left, want 1000", d.Remaining)
	}
}

// Caddy calls Cleanup after a Provision that failed; caddy-ratelimit lost its
// counters that way.
func TestAFailedReloadChangesNothing(t *testing.T) {
	r := limit(t, "10/1h")
	running := run(t, `{"max_keys": 500}`)
	running.ask(t, "failed reload", r, 4)
	_, err := load(t, `{"max_keys": -1}`)
	const want = "memory backend: max_keys -1 would keep no counters and so switch every limit off; write a whole number from 1, or leave it out for 1000000"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("max_keys -1: got error %v, want %s", err, want)
	}
	half, err := load(t, `{"max_keys": 7}`) // another module of it fails
	if err != nil {
		t.Fatal(err)
	}
	if n := running.maxKeys(); n != 500 {
		t.Errorf("a configuration that does not run yet made max_keys %d, want 500", n)
	}
	half.cancel()
	if d := running.ask(t, "failed reload", r, 0); d.Remaining != 6 {
		t.Errorf("%d units are left, want 6", d.Remaining)
	}
}

func TestANewBoundTakesEffectOnceTheConfigurationRuns(t *testing.T) {
	running := run(t, `{"max_keys": 500}`)
	next, err := load(t, `{"max_keys": 700}`)
	if err != nil {
		t.Fatal(err)
	}
	if n := running.maxKeys(); n != 500 {
		t.Errorf("before the start: max_keys %d, want 500", n)
	}
	if err := next.Start(); err != nil {
		t.Fatal(err)
	}
	if n := running.maxKeys(); n != 700 {
		t.Errorf("after the start: max_keys %d, want 700", n)
	}
}

// A configuration may fail to start after this part of it has, as when a port is
// taken.
func TestASmallerBoundWaitsUntilTheOtherConfigurationHasEnded(t *testing.T) {
	old := run(t, `{"max_keys": 500}`)
	failing := run(t, `{"max_keys": 7}`)
	if n := old.maxKeys(); n != 500 {
		t.Errorf("while both run: max_keys %d, want 500", n)
	}
	failing.cancel()
	if n := old.maxKeys(); n != 500 {
		t.Errorf("after the new one has failed: max_keys %d, want 500", n)
	}
	next := run(t, `{"max_keys": 7}`)
	old.cancel()
	if n := next.maxKeys(); n != 7 {
		t.Errorf("after the old one has ended: max_keys %d, want 7", n)
	}
}

func TestTheBoundIsAMillionUnlessSaid(t *testing.T) {
	for _, json := range []string{`{}`, `{"max_keys": 0}`} {
		c := run(t, json)
		if n := c.maxKeys(); n != 1_000_000 {
			t.Errorf("%s: max_keys %d, want 1000000", json, n)
		}
		c.cancel()
	}
}

func TestAResetBucketIsAsIfNeverSeen(t *testing.T) {
	r := limit(t, "10/1h")
	c := run(t, `{}`)
	c.ask(t, "reset", r, 10)
	c.ask(t, "kept", r, 10)
	if err := c.Reset(t.Context(), append(request("reset", r, 1), request("never seen", r, 1)...)); err != nil {
		t.Fatal(err)
	}
	if d := c.ask(t, "reset", r, 10); !d.Allowed {
		t.Errorf("after the reset: %+v", d)
	}
	if d := c.ask(t, "kept", r, 1); d.Allowed {
		t.Errorf("the other bucket: %+v", d)
	}
}

// Caddy cleans a configuration up while the last requests of it may still run.
func TestARequestThatOutlivesItsConfigurationIsStillDecided(t *testing.T) {
	c := run(t, `{}`)
	c.cancel()
	if d := c.ask(t, "outlives", limit(t, "10/1h"), 1); !d.Allowed {
		t.Errorf("got %+v", d)
	}
}

func TestTheClockIsTheWallClockAndNeverStepsBack(t *testing.T) {
	if ahead := Now() - time.Now().UnixMicro(); ahead < -second || ahead > second {
		t.Errorf("the clock differs from the wall clock by %d µs", ahead)
	}
	last := Now()
	for range 100_000 {
		now := Now()
		if now < last {
			t.Fatalf("the clock stepped back by %d µs", last-now)
		}
		last = now
	}
	for deadline := time.Now().Add(5 * time.Second); Now() == last; {
		if time.Now().After(deadline) {
			t.Fatal("the clock stands still")
		}
	}
}
