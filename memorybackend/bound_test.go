package memorybackend

import (
	"math/big"
	"runtime"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// An attacker who fills the table gets no fresh allowance: not for a client
// that was over its limit, nor for one that had something left.
func TestAFloodedOutBucketIsStillInDebt(t *testing.T) {
	const maxKeys = 1000 // one shard, so chance has no part in it
	hour, longer := limit(t, "5/1h"), limit(t, "1/2h")
	s := NewStore(maxKeys)
	if d := ask(s, start, "victim", hour, 5); !d.Allowed {
		t.Fatalf("the first request was refused: %+v", d)
	}
	ask(s, start, "half", hour, 2)
	flood(t, s, start, "flood", 100_000, maxKeys, longer)
	if s.holds("victim") || s.holds("half") {
		t.Fatal("the flood did not displace the buckets, so this test shows nothing")
	}
	for _, row := range []struct {
		at      int64
		allowed bool
	}{
		{1 * second, false},
		{720*second - 1, false}, // when it would have been allowed, had it been remembered
	} {
		if d := ask(s, start+row.at, "victim", hour, 1); d.Allowed != row.allowed {
			t.Errorf("%d µs after the flood: %+v, want allowed %t", row.at, d, row.allowed)
		}
	}
	if d := ask(s, start, "half", hour, 4); d.Allowed {
		t.Errorf("a bucket with 3 of 5 left got 4 after the flood: %+v", d)
	}
}

func (s *Store) checkHolds(t *testing.T, identity string) {
	t.Helper()
	if !s.holds(identity) {
		t.Fatalf("%s is not stored any more, so this test shows nothing", identity)
	}
}

func (s *Store) holds(identity string) bool {
	table := s.table.Load()
	sh := &table.shards[table.index(s.seed, identity)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.entries[key{identity, "zone"}] != nil
}

func TestANewcomerOwesWhatTheForgottenOwe(t *testing.T) {
	r := limit(t, "10/1m") // a unit is six seconds
	s := NewStore(1)
	for i, row := range []struct {
		at       int64
		identity string
		cost     int64
		want     policy.Decision
	}{
		{0, "a", 10, pass(0, 60*second)},
		// Nothing was forgotten so far: b is new. It displaces a, in debt until 60 s.
		{1 * second, "b", 1, pass(9, 6*second)},
		// And a comes back as if it had never been away.
		{1 * second, "a", 1, refuse(0, 5*second, 59*second)},
		{6*second - 1, "a", 1, refuse(0, 1, 54*second+1)},
		{6 * second, "a", 1, pass(0, 60*second)},
		// c is new, and could be one of the forgotten: it owes until 60 s.
		{6 * second, "c", 0, pass(1, 54*second)},
		{6 * second, "c", 2, refuse(1, 6*second, 54*second)},
		{6 * second, "c", 1, pass(0, 60*second)},
		// Now a is forgotten again, in debt until 66 s.
		{6 * second, "d", 1, refuse(0, 6*second, 60*second)},
		{66*second - 1, "e", 10, refuse(9, 1, 1)},
		{66 * second, "f", 10, pass(0, 60*second)},
	} {
		if got := ask(s, start+row.at, row.identity, r, row.cost); got != row.want {
			t.Errorf("row %d, %s: got %+v, want %+v", i+1, row.identity, got, row.want)
		}
	}
}

func TestADebtIsInheritedToTheMicrosecond(t *testing.T) {
	r := limit(t, "7/1m") // a unit takes 8571428.57 µs
	s := NewStore(1)
	ask(s, start, "a", r, 1)
	ask(s, start, "b", r, 1)
	if got, want := ask(s, start+8_571_428, "a", r, 7), refuse(6, 1, 1); got != want {
		t.Errorf("a microsecond early: got %+v, want %+v", got, want)
	}
	if got, want := ask(s, start+8_571_429, "c", r, 7), pass(0, 60*second); got != want {
		t.Errorf("in time: got %+v, want %+v", got, want)
	}
}

// Else a short limit would be shut for as long as the longest one is.
func TestANewcomerPaysOffAtItsOwnRate(t *testing.T) {
	day, short := limit(t, "1/1d"), limit(t, "10/10s")
	s := NewStore(1)
	ask(s, start, "a", day, 1)
	ask(s, start, "b", day, 1)
	for i, row := range []struct {
		at   int64
		want policy.Decision
	}{
		{0, refuse(0, 1*second, 10*second)},
		{1*second - 1, refuse(0, 1, 9*second+1)},
		{1 * second, pass(0, 10*second)},
		{11 * second, pass(9, 1*second)},
	} {
		if got := ask(s, start+row.at, "c", short, 1); got != row.want {
			t.Errorf("row %d: got %+v, want %+v", i+1, got, row.want)
		}
	}
}

// A newcomer that another bucket refused was charged nothing, so it is not
// stored; one that its own debt refused is, in debt.
func TestOfARefusedRequestOnlyDebtorsAreStored(t *testing.T) {
	day, wide := limit(t, "1/1d"), limit(t, "100/1d burst 200")
	s := NewStore(2)
	for _, identity := range []string{"a", "b", "c"} {
		ask(s, start, identity, day, 1)
	}
	buckets := []policy.Bucket{
		{Identity: "x", Scope: "zone", Rule: wide, Cost: 1},
		{Identity: "y", Scope: "zone", Rule: day, Cost: 1},
	}
	decisions := make([]policy.Decision, 2)
	s.Take(start, buckets, decisions)
	if want := pass(100, 86_400*second); decisions[0] != want {
		t.Errorf("the bucket that has room: got %+v, want %+v", decisions[0], want)
	}
	if want := refuse(0, 86_400*second, 86_400*second); decisions[1] != want {
		t.Errorf("the bucket that has none: got %+v, want %+v", decisions[1], want)
	}
	if s.holds("x") || !s.holds("y") {
		t.Errorf("stored: x %t, y %t; want only y", s.holds("x"), s.holds("y"))
	}
}

func TestALookDisplacesNobody(t *testing.T) {
	r := limit(t, "10/1m")
	s := NewStore(10)
	flood(t, s, start, "client", 11, 10, r)
	held := 0
	for i := range 100 {
		ask(s, start, "look"+strconv.Itoa(i), r, 0)
	}
	for i := range 11 {
		if s.holds("client" + strconv.Itoa(i)) {
			held++
		}
	}
	if held != 10 {
		t.Errorf("%d of 10 buckets are left after a hundred looks", held)
	}
}

func TestTheBucketNearestToIdleMakesRoom(t *testing.T) {
	r := limit(t, "10/1m")
	s := NewStore(3)
	ask(s, start, "long", r, 9)
	ask(s, start, "short", r, 2)
	ask(s, start, "grew", r, 1)
	ask(s, start, "grew", r, 7) // its key in the heap is stale now
	ask(s, start, "new", r, 1)
	if s.holds("short") || !s.holds("long") || !s.holds("grew") || !s.holds("new") {
		t.Errorf("held: long %t, short %t, grew %t, new %t; want all but short", s.holds("long"), s.holds("short"), s.holds("grew"), s.holds("new"))
	}
}

// A limit that the operator corrects drains soon what would have taken a year,
// and the bucket must not stay in the way for that year.
func TestABucketWhoseLimitWasRaisedIsDroppedWhenItIsIdle(t *testing.T) {
	year, short := limit(t, "100/365d"), limit(t, "100/10s")
	s := NewStore(1000)
	for i := range 100 {
		ask(s, start, strconv.Itoa(i), year, 99)
	}
	for i := range 100 { // the last first, which is far down in the heap
		ask(s, start, strconv.Itoa(99-i), short, 1)
		s.checkInvariants(t)
	}
	for i := range 200 {
		ask(s, start+10*second, strconv.Itoa(i%100), short, 0)
	}
	if n := s.Len(); n != 0 {
		t.Errorf("%d buckets are still stored, all of them idle", n)
	}
}

func TestIdleBucketsGoFirst(t *testing.T) {
	const maxKeys = 1000 // one shard, so chance has no part in it
	short, long := limit(t, "10/10s"), limit(t, "2/1h")
	s := NewStore(maxKeys)
	flood(t, s, start, "short", 10_000, maxKeys, short)
	// A unit takes a second, and so nothing is owed any more.
	flood(t, s, start+11*second, "long", maxKeys, maxKeys, long)
	refused := 0
	for i := range maxKeys {
		if d := ask(s, start+11*second, "long"+strconv.Itoa(i), long, 1); !d.Allowed {
			refused++
		}
	}
	if refused > 0 {
		t.Errorf("%d of a thousand clients were refused, though all of them have room", refused)
	}
}

// The most admitted to each of many clients is counted apart from the store,
// which has room for a few of them.
func TestATableTooSmallAdmitsNoMoreThanTheLimits(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := NewStore(rapid.SampledFrom([]int{1, 2, 5, 300}).Draw(r, "max_keys"))
		rules := []*policy.Rule{
			limit(t, "3/1m"), limit(t, "5/1h"), limit(t, "100/1s burst 7"), limit(t, "7/10m burst 3"),
			limit(t, "3/1m max_delay 30s leaky_bucket"), limit(t, "4/1m fixed_window"), limit(t, "5/10m sliding_window"), limit(t, "4/10m sliding_log"),
		}
		log := make(map[int][]admission)
		now := start
		for range 150 {
			now += rapid.SampledFrom([]int64{0, 1, 10_000, second, 20 * second, 700 * second}).Draw(r, "pause")
			if rapid.IntRange(0, 30).Draw(r, "resize") == 0 {
				s.SetMaxKeys(rapid.SampledFrom([]int{1, 3, 300}).Draw(r, "max_keys"))
			}
			client := rapid.IntRange(0, 15).Draw(r, "client")
			rule := rules[client%len(rules)]
			cost := rapid.Int64Range(1, 3).Draw(r, "cost")
			if ask(s, now, strconv.Itoa(client), rule, cost).Allowed {
				log[client] = append(log[client], admission{now, cost})
			}
		}
		s.checkInvariants(r)
		for client, admissions := range log {
			checkWindows(r, rules[client%len(rules)], admissions)
		}
	})
}

