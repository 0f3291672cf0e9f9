package memorybackend

import (
	"strconv"
	"sync"
	"testing"

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
func (s *Store) checkInvariants(t testing.TB) {
	t.Helper()
	table := s.table.Load()
	for i := range table.shards {
		sh := &table.shards[i]
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if len(sh.heap) != len(sh.entries) || len(sh.entries) > sh.quota {
			t.Fatalf("shard %d: %d in the heap, %d in the map, quota %d", i, len(sh.heap), len(sh.entries), sh.quota)
		}
		for j, item := range sh.heap {
			e := item.entry
			if sh.entries[e.key] != e || int(e.position) != j || item.due > e.expiry() || sh.heap[(j-1)/2].due > item.due && j > 0 {
				t.Fatalf("shard %d: heap item %d (due %d, position %d, expiry %d) is wrong", i, j, item.due, e.position, e.expiry())
			}
		}
	}
}

// A request of several buckets whose identities are in different shards is one.
func TestManyGoroutinesAndAChangingBoundLoseNothing(t *testing.T) {
	s := NewStore(100_000)
	r := limit(t, "100/1h")
	var group sync.WaitGroup
	var passed [8]int
	for n := range passed {
		group.Go(func() {
			buckets := make([]policy.Bucket, 5)
			decisions := make([]policy.Decision, len(buckets))
			for i := range 200 {
				for j := range buckets {
					client := "client" + strconv.Itoa((j*(n%2*2-1)+i+len(buckets))%7+j*7)
					buckets[j] = policy.Bucket{Identity: client, Scope: "zone", Rule: r}
				}
				buckets[2] = policy.Bucket{Identity: "shared", Scope: "zone", Rule: r, Cost: 1}
				s.Take(start, buckets, decisions)
				if policy.Allowed(buckets, decisions) {
					passed[n]++
				}
			}
		})
	}
	for i := range 50 {
		s.SetMaxKeys(1_000 + i%3*50_000) // one, 32 and 64 shards
		s.Len()
	}
	group.Wait()
	sum := 0
	for _, n := range passed {
		sum += n
	}
	if sum != 100 {
		t.Errorf("%d requests passed, want 100", sum)
	}
	s.checkInvariants(t)
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
