package topk

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// stream is occurrences and their true numbers.
type stream struct {
	keys  []int
	times map[int]int64
}

// skewed draws a stream in which few keys occur often and many seldom.
func skewed(t *rapid.T, label string) stream {
	s := stream{times: make(map[int]int64)}
	n := rapid.IntRange(0, 3000).Draw(t, label+" length")
	seed := rapid.Uint64().Draw(t, label+" seed")
	zipf := rand.NewZipf(rand.New(rand.NewPCG(seed, 1)), 1.2, 1, 1000)
	for range n {
		s.add(int(zipf.Uint64()))
	}
	return s
}

func (s *stream) add(key int) {
	s.keys = append(s.keys, key)
	s.times[key]++
}

// check holds a summary of m counters against what really occurred.
func (s *stream) check(t *rapid.T, sum *Summary[int], m int) {
	bound := int64(len(s.keys) / m)
	if sum.floor > bound {
		t.Fatalf("of %d occurrences in %d counters, absent keys have at most %d, want %d", len(s.keys), m, sum.floor, bound)
	}
	if len(sum.entries) > m {
		t.Fatalf("got %d entries, want at most %d", len(sum.entries), m)
	}
	present := make(map[int]bool)
	for _, e := range sum.entries {
		present[e.Key] = true
		if n := s.times[e.Key]; n < e.AtLeast || n > e.AtMost {
			t.Fatalf("key %d occurred %d times, and is told to between %d and %d", e.Key, n, e.AtLeast, e.AtMost)
		}
		if e.AtMost-e.AtLeast > bound {
			t.Fatalf("key %d is told to between %d and %d, further apart than %d", e.Key, e.AtLeast, e.AtMost, bound)
		}
	}
	for key, n := range s.times {
		if !present[key] && n > bound {
			t.Fatalf("key %d occurred %d times of %d and has no entry", key, n, len(s.keys))
		}
	}
}

func TestTheErrorOfASketchIsBoundedAsThePaperSays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.IntRange(1, 64).Draw(t, "counters")
		s := skewed(t, "stream")
		sketch := NewSketch[int](m)
		for _, key := range s.keys {
			sketch.Add(key, 1)
		}
		var sum Summary[int]
		sum.merge(sketch)
		s.check(t, &sum, m)
	})
}

func TestTheErrorOfSketchesPutTogetherIsBoundedByTheWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.IntRange(1, 64).Draw(t, "counters")
		parts := rapid.IntRange(1, 6).Draw(t, "parts")
		whole := stream{times: make(map[int]int64)}
		var sum Summary[int]
		sketch := NewSketch[int](m)
		for i := range parts {
			for _, key := range skewed(t, fmt.Sprint("part ", i)).keys {
				sketch.Add(key, 1)
				whole.add(key)
			}
			sum.merge(sketch)
			sketch.Reset()
		}
		whole.check(t, &sum, m)
	})
}

// steps is a ledger: at a time, a key occurs so many times.
type step struct {
	at    time.Duration
	key   string
	times int
}

func recentOf(steps ...step) *Recent[string] {
	r := NewRecent[string]()
	for _, s := range steps {
		for range s.times {
			r.Add(s.key, uint64(len(s.key)), s.at)
		}
	}
	return r
}

func TestAWindowHoldsWhatOccurredInIt(t *testing.T) {
	t.Parallel()
	r := recentOf(
		step{0, "old", 1000},
		step{30 * time.Minute, "half", 50},
		step{58 * time.Minute, "some", 30},
		step{59*time.Minute + 30*time.Second, "now", 2},
		step{60*time.Minute - time.Second, "now", 5},
		step{60*time.Minute - time.Second, "half", 1},
	)
	for _, tt := range []struct {
		window Window
		at     time.Duration
		want   string
	}{
		{Minute, 60 * time.Minute, "now 7, half 1"},
		{FiveMinutes, 60 * time.Minute, "some 30, now 7, half 1"},
		{Hour, 60 * time.Minute, "old 1000, half 51, some 30, now 7"},
		{Hour, 60 * time.Minute, "old 1000, half 51, some 30, now 7"}, // asking changes nothing
		{Minute, 62 * time.Minute, ""},
		{FiveMinutes, 62 * time.Minute, "some 30, now 7, half 1"},
		{Hour, 80 * time.Minute, "half 51, some 30, now 7"},
		{Hour, 3 * time.Hour, ""},
	} {
		got := ""
		sum := r.Last(tt.window, tt.at)
		for i, e := range sum.Top(10) {
			if i > 0 {
				got += ", "
			}
			got += fmt.Sprint(e.Key, " ", e.AtMost)
			if e.AtLeast != e.AtMost {
				t.Errorf("%s: between %d and %d, want exactly one number", e.Key, e.AtLeast, e.AtMost)
			}
		}
		if got != tt.want {
			t.Errorf("window %d at %s: got %q, want %q", tt.window, tt.at, got, tt.want)
		}
	}
}

