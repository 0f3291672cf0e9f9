package redisbackend_test

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/conformance"
	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// pile makes calls wait together, in their order: it stops the servers, lets a first
// call occupy the only sender, and lets them go on when all calls wait behind it.
func pile(t *testing.T, b *redisbackend.Backend, servers []*testserver.Redis, calls ...func()) {
	t.Helper()
	pileSlots(t, b, servers, 1, calls...)
}

// pileSlots is pile for calls of requests whose buckets are in several slots.
func pileSlots(t *testing.T, b *redisbackend.Backend, servers []*testserver.Redis, slots int, calls ...func()) {
	t.Helper()
	for _, s := range servers {
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	blocker, before := bucket(t, "blocker", "1000000000/1h"), b.Collected()
	wg.Go(func() {
		if _, err := take(b, blocker); err != nil {
			t.Error(err)
		}
	})
	waitFor(func() bool { return b.Collected() == before+1 })
	for i, call := range calls {
		wg.Go(call)
		waitFor(func() bool { return b.Waiting() == (i+1)*slots })
	}
	for _, s := range servers {
		if err := s.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
}

// waitFor waits for what a few goroutines do without any I/O.
func waitFor(holds func() bool) {
	for !holds() {
		time.Sleep(20 * time.Microsecond)
	}
}

// repeat is n times the same call.
func repeat(n int, call func()) []func() {
	calls := make([]func(), n)
	for i := range calls {
		calls[i] = call
	}
	return calls
}

// try is mustTake for goroutines; it reports whether the first bucket allowed.
func try(t *testing.T, b *redisbackend.Backend, buckets ...policy.Bucket) bool {
	t.Helper()
	d, err := take(b, buckets...)
	if err != nil {
		t.Error(err)
	}
	return err == nil && d[0].Allowed
}

func TestRequestsThatTravelTogetherAreDecidedOneByOne(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	open := fresh(redisbackend.Backend{URLs: []string{server.URL()}, MaxConnections: 2})
	conformance.RunTogether(t, func(t *testing.T, clock *conformance.Clock) (conformance.Backend, conformance.Together) {
		b := open(t, clock).(*redisbackend.Backend)
		return b, func(calls ...func()) { pile(t, b, []*testserver.Redis{server}, calls...) }
	})
}

func TestEqualRequestsThatWaitAreOneCallThatReadsAndWritesOnce(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, MaxConnections: 2}), connect(t, s)
	mustTake(t, b, bucket(t, "warm", "10/1m"))
	var admitted atomic.Int64
	ask := func() {
		if try(t, b, bucket(t, "ip", "30/1h"), bucket(t, "other", "1000/1h")) {
			admitted.Add(1)
		}
	}
	before := map[string]int{}
	for _, command := range []string{"evalsha", "get", "psetex", "time"} {
		before[command] = calls(t, r, command)
	}
	pile(t, b, []*testserver.Redis{s}, repeat(50, ask)...)
	for command, want := range map[string]int{"evalsha": 2, "get": 3, "psetex": 3, "time": 2} { // one is the blocker's
		if got := calls(t, r, command) - before[command]; got != want {
			t.Errorf("%s ran %d times, not %d", command, got, want)
		}
	}
	if admitted.Load() != 30 {
		t.Errorf("%d were admitted, not 30", admitted.Load())
	}
}

func TestAnErrorOfOneRequestIsNotThatOfThoseThatTravelWithIt(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, MaxConnections: 2}), connect(t, s)
	r.HSet(t.Context(), "ratelimit:{203.0.113.7}:odd", "x", "y")
	r.Set(t.Context(), "ratelimit:{203.0.113.7}:poisoned", poisoned(), 0)
	r.RPush(t.Context(), "ratelimit:{203.0.113.7}:foreign", "short")
	var passed atomic.Int64
	good := func() {
		if try(t, b, bucket(t, "ip", "1000/1h")) {
			passed.Add(1)
		}
	}
	bad := func(scope, want string) func() {
		return func() {
			if _, err := take(b, bucket(t, "first", "1000/1h"), bucket(t, scope, "1000/1h")); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the error is %v, not %q", err, want)
			}
		}
	}
	foreign := func() {
		if _, err := take(b, bucketBy(t, "foreign", policy.SlidingLog, policy.Limit{Count: 10, Window: time.Minute})); err == nil {
			t.Error("a list of something else was taken for a log")
		}
	}
	for range 2 * redisbackend.TripAfter {
		pile(t, b, []*testserver.Redis{s}, good, bad("odd", "the scope odd "), bad("odd", "the scope odd "), good, bad("poisoned", "ERR "), good, foreign)
	}
	if passed.Load() != 3*2*redisbackend.TripAfter {
		t.Errorf("%d passed", passed.Load())
	}
	if up, _, _ := b.Health(); !up {
		t.Error("a server that answers was declared dead")
	}
}

