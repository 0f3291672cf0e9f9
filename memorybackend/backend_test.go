package memorybackend

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/goleak"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// All tests together leave no goroutine and no store in the pool.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(), goleak.Cleanup(func(code int) {
		if n, ok := stores.References(storeKey); ok {
			fmt.Fprintf(os.Stderr, "the tests left a store with %d references in the pool\n", n)
			code = 1
		}
		os.Exit(code)
	}))
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

func references(t *testing.T) int {
	t.Helper()
	n, _ := stores.References(storeKey)
	return n
}

func TestCountersSurviveAThousandReloadsAndNothingElseStays(t *testing.T) {
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
	if n := references(t); n != 1 {
		t.Errorf("the store has %d references, want 1", n)
	}
	old.cancel()
	if n := references(t); n != 0 {
		t.Errorf("after the last configuration the store has %d references", n)
	}
	if d := run(t, `{}`).ask(t, "client", r, 0); d.Remaining != 2000 {
		t.Errorf("a new start finds %d units left, want all 2000", d.Remaining)
	}
}

// Caddy calls Cleanup after a Provision that failed; caddy-ratelimit lost its
// counters that way.
func TestAFailedReloadChangesNothing(t *testing.T) {
	r := limit(t, "10/1h")
	running := run(t, `{"max_keys": 500}`)
	running.ask(t, "client", r, 4)
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
	if n := references(t); n != 1 {
		t.Errorf("the store has %d references, want 1", n)
	}
	if d := running.ask(t, "client", r, 0); d.Remaining != 6 {
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

func TestTheBoundIsAMillionUnlessSaid(t *testing.T) {
	for _, json := range []string{`{}`, `{"max_keys": 0}`} {
		c := run(t, json)
		if n := c.maxKeys(); n != 1_000_000 {
			t.Errorf("%s: max_keys %d, want 1000000", json, n)
		}
		c.cancel()
	}
}

func TestCleanupReleasesOnce(t *testing.T) {
	running := run(t, `{}`)
	other := run(t, `{}`)
	for range 3 {
		if err := other.Cleanup(); err != nil {
			t.Fatal(err)
		}
	}
	if err := new(Backend).Cleanup(); err != nil {
		t.Fatal(err)
	}
	if n := references(t); n != 1 {
		t.Errorf("the store has %d references, want the one of the running configuration", n)
	}
	if d := running.ask(t, "client", limit(t, "10/1h"), 1); d.Remaining != 9 {
		t.Errorf("%d units are left, want 9", d.Remaining)
	}
}

// Caddy cleans a configuration up while the last requests of it may still run.
func TestARequestThatOutlivesItsConfigurationIsStillDecided(t *testing.T) {
	c := run(t, `{}`)
	c.cancel()
	if d := c.ask(t, "client", limit(t, "10/1h"), 1); !d.Allowed {
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
