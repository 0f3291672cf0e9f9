package memorybackend

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const second = int64(1_000_000)

// request is a request with one bucket.
func request(identity string, r *policy.Rule, cost int64) []policy.Bucket {
	return []policy.Bucket{{Identity: identity, Scope: "zone", Rule: r, Cost: cost}}
}

// ask sends a request with one bucket.
func ask(s *Store, now int64, identity string, r *policy.Rule, cost int64) policy.Decision {
	var d [1]policy.Decision
	s.Take(now, request(identity, r, cost), d[:])
	return d[0]
}

// flood sends one request of each of n clients.
func flood(t *testing.T, s *Store, now int64, prefix string, n, bound int, r *policy.Rule) {
	t.Helper()
	for i := range n {
		ask(s, now, prefix+strconv.Itoa(i), r, 1)
		if i%1000 == 0 || i == n-1 {
			checkBound(t, s, bound)
		}
	}
}

func checkBound(t *testing.T, s *Store, bound int) {
	t.Helper()
	if n := s.Len(); n > bound {
		t.Fatalf("%d buckets are stored, the bound is %d", n, bound)
	}
	s.checkInvariants(t)
}

// checkInvariants compares the parts of every shard with each other.
func (s *Store) checkInvariants(t rapid.TB) {
	t.Helper()
	table := s.table.Load()
	for i := range table.shards {
		sh := &table.shards[i]
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if len(sh.entries) > sh.quota || len(sh.families) != len(sh.ranking) {
			t.Fatalf("shard %d: %d in the map, quota %d; %d families, %d ranked", i, len(sh.entries), sh.quota, len(sh.families), len(sh.ranking))
		}
		sum := 0
		for rank, f := range sh.ranking {
			sum += len(f.heap)
			if f.rank != rank || rank > 0 && len(sh.ranking[rank-1].heap) < len(f.heap) || sh.families[f.scope] != f {
				t.Fatalf("shard %d: family %s of %d is out of its place %d", i, f.scope, len(f.heap), rank)
			}
			sh.checkHeap(t, f)
		}
		turns := 0
		for f := sh.turn; f != nil && (turns == 0 || f != sh.turn); f = f.next {
			turns++
		}
		if sum != len(sh.entries) || turns != len(sh.families) {
			t.Fatalf("shard %d: %d in heaps, %d in the map; %d of %d families take turns", i, sum, len(sh.entries), turns, len(sh.families))
		}
	}
}

func (sh *shard) checkHeap(t rapid.TB, f *family) {
	t.Helper()
	for j, item := range f.heap {
		e := item.entry
		if e.family != f || sh.entries[e.key()] != e || int(e.position) != j || item.due > e.expiry() || f.heap[(j-1)/2].due > item.due && j > 0 {
			t.Fatalf("family %s: heap item %d (due %d, position %d, expiry %d) is wrong", f.scope, j, item.due, e.position, e.expiry())
		}
	}
}

