package memorybackend

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// askIn is ask in another zone.
func askIn(s *Store, now int64, zone, identity string, r *policy.Rule, cost int64) policy.Decision {
	var d [1]policy.Decision
	b := request(identity, r, cost)
	b[0].Scope = zone
	s.Take(now, b, d[:])
	return d[0]
}

// An attacker makes up clients of one zone, twice as many as there is room for. That
// must cost the clients of another zone nothing: neither those that are known nor those
// that come new.
func TestAFloodInOneZoneCostsAnotherNothing(t *testing.T) {
	const maxKeys = 1000 // one shard, so chance has no part in it
	for _, flooding := range everyAlgorithm {
		hour, longer := limit(t, "5/1h"), limit(t, "1/2d"+flooding.limit[len("10/1h"):])
		s := NewStore(maxKeys)
		for i := range 100 {
			askIn(s, start, "quiet", "known"+strconv.Itoa(i), hour, 2)
		}
		askIn(s, start, "quiet", "victim", hour, 5)
		for i := range 2 * maxKeys {
			ask(s, start+1, "flood"+strconv.Itoa(i), longer, 1)
		}
		checkBound(t, s, maxKeys)
		for i := range 100 {
			if d := askIn(s, start+1, "quiet", "known"+strconv.Itoa(i), hour, 0); d.Remaining != 3 {
				t.Fatalf("%s: a known client has %d left, want 3", longer.Algorithm, d.Remaining)
			}
			if d := askIn(s, start+1, "quiet", "new"+strconv.Itoa(i), hour, 5); !d.Allowed {
				t.Fatalf("%s: a new client was refused its full allowance: %+v", longer.Algorithm, d)
			}
		}
		if d := askIn(s, start+1, "quiet", "victim", hour, 1); d.Allowed {
			t.Errorf("%s: a client that was over its limit is not any more: %+v", longer.Algorithm, d)
		}
	}
}

// Whoever is over a limit cannot get a new allowance by filling the table, with clients
// of the same zone or of another, whichever of them has more.
func TestNobodyWashesOutABucket(t *testing.T) {
	const maxKeys = 1000
	for _, zone := range []string{"zone", "another"} {
		for _, crowd := range []int{0, 900} { // other clients of the zone, that the attacker is one of
			hour, longer := limit(t, "5/1h"), limit(t, "1/2h")
			s := NewStore(maxKeys)
			for i := range crowd {
				ask(s, start, "crowd"+strconv.Itoa(i), hour, 5)
			}
			ask(s, start, "attacker", hour, 5)
			for i := range 2 * maxKeys {
				askIn(s, start, zone, "made up"+strconv.Itoa(i), longer, 1)
			}
			for _, at := range []int64{0, 1, 720*second - 1} {
				if d := ask(s, start+at, "attacker", hour, 1); d.Allowed {
					t.Errorf("flood in %s, beside %d: allowed after %d µs: %+v", zone, crowd, at, d)
				}
			}
		}
	}
}

// A limit that has most of the clients gives way until the flood is the larger one, and
// no further.
func TestALargeZoneKeepsHalfOfTheTable(t *testing.T) {
	const maxKeys = 1000
	hour, longer := limit(t, "5/1h"), limit(t, "1/2h")
	s := NewStore(maxKeys)
	for i := range 800 {
		ask(s, start, "client"+strconv.Itoa(i), hour, 1)
	}
	for i := range 10 * maxKeys {
		askIn(s, start, "flooded", strconv.Itoa(i), longer, 1)
	}
	kept := 0
	for i := range 800 {
		if s.holds("client" + strconv.Itoa(i)) {
			kept++
		}
	}
	if kept < maxKeys/2-1 {
		t.Errorf("%d of 800 clients are left, want half of the table", kept)
	}
}

// Limits come and go: policies are made and deleted by an API. What is idle goes in its
// turn, whichever limits are still used, and a limit without clients leaves no trace.
func TestLimitsThatAreNotUsedAnyMoreLeaveNoTrace(t *testing.T) {
	s := NewStore(1000)
	short := limit(t, "10/10s")
	for i := range 300 {
		askIn(s, start, "old"+strconv.Itoa(i%30), strconv.Itoa(i), short, 10)
	}
	for i := range int64(1000) {
		ask(s, start+11*second+i, "still here", short, 1)
	}
	s.checkInvariants(t)
	if n := s.Len(); n != 1 {
		t.Errorf("%d buckets are stored, want 1", n)
	}
	if n := len(s.table.Load().shards[0].families); n != 1 {
		t.Errorf("%d limits are remembered, want 1", n)
	}
}

// Any traffic of many limits keeps the parts of a table in agreement.
func TestTheLargestFamilyIsAlwaysKnown(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := NewStore(rapid.IntRange(1, 40).Draw(r, "max_keys"))
		now := start
		for range 200 {
			now += rapid.SampledFrom([]int64{0, 1, second, 30 * second}).Draw(r, "pause")
			zone := strconv.Itoa(rapid.IntRange(0, 5).Draw(r, "zone"))
			rule := limit(t, rapid.SampledFrom([]string{"3/1m", "3/1s", "1/1h"}).Draw(r, "limit"))
			askIn(s, now, zone, strconv.Itoa(rapid.IntRange(0, 30).Draw(r, "client")), rule, 1)
		}
		s.checkInvariants(r)
	})
}

func TestAFullTableIsSaidOnceAndNotWithEachRequest(t *testing.T) {
	s := NewStore(10)
	var told []string
	s.overflow.tell = func(scope string) {
		s.Len() // no lock is held
		told = append(told, scope)
	}
	r := limit(t, "1/1d")
	flood(t, s, start, "fits", 10, 10, r)
	if len(told) > 0 {
		t.Fatalf("told of %v before the table was full", told)
	}
	flood(t, s, start, "flood", 1000, 10, r)
	if !slices.Equal(told, []string{"zone"}) {
		t.Fatalf("told of %v, want the zone once", told)
	}
	flood(t, s, start+warnEvery.Microseconds()-1, "more", 100, 10, r)
	if len(told) != 1 {
		t.Errorf("told of %v within the pause", told)
	}
	flood(t, s, start+warnEvery.Microseconds(), "later", 100, 10, r)
	if len(told) != 2 {
		t.Errorf("told of %v after the pause, want it once more", told)
	}
}

// Buckets that have drained make room without a word: nothing is lost with them.
func TestATableFullOfIdleBucketsIsNotWorthAWarning(t *testing.T) {
	s := NewStore(10)
	s.overflow.tell = func(scope string) { t.Errorf("told of %s", scope) }
	r := limit(t, "10/10s")
	for round := range int64(10) {
		flood(t, s, start+round*2*second, strconv.FormatInt(round, 10)+"-", 10, 10, r)
	}
}

func TestTheWarningNamesTheLimitAndWhatToDo(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	warnFull(zap.New(core), "login", 1000)
	entry := logs.All()[0]
	if fields := entry.ContextMap(); !strings.Contains(entry.Message, "write a larger max_keys") || fields["limit"] != "login" || fields["buckets"] != int64(1000) {
		t.Errorf("got %s %v", entry.Message, fields)
	}
	if Process().overflow.tell == nil {
		t.Error("the store of the process tells nobody")
	}
}
