package postgres

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// madeUp is the hash of a key that nobody has: as good as random.
func madeUp(n uint64) (sum [32]byte) {
	binary.BigEndian.PutUint64(sum[:], n*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(sum[24:], n)
	return sum
}

func TestAMillionMadeUpKeysCostBoundedMemoryAndQueries(t *testing.T) {
	in := started(t, &Provider{DSN: server.NewDatabase(t), MaxKeys: 10_000}, storageIn(t))
	known, _ := in.newKey(t, "PRO")
	eventually(t, "the key", func() bool { return in.works(known) })
	before := heap()
	const keys, clients = 1_000_000, 2000
	var next atomic.Uint64
	var slowKnown atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range clients {
		wg.Go(func() {
			for n := next.Add(1); n <= keys; n = next.Add(1) {
				if _, ok := in.APIKey(context.Background(), madeUp(n)); ok {
					t.Error("a made-up key works")
				}
				if n%100 == 0 { // a known client in the midst of it
					start := time.Now()
					if !in.works(known) {
						t.Error("a known key is unknown during the flood")
					}
					if time.Since(start) > 50*time.Millisecond {
						slowKnown.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	took, queries, grown := time.Since(began), in.keys.lookups.queries.Load(), heap()-before
	t.Logf("%d made-up keys in %s: %d queries, %d keys remembered, heap grown by %.1f MB, %d of %d uses of a known key took over 50ms",
		keys, took.Round(time.Millisecond), queries, in.keys.unknown.EstimatedSize(), float64(grown)/1e6, slowKnown.Load(), keys/100)
	if most := mostQueries(took); queries > most {
		t.Errorf("%d queries in %s, want at most %d", queries, took, most)
	}
	if size := in.keys.unknown.EstimatedSize(); size > 11_000 {
		t.Errorf("%d unknown keys are remembered, want at most 10000", size)
	}
	if grown > 32e6 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	fresh, _ := in.newKey(t, "PRO")
	eventually(t, "a new key after the flood", func() bool { return in.works(fresh) })
}

// mostQueries is how many queries for keys may be made in a time.
func mostQueries(took time.Duration) int64 {
	return maxQueryBurst + 1 + int64(took.Seconds()*maxQueryRate)
}

// One who sends one key after the other is kept to that pace, too.
func TestKeysThatComeOneAfterTheOtherArePaced(t *testing.T) {
	t.Parallel()
	in := started(t, &Provider{DSN: server.NewDatabase(t), LookupTimeout: ms(5000)}, storageIn(t))
	began, before := time.Now(), in.keys.lookups.queries.Load()
	const keys = 500
	for n := range uint64(keys) {
		in.APIKey(t.Context(), madeUp(n))
	}
	took, queries := time.Since(began), in.keys.lookups.queries.Load()-before
	if most := mostQueries(took); queries != keys || queries > most {
		t.Errorf("%d keys made %d queries in %s, want one each and at most %d", keys, queries, took, most)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Whoever asks for a key that is being looked up waits for that answer.
func TestOneKeyIsLookedUpOnceAtATime(t *testing.T) {
	t.Parallel()
	in := started(t, &Provider{DSN: server.NewDatabase(t), LookupTimeout: ms(5000)}, storageIn(t))
	key, _ := in.newKey(t, "PRO")
	before := in.keys.lookups.queries.Load()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if !in.works(key) {
				t.Error("a new key is unknown")
			}
		})
	}
	wg.Wait()
	if n := in.keys.lookups.queries.Load() - before; n != 1 {
		t.Errorf("100 clients with one key made %d queries", n)
	}
	in.works("unknown")
	in.works("unknown")
	if n := in.keys.lookups.queries.Load() - before; n != 2 {
		t.Errorf("an unknown key that is asked for twice made %d queries", n-1)
	}
}

func TestKeysThatWaitTogetherAreAskedForTogether(t *testing.T) {
	t.Parallel()
	in := started(t, &Provider{DSN: server.NewDatabase(t)}, storageIn(t))
	key, _ := in.newKey(t, "PRO")
	l := &in.keys.lookups
	l.mu.Lock()
	l.running += maxQueries // as if so many queries were in flight
	l.mu.Unlock()
	asked := []*lookup{l.ask(policy.HashKey(key))}
	for n := range uint64(maxTogether) {
		asked = append(asked, l.ask(madeUp(n)))
	}
	before := l.queries.Load()
	l.run() // takes the place of one of them
	if n := l.queries.Load() - before; n != 2 {
		t.Errorf("%d keys made %d queries, want 2", len(asked), n)
	}
	for i, one := range asked {
		<-one.done
		if (one.key != nil) != (i == 0) {
			t.Errorf("key %d was found: %t", i, one.key != nil)
		}
	}
}

// What cannot wait for its turn is unknown at once, and is not remembered so.
func TestTheQueueOfLookUpsIsBounded(t *testing.T) {
	t.Parallel()
	in := provisioned(t, &Provider{DSN: server.NewDatabase(t)}, storageIn(t))
	l := &in.keys.lookups
	l.mu.Lock()
	for n := range uint64(maxWaiting) {
		l.waiting[madeUp(n)] = &lookup{done: make(chan struct{})}
	}
	l.mu.Unlock()
	if l.ask(madeUp(maxWaiting)) != nil {
		t.Error("one more than may wait waits")
	}
	if l.ask(madeUp(1)) == nil {
		t.Error("a key that is being looked up is not waited for")
	}
}

// An answer that is older than what the instance has read since may be wrong.
func TestAnOutdatedAnswerIsNotKept(t *testing.T) {
	t.Parallel()
	in := started(t, &Provider{DSN: server.NewDatabase(t)}, storageIn(t))
	key, k := in.newKey(t, "PRO")
	sum := policy.HashKey(key)
	eventually(t, "the key", func() bool { return in.works(key) })
	stale := in.known.Load().state
	if err := in.DeleteKey(t.Context(), by, k.ID, k.Version); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the key", func() bool { return !in.works(key) })
	in.keys.keep(sum, &knownKey{APIKey: policy.APIKey{ID: k.ID, Tier: "PRO"}}, stale)
	if in.works(key) {
		t.Error("an answer from before the key was deleted brought it back")
	}
	in.keys.unknown.Invalidate(sum)
	in.keys.keep(sum, &knownKey{APIKey: policy.APIKey{ID: k.ID, Tier: "PRO"}}, in.known.Load().state)
	if !in.works(key) {
		t.Error("a current answer is not kept: the check above could not fail")
	}
}
