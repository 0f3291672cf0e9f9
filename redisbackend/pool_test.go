package redisbackend_test

import (
	"context"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// These tests look at what all clients of the process share, so they do not run
// beside others.

// load provisions a backend as Caddy does, and returns how it is unloaded.
func load(t *testing.T, b *redisbackend.Backend) (unload func(), err error) {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	err = b.Provision(ctx)
	b.SetLogger(zap.NewNop())
	b.SetLinger(0)
	return func() {
		cancel()
		if err := b.Cleanup(); err != nil {
			t.Error(err)
		}
	}, err
}

func TestAReloadKeepsTheConnectionsAndAThousandLeaveNothingBehind(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := testserver.NewRedis(t)
	defer s.Stop()
	clientsBefore := redisbackend.Clients()
	current := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	unload, err := load(t, current)
	if err != nil {
		t.Fatal(err)
	}
	mustTake(t, current, bucket(t, "ip", "10000/366d"))
	for i := range 1000 {
		next := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, KeyPrefix: "ratelimit"}
		unloadNext, err := load(t, next)
		if err != nil {
			t.Fatal(err)
		}
		if !next.SameClient(current) || next.References() != 2 {
			t.Fatalf("reload %d: another client, or %d references", i, next.References())
		}
		if err := next.Start(); err != nil {
			t.Fatal(err)
		}
		unload()
		current, unload = next, unloadNext
	}
	if d := mustTake(t, current, bucket(t, "ip", "10000/366d")); d[0].Remaining != 9998 {
		t.Errorf("%d remain after the reloads", d[0].Remaining)
	}
	unload()
	unload() // Caddy may clean up twice
	if n := redisbackend.Clients(); n != clientsBefore {
		t.Errorf("there are %d clients, before %d", n, clientsBefore)
	}
}

func TestOnlyWhatShapesAClientMakesAnother(t *testing.T) {
	const url = "redis://localhost:1"
	base := &redisbackend.Backend{URLs: []string{url}}
	unload, err := load(t, base)
	if err != nil {
		t.Fatal(err)
	}
	defer unload()
	for name, tt := range map[string]struct {
		b    redisbackend.Backend
		same bool
	}{
		"a prefix and a timeout": {redisbackend.Backend{URLs: []string{url}, KeyPrefix: "x", Timeout: brief * 2}, true},
		"the defaults, written":  {redisbackend.Backend{URLs: []string{url}, MaxConnections: 8}, true},
		"a password":             {redisbackend.Backend{URLs: []string{url}, Password: "x"}, false},
		"a username":             {redisbackend.Backend{URLs: []string{"redis://u@localhost:1"}}, false},
		"a database":             {redisbackend.Backend{URLs: []string{url}, DB: 1}, false},
		"a database in the url":  {redisbackend.Backend{URLs: []string{url + "/1"}}, false},
		"a number":               {redisbackend.Backend{URLs: []string{url}, MaxConnections: 2}, false},
		"a server":               {redisbackend.Backend{URLs: []string{"redis://localhost:2"}}, false},
		"tls":                    {redisbackend.Backend{URLs: []string{"rediss://localhost:1"}}, false},
		"a sentinel":             {redisbackend.Backend{URLs: []string{url}, Sentinel: "m"}, false},
	} {
		unload, err := load(t, &tt.b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := tt.b.SameClient(base); got != tt.same {
			t.Errorf("%s: the same client is %t", name, got)
		}
		unload()
	}
}

func TestAFailedLoadLeavesNothingAndChangesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	before := redisbackend.Clients()
	for _, b := range []*redisbackend.Backend{
		{URLs: []string{"http://localhost"}},
		{URLs: []string{"rediss://localhost"}, TLS: &redisbackend.TLS{CA: "/no/such/file"}},
	} {
		unload, err := load(t, b)
		if err == nil {
			t.Errorf("%+v was accepted", b)
		}
		unload()
	}
	if n := redisbackend.Clients(); n != before {
		t.Errorf("there are %d clients, before %d", n, before)
	}
	if err := new(redisbackend.Backend).Cleanup(); err != nil {
		t.Errorf("cleaning up what was never provisioned: %v", err)
	}
}

// A configuration that starts and is then given up (another app of it failed)
// must leave the one that goes on running as it was.
func TestAConfigurationThatIsGivenUpHandsTheObserverBack(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	old := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	_, oldTold := start(t, old)
	abandoned := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	_, abandonedTold := start(t, abandoned)
	if err := abandoned.Cleanup(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	trip(t, old, bucket(t, "ip", "10/1m"))
	eventually(t, "the outage is told", oldTold.down)
	if n := len(abandonedTold.all()); n != 0 {
		t.Errorf("the configuration that was given up was told %d changes", n)
	}
}

func TestAConfigurationLearnsOfAnOutageThatIsAlreadyOn(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	old := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	_, oldTold := start(t, old)
	s.Kill()
	trip(t, old, bucket(t, "ip", "10/1m"))
	eventually(t, "the outage is told", oldTold.down)
	next := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	_, nextTold := start(t, next)
	if list := nextTold.all(); len(list) != 1 || list[0].Up {
		t.Errorf("told was %+v", list)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the recovery is told", nextTold.upAgain)
	if n := len(oldTold.all()); n != 1 {
		t.Errorf("the old configuration was told %d changes", n)
	}
}

// Caddy cleans a configuration up while requests of it are under way.
func TestRequestsOfAConfigurationThatWasReplacedAreStillDecided(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, MaxConnections: 6}
	start(t, b)
	b.SetLinger(200 * time.Millisecond)
	mustTake(t, b, bucket(t, "ip", "10/1d"))
	if err := b.Cleanup(); err != nil {
		t.Fatal(err)
	}
	if d := mustTake(t, b, bucket(t, "ip", "10/1d")); d[0].Remaining != 8 {
		t.Errorf("%d remain, want 8", d[0].Remaining)
	}
	eventually(t, "the client ends", func() bool {
		_, err := take(b, bucket(t, "ip", "10/1d"))
		return err != nil
	})
}

func TestATakeAfterTheEndIsAnError(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, MaxConnections: 7}
	unload, err := load(t, b)
	if err != nil {
		t.Fatal(err)
	}
	mustTake(t, b, bucket(t, "ip", "10/1m"))
	unload()
	wantText(t, mustFail(t, b, bucket(t, "ip", "10/1m")), "closed")
}

func TestAConfigurationThatIsCleanedUpTwiceTakesNobodysClient(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	one := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient})
	other := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient})
	for range 2 {
		if err := one.Cleanup(); err != nil {
			t.Fatal(err)
		}
	}
	if n := other.References(); n != 1 {
		t.Errorf("%d configurations hold the client, not 1", n)
	}
	mustTake(t, other, bucket(t, "ip", "10/1m"))
}