// Occurrences are counted later than they come, in the order of their coming.
func TestWhatIsGatheredIsNeitherLostNorCountedTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, want, now := NewRecent[int](), make(map[int]int64), time.Duration(0)
		for range rapid.IntRange(0, 300).Draw(t, "occurrences") {
			key := rapid.IntRange(0, 2*gathered).Draw(t, "key")
			now += rapid.SampledFrom([]time.Duration{0, 0, 0, time.Millisecond, tick}).Draw(t, "later")
			r.Add(key, 1, now)
			want[key]++
			if rapid.IntRange(0, 9).Draw(t, "ask") > 0 {
				continue
			}
			sum := r.Last(Hour, now)
			if len(sum.entries) != len(want) {
				t.Fatalf("got %d keys, want %d", len(sum.entries), len(want))
			}
			for _, e := range sum.entries {
				if e.AtLeast != want[e.Key] || e.AtMost != want[e.Key] {
					t.Fatalf("key %d: got between %d and %d, want %d", e.Key, e.AtLeast, e.AtMost, want[e.Key])
				}
			}
		}
	})
}

// An attacker with many addresses must neither take memory nor hide.
func TestAFloodOfKeysTakesNoMoreMemoryAndHidesNobody(t *testing.T) {
	t.Parallel()
	const flood, heavy = 200_000, 20_000
	r := NewRecent[int]()
	for i := range flood {
		r.Add(i, uint64(i)*0x9e3779b97f4a7c15>>32, time.Duration(i)*time.Millisecond/4)
		if i%(flood/heavy) == 0 {
			r.Add(-1, 3, time.Duration(i)*time.Millisecond/4)
		}
	}
	sum := r.Last(Minute, flood*time.Millisecond/4)
	top := sum.Top(1)
	if len(top) != 1 || top[0].Key != -1 {
		t.Fatalf("got %v, want the key that occurred most", top)
	}
	if top[0].AtLeast > heavy || top[0].AtMost < heavy || top[0].AtMost-top[0].AtLeast > (flood+heavy)/countersInShard {
		t.Errorf("it occurred %d times: got between %d and %d", heavy, top[0].AtLeast, top[0].AtMost)
	}
	for i := range r.shards {
		for w := range r.shards[i].slots {
			for _, s := range r.shards[i].slots[w] {
				if len(s.entries) > countersInShard {
					t.Fatalf("a slot has %d entries, want at most %d", len(s.entries), countersInShard)
				}
			}
		}
	}
}

func TestConcurrentOccurrencesAreAllCounted(t *testing.T) {
	t.Parallel()
	const workers, each = 8, 1000
	r := NewRecent[string]()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				r.Add("a", 1, time.Second)
				r.Add("b", 2, time.Second)
				if w == 0 && i%100 == 0 {
					r.Last(Hour, time.Second)
				}
			}
		})
	}
	wg.Wait()
	sum := r.Last(Minute, time.Second)
	for _, e := range sum.Top(2) {
		if e.AtLeast != workers*each || e.AtMost != workers*each {
			t.Errorf("%s: got between %d and %d, want %d", e.Key, e.AtLeast, e.AtMost, workers*each)
		}
	}
}

func TestCountingInAFullSketchAllocatesNothing(t *testing.T) {
	r := NewRecent[int]()
	for i := range 10_000 {
		r.Add(i, uint64(i), time.Second)
	}
	i := 0
	if n := testing.AllocsPerRun(10_000, func() { i++; r.Add(i%100, uint64(i%100), time.Second) }); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	for name, keys := range map[string]int{"one key": 1, "a hundred keys": 100, "a million keys": 1_000_000} {
		b.Run(name, func(b *testing.B) {
			r := NewRecent[int]()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				r.Add(i%keys, uint64(i%keys), time.Second)
			}
		})
	}
}
