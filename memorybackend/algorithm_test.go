package memorybackend

import (
	"slices"
	"strconv"
	"testing"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// everyAlgorithm is ten an hour by each of them; of the queue, three at once.
var everyAlgorithm = []struct {
	name  algorithm
	limit string
}{
	{tokenBucket, "10/1h token_bucket"},
	{leakyBucket, "10/1h max_delay 10m leaky_bucket"},
	{fixedWindow, "10/1h fixed_window"},
	{slidingWindow, "10/1h sliding_window"},
	{slidingLog, "10/1h sliding_log"},
}

func TestAStateTellsWhichAlgorithmWroteIt(t *testing.T) {
	for i, a := range everyAlgorithm {
		rule := limit(t, a.limit)
		var written state
		decide(&written, rule, start, 1)
		inherited := owing(rule, start, start+7200*second)
		if written.algorithm != a.name || inherited.algorithm != a.name || a.name == unseen {
			t.Errorf("%s: written %d, inherited %d; want %d, which is not %d", a.limit, written.algorithm, inherited.algorithm, a.name, unseen)
		}
		for _, b := range everyAlgorithm[i+1:] {
			if a.name == b.name {
				t.Errorf("%s and %s have one number", a.limit, b.limit)
			}
		}
	}
}

// midnight is after start; the windows of a minute and of an hour begin then.
const midnight = int64(1_773_532_800_000_000)

// Time of a key in Redis is counted in milliseconds, rounded up.
func TestAStateExpiresInWholeMillisecondsAfterItsWrite(t *testing.T) {
	const year = 366 * 24 * 3600 * second
	for _, row := range []struct {
		limit string
		after int64 // microseconds since midnight
		cost  int64
		want  int64 // microseconds after the write
	}{
		{"10/1m", 0, 1, 6_000_000},
		{"7/1m", 0, 1, 8_572_000}, // 8571428.57
		{"1000000/1s", 0, 1, 1_000},
		{"1000000/1s", 0, 1_000, 1_000},
		{"1000000/1s", 0, 1_001, 2_000},
		{"1/366d", 0, 1, year},
		{"10/1m max_delay 6s leaky_bucket", 0, 1, 6_000_000},
		{"7/1m leaky_bucket", 0, 1, 8_572_000},
		{"1000000/1s leaky_bucket", 0, 1_001, 2_000},
		{"1/366d leaky_bucket", 0, 1, year},
		{"10/1m fixed_window", 0, 1, 60 * second},
		{"10/1m fixed_window", 59_998_999, 1, 2_000},
		{"10/1m fixed_window", 59_999_000, 1, 1_000},
		{"10/1m fixed_window", 59_999_999, 10, 1_000},
		{"1000000/1s fixed_window", 999_001, 1, 1_000},
		{"1/366d fixed_window", 0, 1, 335 * 24 * 3600 * second}, // midnight is day 31 of the window
		{"10/1m sliding_window", 0, 1, 120 * second},
		{"10/1m sliding_window", 59_999_999, 1, 60*second + 1_000},
		{"1000000/1s sliding_window", 1, 1, 2 * second},
		{"1/100d sliding_window", 0, 1, 173 * 24 * 3600 * second}, // day 27 of the window
		{"10/1m sliding_log", 59_999_999, 1, 60 * second},
		{"1000000/1s sliding_log", 0, 1_001, second},
		{"1/366d sliding_log", 0, 1, year},
	} {
		var s state
		d := decide(&s, limit(t, row.limit), midnight+row.after, row.cost)
		if got := s.expiry() - (midnight + row.after); got != row.want {
			t.Errorf("%s, cost %d: expires after %d µs, want %d", row.limit, row.cost, got, row.want)
		}
		if got := (d.ResetAfter.Microseconds() + 999) / 1000 * 1000; got != row.want {
			t.Errorf("%s, cost %d: a reset after %s does not fit %d µs", row.limit, row.cost, d.ResetAfter, row.want)
		}
	}
}

// What one call discards, the next one must not find.
func TestADecisionChangesNothing(t *testing.T) {
	for _, a := range everyAlgorithm {
		rule := limit(t, a.limit)
		s := NewStore(10)
		for i := range int64(3) {
			ask(s, start+i*700*second, "client", rule, 1)
		}
		entry := s.entry("client")
		before := entry.state
		moments := before.moments()
		for _, cost := range []int64{0, 1, 7, 10} {
			for _, at := range []int64{2500, 4000} {
				s := before
				decide(&s, rule, start+at*second, cost)
			}
		}
		if entry.state != before || !slices.Equal(before.moments(), moments) {
			t.Errorf("%s: got %+v with %v, want %+v with %v", a.limit, entry.state, before.moments(), before, moments)
		}
	}
}

// moments is a copy of a state's history.
func (s *state) moments() []moment {
	if s.log == nil {
		return nil
	}
	return slices.Clone(s.log.moments)
}

func (s *Store) entry(identity string) *entry {
	table := s.table.Load()
	sh := &table.shards[table.index(s.seed, identity)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.entries[key{identity, "zone"}]
}

func TestAStateOfAnotherAlgorithmIsDroppedWithItsMemory(t *testing.T) {
	s := NewStore(10)
	for i := range int64(5) {
		ask(s, start+i, "client", limit(t, "10/1h sliding_log"), 1)
	}
	if n := len(s.entry("client").moments()); n != 5 {
		t.Fatalf("the log has %d moments, want 5", n)
	}
	ask(s, start+5, "client", limit(t, "10/1h"), 1)
	if e := s.entry("client"); e.log != nil {
		t.Errorf("a token bucket keeps a log of %d moments", len(e.moments()))
	}
}

// A forgotten bucket that comes back must not have more than if it had been
// remembered, by whichever algorithm it and those that displaced it are counted.
func TestAFloodedOutBucketOfAnyAlgorithmIsStillInDebt(t *testing.T) {
	const maxKeys = 300 // one shard, so chance has no part in it
	for _, victim := range everyAlgorithm {
		for _, flooding := range everyAlgorithm {
			rule := limit(t, victim.limit)
			remembered, s := NewStore(10), NewStore(maxKeys)
			at := midnight + 1000*second
			for _, store := range []*Store{remembered, s} {
				ask(store, at, "victim", rule, 4)
				ask(store, at+1, "victim", rule, 6)
			}
			longer := "1/2d" + flooding.limit[len("10/1h"):]
			flood(t, s, at+2, "flood", 2*maxKeys, maxKeys, limit(t, longer))
			if s.holds("victim") {
				t.Fatalf("%s, flooded by %s: the flood did not displace the bucket, so this test shows nothing", victim.limit, longer)
			}
			for _, after := range []int64{2, 1000, 2599, 2600, 3000, 3601, 6199, 6201, 7201} {
				got, most := ask(s, at+after*second, "victim", rule, 0), ask(remembered, at+after*second, "victim", rule, 0)
				if got.Remaining > most.Remaining {
					t.Errorf("%s, flooded by %s: after %d s %d left, want at most %d", victim.limit, longer, after, got.Remaining, most.Remaining)
				}
			}
		}
	}
}

// The window of a newcomer is charged only for a debt that can be of this window.
func TestANewcomerOwesNoMoreThanABucketOfItsLimitCould(t *testing.T) {
	at := midnight + 1000*second // of an hour's window 2600 s are left
	for _, row := range []struct {
		limit string
		until int64 // seconds after at
		want  policy.Decision
	}{
		{"10/1h fixed_window", 2599, pass(10, 0)},
		{"10/1h fixed_window", 2600, pass(0, 2600*second)},
		{"10/1h fixed_window", 100_000, pass(0, 2600*second)},
		{"10/1h sliding_window", 2599, pass(10, 0)},
		{"10/1h sliding_window", 2600, pass(2, 2600*second)}, // 10 x 2600 s of the window before
		{"10/1h sliding_window", 6199, pass(2, 2600*second)},
		{"10/1h sliding_window", 6200, pass(0, 6200*second)},
		{"10/1h sliding_window", 100_000, pass(0, 6200*second)},
		{"10/1h sliding_log", 1, pass(0, second)},
		{"10/1h sliding_log", 3600, pass(0, 3600*second)},
		{"10/1h sliding_log", 100_000, pass(0, 3600*second)},
		{"10/1h max_delay 6m leaky_bucket", 1, pass(1, second)},
		{"10/1h max_delay 6m leaky_bucket", 361, pass(0, 361*second)},
		{"10/1h max_delay 6m leaky_bucket", 100_000, pass(0, 3960*second)},
	} {
		s := owing(limit(t, row.limit), at, at+row.until*second)
		if got := decide(&s, limit(t, row.limit), at, 0); got != row.want {
			t.Errorf("%s, in debt for %d s: got %+v, want %+v", row.limit, row.until, got, row.want)
		}
	}
}

func TestADecisionOfAnyAlgorithmAllocatesNothing(t *testing.T) {
	for _, row := range []struct {
		limit string
		cost  int64 // so that no bucket is idle between two requests
	}{
		{"1000000/1s", 1002},
		{"1000000/1s max_delay 10s leaky_bucket", 1002},
		{"1000000/1s fixed_window", 1},
		{"1000000/1s sliding_window", 1},
		{"1000/1s sliding_log", 1},
	} {
		s := NewStore(DefaultMaxKeys)
		buckets := request("client", limit(t, row.limit), row.cost)
		decisions := make([]policy.Decision, 1)
		now := start
		take := func() {
			now += 1001
			s.Take(now, buckets, decisions)
			if !decisions[0].Allowed {
				t.Fatalf("%s: %+v", row.limit, decisions[0])
			}
		}
		for range 3000 { // a log grows to what it needs
			take()
		}
		if n := testing.AllocsPerRun(10_000, take); n != 0 {
			t.Errorf("%s: %v allocations", row.limit, n)
		}
	}
}

func TestALogTakesMemoryByWhatIsUsed(t *testing.T) {
	const keys, events = 2000, 100
	r := limit(t, "1000000/1h sliding_log")
	s := NewStore(DefaultMaxKeys)
	before := heapInUse()
	for i := range keys {
		ask(s, start, strconv.Itoa(i), r, 1)
	}
	once := (heapInUse() - before) / keys
	for j := range int64(events - 1) {
		for i := range keys {
			ask(s, start+j+1, strconv.Itoa(i), r, 1)
		}
	}
	each := (heapInUse() - before) / (keys * events)
	t.Logf("%d bytes per log of one request, and %d per request of a log of %d", once, each, events)
	if once > 300 || each > 40 {
		t.Errorf("a log of one request takes %d bytes, want at most 300; one of %d takes %d per request, want at most 40", once, events, each)
	}
	s.checkHolds(t, "7")
}

func TestALogGivesMemoryBack(t *testing.T) {
	r := limit(t, "100000/1h sliding_log")
	s := NewStore(10)
	now := start
	for range 50_000 {
		now += 1000
		ask(s, now, "client", r, 1)
	}
	if n := cap(s.entry("client").log.moments); n < 50_000 {
		t.Fatalf("the log has room for %d moments, so this test shows nothing", n)
	}
	for range 10 {
		now += 1800 * second
		ask(s, now, "client", r, 1)
	}
	if n := cap(s.entry("client").log.moments); n > smallHistory {
		t.Errorf("a log of two requests keeps room for %d", n)
	}
	if d := ask(s, now, "client", r, 0); d.Remaining != 99_998 {
		t.Errorf("%d are left, want 99998", d.Remaining)
	}
}

// The most that a log keeps is its count: one moment per request, and one for all
// requests of a moment.
func TestALogIsBoundedByItsCount(t *testing.T) {
	r := limit(t, "1000/1h sliding_log")
	s := NewStore(10)
	for i := range int64(100_000) {
		ask(s, start+i*second, "client", r, 1)
		if e := s.entry("client"); e.log != nil && len(e.log.moments) > 2*1000 {
			t.Fatalf("after %d requests the log has %d moments", i, len(e.log.moments))
		}
	}
	for range 500 {
		ask(s, start, "other", r, 1)
	}
	if e := s.entry("other"); e.log != nil {
		t.Errorf("requests of one moment take %d", len(e.log.moments))
	}
	for range 500 {
		ask(s, start+1, "other", r, 1)
	}
	if n := len(s.entry("other").moments()); n != 2 {
		t.Errorf("requests of two moments take %d", n)
	}
}