// Every client has room for three of eight requests, in whatever generation of
// the table they arrive.
func TestAChangingBoundLosesNothing(t *testing.T) {
	const clients, goroutines = 3000, 8
	r := limit(t, "3/1h")
	s := NewStore(20_000)
	var passed atomic.Int64
	var group sync.WaitGroup
	for range goroutines {
		group.Go(func() {
			for i := range clients {
				if ask(s, start, strconv.Itoa(i), r, 1).Allowed {
					passed.Add(1)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	for maxKeys := 20_000; ; maxKeys ^= 20_000 ^ 200_000 { // 16 and 64 shards
		select {
		case <-done:
			if n := passed.Load(); n != 3*clients {
				t.Errorf("%d requests passed, want %d", n, 3*clients)
			}
			s.checkInvariants(t)
			return
		default:
			s.SetMaxKeys(maxKeys)
		}
	}
}

func TestTheShardsShareTheBoundExactly(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 10, 1000, 2047, 2048, 4099, 99_999, DefaultMaxKeys, DefaultMaxKeys + 63} {
		s, sum := NewStore(maxKeys), 0
		for i := range s.table.Load().shards {
			sum += s.table.Load().shards[i].quota
		}
		if sum != maxKeys {
			t.Errorf("max_keys %d: the shards have room for %d", maxKeys, sum)
		}
	}
}

func TestTheSameBoundAgainMovesNothing(t *testing.T) {
	s := NewStore(5000)
	before := s.table.Load()
	s.SetMaxKeys(5000)
	if s.table.Load() != before {
		t.Error("the table was replaced")
	}
}

func TestTheBoundCanBeChangedAndEveryBucketThatFitsStays(t *testing.T) {
	s := NewStore(50)
	r := limit(t, "2/1h")
	for i := range 50 {
		ask(s, start, strconv.Itoa(i), r, 2)
	}
	for _, maxKeys := range []int{100_000, 300, 20_000, 50, 1_000_000} {
		s.SetMaxKeys(maxKeys)
		checkBound(t, s, maxKeys)
		if n := s.Len(); n != 50 {
			t.Fatalf("max_keys %d: %d buckets are left, want all 50", maxKeys, n)
		}
		for i := range 50 {
			if d := ask(s, start, strconv.Itoa(i), r, 1); d.Allowed {
				t.Fatalf("max_keys %d: bucket %d got a fresh allowance", maxKeys, i)
			}
		}
	}
}

// As a key in Redis is gone with its time to live, whatever limit comes then.
func TestAnExpiredBucketIsOneNeverSeenEvenForASlowerLimit(t *testing.T) {
	minute, hour := limit(t, "10/1m"), limit(t, "10/1h")
	s := NewStore(10)
	for i := range 5 { // a call drops only some of the idle, and these come first
		ask(s, start, strconv.Itoa(i), minute, 1)
	}
	ask(s, start, "a", minute, 10)
	if got, want := ask(s, start+60*second-1, "a", hour, 0), pass(0, 3540*second+1); got != want {
		t.Errorf("a microsecond before it expires: got %+v, want %+v", got, want)
	}
	s.checkHolds(t, "a")
	if got, want := ask(s, start+60*second, "a", hour, 0), pass(10, 0); got != want {
		t.Errorf("when it expires: got %+v, want %+v", got, want)
	}
}

func TestABoundBelowOneCountsAsOne(t *testing.T) {
	r := limit(t, "2/1h")
	for _, maxKeys := range []int{-1, 0, 1} {
		s := NewStore(maxKeys)
		flood(t, s, start, "a", 10, 1, r)
		s.SetMaxKeys(1000)
		s.SetMaxKeys(maxKeys)
		flood(t, s, start, "b", 10, 1, r)
		if n := s.Len(); n != 1 {
			t.Errorf("max_keys %d: %d buckets are stored, want 1", maxKeys, n)
		}
	}
}

func TestADecisionOnStoredBucketsAllocatesNothing(t *testing.T) {
	s := NewStore(DefaultMaxKeys)
	r := limit(t, "1000000/1s")
	for _, n := range []int{1, 3, 16} {
		buckets := make([]policy.Bucket, n)
		decisions := make([]policy.Decision, n)
		for i := range buckets {
			buckets[i] = policy.Bucket{Identity: "client" + strconv.Itoa(i/2), Scope: "zone" + strconv.Itoa(i), Rule: r, Cost: 1}
		}
		now := start
		allocs := testing.AllocsPerRun(200, func() {
			now += 10
			s.Take(now, buckets, decisions)
		})
		if allocs != 0 {
			t.Errorf("%d buckets: %.0f allocations", n, allocs)
		}
	}
}

// An empty call has no shard whose lock could be held.
func TestACallWithoutBucketsDoesNothing(t *testing.T) {
	s := NewStore(10)
	s.Take(start, nil, nil)
	if n := s.Len(); n != 0 {
		t.Errorf("%d buckets are stored", n)
	}
}

// A panic in one request must not leave a lock behind for all others.
func TestAPanicReleasesTheLocks(t *testing.T) {
	s := NewStore(10)
	func() {
		defer func() {
			if recover() == nil {
				t.Fatal("a bucket without a rule did not panic, so this test shows nothing")
			}
		}()
		ask(s, start, "a", nil, 1)
	}()
	if d := ask(s, start, "a", limit(t, "1/1m"), 1); !d.Allowed {
		t.Errorf("after a panic: %+v", d)
	}
}
