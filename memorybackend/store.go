package memorybackend

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// DefaultMaxKeys is how many buckets a Backend keeps unless told otherwise.
// A full table of them takes some 270 MB, and only what is used is allocated.
const DefaultMaxKeys = 1_000_000

// Store keeps the state of buckets, at most a fixed number of them. It is safe
// for concurrent use.
type Store struct {
	seed     maphash.Seed
	table    atomic.Pointer[table]
	overflow overflow

	mu      sync.Mutex // held while the table is replaced
	maxKeys int
}

// NewStore makes an empty store of at most maxKeys buckets; less than 1 counts
// as 1.
func NewStore(maxKeys int) *Store {
	s := &Store{seed: maphash.MakeSeed(), maxKeys: max(1, maxKeys)}
	s.table.Store(newTable(s.maxKeys, &s.overflow))
	return s
}

// SetMaxKeys changes the most buckets that the store keeps, and keeps all that
// fit. What does not fit is forgotten as in a full store: of the limit with most
// clients and nearest to idle first, its debt left to newcomers. Less than 1 counts
// as 1.
func (s *Store) SetMaxKeys(maxKeys int) {
	defer s.overflow.pass()
	s.mu.Lock()
	defer s.mu.Unlock()
	maxKeys = max(1, maxKeys)
	if maxKeys == s.maxKeys {
		return
	}
	s.maxKeys = maxKeys
	old := s.table.Load()
	old.lock(old.all())
	defer old.unlock(old.all())
	next := newTable(maxKeys, &s.overflow)
	next.inherit(old, s.seed, Now())
	s.table.Store(next)
	old.retired = true
}

// MaxKeys returns the most buckets that the store keeps.
func (s *Store) MaxKeys() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxKeys
}

// Len returns how many buckets are stored, idle ones that were not dropped yet
// among them.
func (s *Store) Len() int {
	t := s.table.Load()
	n := 0
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		n += len(sh.entries)
		sh.mu.Unlock()
	}
	return n
}

// Take decides one request at the time now, in microseconds since the epoch:
// it takes every bucket's cost if all enforced buckets have room for theirs,
// and else nothing. decisions has the length of buckets and is overwritten.
//
// Up to 16 buckets that are stored already, it allocates nothing.
func (s *Store) Take(now int64, buckets []policy.Bucket, decisions []policy.Decision) {
	c := call{now: now, buckets: buckets, decisions: decisions}
	switch n := len(buckets); { // clearing slots costs time, so no more than needed
	case n == 0:
		return
	case n <= 4:
		var slots [4]slot
		c.slots = slots[:n]
		s.take(&c)
	case n <= 16:
		var slots [16]slot
		c.slots = slots[:n]
		s.take(&c)
	default:
		c.slots = make([]slot, n)
		s.take(&c)
	}
}

// Reset makes buckets as if they were never seen, whatever is known of those that
// were forgotten.
func (s *Store) Reset(buckets []policy.Bucket) {
	c := call{buckets: buckets, slots: make([]slot, len(buckets))}
	t, mask := s.lock(&c)
	defer t.unlock(mask)
	for i := range buckets {
		c.slots[i].shard.resetLocked(&buckets[i])
	}
}

func (s *Store) take(c *call) {
	defer s.overflow.pass()
	t, mask := s.lock(c)
	defer t.unlock(mask)
	t.dropIdle(mask, c.now)
	c.take()
}

// lock locks the shards of a call's buckets in the present table.
func (s *Store) lock(c *call) (*table, uint64) {
	for {
		t := s.table.Load()
		mask := uint64(0)
		for i := range c.buckets {
			n := t.index(s.seed, c.buckets[i].Identity)
			c.slots[i].shard = &t.shards[n]
			mask |= 1 << n
		}
		t.lock(mask)
		if !t.retired {
			return t, mask
		}
		t.unlock(mask)
	}
}

// Bounds of the number of shards: a set of them fits into a word, and each has
// room for enough buckets that chance spreads them evenly.
const (
	maxShards   = 64
	minPerShard = 1024
)

// table is a generation of a store: the shards for one maximum of keys. All
// buckets of an identity are in one shard, so most calls lock only one.
type table struct {
	shards []shard // a power of two of them

	// Set with all shards locked, read with any: the store has another table
	// by now.
	retired bool
}

func newTable(maxKeys int, o *overflow) *table {
	n := 1
	for 2*n <= maxShards && maxKeys/(2*n) >= minPerShard {
		n *= 2
	}
	t := &table{shards: make([]shard, n)}
	for i := range t.shards {
		quota := maxKeys / n
		if i < maxKeys%n {
			quota++
		}
		t.shards[i].init(quota, o)
	}
	return t
}

// index returns the number of an identity's shard. The seed is random: nobody
// can aim at a shard.
func (t *table) index(seed maphash.Seed, identity string) uint64 {
	return maphash.String(seed, identity) & uint64(len(t.shards)-1)
}

// all is the set of all shards.
func (t *table) all() uint64 { return ^uint64(0) >> (64 - len(t.shards)) }

// lock locks a set of shards, in ascending order so that no two calls wait for
// each other.
func (t *table) lock(mask uint64) {
	for ; mask != 0; mask &= mask - 1 {
		t.shards[bits.TrailingZeros64(mask)].mu.Lock()
	}
}

func (t *table) unlock(mask uint64) {
	for ; mask != 0; mask &= mask - 1 {
		t.shards[bits.TrailingZeros64(mask)].mu.Unlock()
	}
}

func (t *table) dropIdle(mask uint64, now int64) {
	for ; mask != 0; mask &= mask - 1 {
		t.shards[bits.TrailingZeros64(mask)].dropIdleLocked(now)
	}
}

// inherit moves all entries of a locked table into a new one. Which of the new
// shards a forgotten bucket would be in is not known, so all of them answer for
// it.
func (t *table) inherit(old *table, seed maphash.Seed, now int64) {
	for i := range old.shards {
		for _, f := range old.shards[i].ranking {
			for j := range t.shards {
				if sh := &t.shards[j]; f.debt > 0 {
					sh.familyLocked(f.scope).owe(f.debt)
				}
			}
		}
	}
	for i := range old.shards {
		for k, e := range old.shards[i].entries {
			sh := &t.shards[t.index(seed, e.identity)]
			sh.adoptLocked(e, k.scope)
			if len(sh.entries) > sh.quota {
				sh.forgetLocked(now)
			}
		}
	}
}