// admission is a request that passed.
type admission struct{ at, cost int64 }

func checkWindows(r *rapid.T, rule *policy.Rule, log []admission) {
	for i, first := range log {
		sum := int64(0)
		for _, last := range log[i:] {
			sum += last.cost
			if length := last.at - first.at; !promised(rule, first, last, sum) {
				r.Fatalf("%s %s admitted %d within %d µs", rule.Limit, rule.Algorithm, sum, length)
			}
		}
	}
}

// promised says whether a rule may let so much pass from one request up to and with
// another.
func promised(rule *policy.Rule, first, last admission, sum int64) bool {
	length, count := last.at-first.at, rule.Limit.Count
	windows := last.at/rule.Window - first.at/rule.Window + 1
	switch rule.Algorithm {
	case policy.LeakyBucket: // what is before the last waits no longer than may be
		return (sum-last.cost)*rule.Window <= count*(length+rule.MaxDelay)
	case policy.FixedWindow:
		return sum <= windows*count
	case policy.SlidingWindow:
		return sum <= windows*count && (length >= rule.Window || sum < 2*count)
	case policy.SlidingLog:
		return length >= rule.Window || sum <= count
	}
	above := new(big.Int).Mul(big.NewInt(sum-rule.Limit.Capacity()), big.NewInt(rule.Window))
	return above.Cmp(new(big.Int).Mul(big.NewInt(count), big.NewInt(length))) <= 0
}