// poisoned is a state of a token bucket that no script writes, and that would live for
// a time that is no number. 3,600,000 is the unit of 1000/1h.
func poisoned() []byte {
	state := []byte{1}
	for _, n := range []float64{1, math.NaN(), 3_600_000} {
		state = binary.LittleEndian.AppendUint64(state, math.Float64bits(n))
	}
	return state
}

func TestAFlushedScriptIsLoadedAgainForAllThatTravelTogether(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, MaxConnections: 2}), connect(t, s)
	mustTake(t, b, bucket(t, "ip", "100/1h"))
	other := bucket(t, "other", "100/1h")
	ask := func() { try(t, b, bucket(t, "ip", "100/1h")) }
	if err := r.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	pile(t, b, []*testserver.Redis{s}, append(repeat(9, ask), func() { try(t, b, other) })...)
	if d := mustTake(t, b, bucket(t, "ip", "100/1h")); d[0].Remaining != 89 {
		t.Errorf("%d remain, not 89", d[0].Remaining)
	}
}

func TestCallersThatGiveUpWhileTheyWaitAreNotChargedAndChangeNothingForTheirEquals(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, MaxConnections: 2})
	mustTake(t, b, bucket(t, "ip", "100/1h"))
	ctx, hangUp := context.WithCancel(t.Context())
	var gone sync.WaitGroup
	gone.Add(5)
	giveUp := func() {
		defer gone.Done()
		if err := b.Take(ctx, []policy.Bucket{bucket(t, "ip", "100/1h")}, make([]policy.Decision, 1)); err == nil {
			t.Error("a call was answered by a server that stands still")
		}
	}
	ask := func() { try(t, b, bucket(t, "ip", "100/1h")) }
	last := func() {
		hangUp()
		gone.Wait()
		ask()
	}
	pile(t, b, []*testserver.Redis{s}, slices.Concat(repeat(5, giveUp), repeat(4, ask), []func(){last})...)
	if d := mustTake(t, b, bucket(t, "ip", "100/1h")); d[0].Remaining != 100-1-4-1-1 {
		t.Errorf("%d remain, not 93", d[0].Remaining)
	}
}

func TestEqualRequestsTravelTogetherInAClusterToo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: patient, MaxConnections: 2})
	var admitted atomic.Int64
	here, there := bucket(t, "ip", "10/1h"), bucket(t, "ip", "20/1h")
	there.Identity = policy.KeyIdentity("elsewhere")
	mustTake(t, b, here, there)
	var asking []func()
	for i := range 60 {
		asking = append(asking, func() {
			request := [][]policy.Bucket{{here}, {there}}[i%2]
			if try(t, b, request...) {
				admitted.Add(1)
			}
		})
	}
	scriptCalls := func() (n int) {
		for _, node := range c.nodes {
			n += calls(t, connect(t, node), "evalsha")
		}
		return n
	}
	before := scriptCalls()
	pile(t, b, c.nodes, asking...)
	if n := scriptCalls() - before; n != 3 { // one is the blocker's
		t.Errorf("%d script calls, not 3", n)
	}
	if admitted.Load() != 9+19 {
		t.Errorf("%d were admitted, not 28", admitted.Load())
	}
}

func TestEqualRequestsInAClusterAreDecidedOneByOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	open := fresh(redisbackend.Backend{URLs: c.urls(), MaxConnections: 2})
	conformance.RunTogether(t, func(t *testing.T, clock *conformance.Clock) (conformance.Backend, conformance.Together) {
		b := open(t, clock).(*redisbackend.Backend)
		if err := b.Take(t.Context(), []policy.Bucket{c.bucket(t, 0, "1/1h"), c.bucket(t, 1, "1/1h")}, make([]policy.Decision, 2)); err != nil {
			t.Fatal(err)
		}
		return b, func(calls ...func()) { pile(t, b, c.nodes, calls...) }
	})
}

// Twelve requests travel as one call to each of two slots. One slot grants twelve, the
// other five: what the first granted to the seven others is given back.
func TestWhatMergedRequestsTookInOneSlotIsGivenBackToTheLastUnit(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: patient, MaxConnections: 2})
	large, small := c.bucket(t, 0, "100/1h"), c.bucket(t, 1, "5/1h")
	large.Cost, small.Cost = 0, 0
	mustTake(t, b, large, small) // finds the masters
	large.Cost, small.Cost = 3, 1
	var admitted atomic.Int64
	ask := func() {
		request := []policy.Bucket{large, small}
		if d, err := take(b, request...); err != nil {
			t.Error(err)
		} else if policy.Allowed(request, d) {
			admitted.Add(1)
		}
	}
	pileSlots(t, b, c.nodes, 2, repeat(12, ask)...)
	if admitted.Load() != 5 {
		t.Errorf("%d were admitted, not 5", admitted.Load())
	}
	eventually(t, "all is given back", func() bool { return c.look(t, b, 0, "100/1h") == 100-5*3 })
}