func TestAMillionClientsStayWithinTheBoundAndItsMemory(t *testing.T) {
	const maxKeys, perKey = 100_000, 300
	r := limit(t, "10/1h")
	before := heapInUse()
	s := NewStore(maxKeys)
	for i := range 1_000_000 {
		ask(s, start+int64(i), "2001:db8::"+strconv.FormatInt(int64(i), 16)+"/64", r, 1)
		if i%100_000 == 0 {
			checkBound(t, s, maxKeys)
		}
	}
	checkBound(t, s, maxKeys)
	full := heapInUse() - before
	if full > maxKeys*perKey {
		t.Errorf("%d buckets take %d bytes, more than %d each", s.Len(), full, perKey)
	}
	t.Logf("%d bytes per bucket", full/int64(s.Len()))
	for i := range 200_000 { // a quiet hour later
		ask(s, start+2*3600*second, strconv.Itoa(i%5000), r, 0)
	}
	if left := heapInUse() - before; s.Len() != 0 || left > full/4 {
		t.Errorf("%d buckets are left, and %d bytes of %d", s.Len(), left, full)
	}
	runtime.KeepAlive(s)
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func pass(remaining, resetAfter int64) policy.Decision {
	return policy.Decision{Allowed: true, Remaining: remaining, ResetAfter: microseconds(resetAfter)}
}

func refuse(remaining, retryAfter, resetAfter int64) policy.Decision {
	return policy.Decision{Remaining: remaining, RetryAfter: microseconds(retryAfter), ResetAfter: microseconds(resetAfter)}
}
