package memorybackend

import (
	"sync"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// key names a bucket.
type key struct{ identity, scope string }

// entry is a bucket in a shard.
type entry struct {
	identity string
	family   *family
	state
	position int32 // in the family's heap
}

func (e *entry) key() key { return key{e.identity, e.family.scope} }

// shard is the part of a table behind one lock.
type shard struct {
	mu       sync.Mutex
	entries  map[key]*entry
	families map[string]*family // by scope
	ranking  ranking            // of all families
	turn     *family            // whose idle entries are dropped next

	// The most entries it may hold.
	quota int

	// The most entries since the map was made. A map never gives memory back.
	peak int

	overflow *overflow // of the store

	_ [64]byte // neighbours' locks do not share a cache line
}

// Bounds on the work that one call does beside its own.
const (
	dropsPerCall = 2   // idle entries looked at, more than a call usually adds
	shrinkBelow  = 8   // a map is made anew when filled to less than 1/8 of its peak
	smallMap     = 256 // and not at all while its peak is below this
)

func (sh *shard) init(quota int, o *overflow) {
	sh.entries, sh.families = make(map[key]*entry), make(map[string]*family)
	sh.quota, sh.overflow = quota, o
}

// stateLocked copies the state of a bucket and returns where it is stored, if it is.
func (sh *shard) stateLocked(b *policy.Bucket, now int64, to *state) *entry {
	e := sh.entries[key{b.Identity, b.Scope}]
	switch {
	case e == nil:
		*to = owing(b.Rule, now, sh.debtLocked(b.Scope))
	case e.expiry() <= now:
		*to = state{}
	default:
		*to = e.state
	}
	return e
}

// debtLocked is until when newcomers of a scope are in debt.
func (sh *shard) debtLocked(scope string) int64 {
	if f := sh.families[scope]; f != nil {
		return f.debt
	}
	return 0
}

// updateLocked writes a bucket that is stored.
func (sh *shard) updateLocked(e *entry, s *state) {
	s.log.write(s)
	e.state = *s
	e.family.heap.sooner(e)
}

// insertLocked stores a bucket that is not. A full shard forgets another one for it.
func (sh *shard) insertLocked(k key, s *state) {
	var e *entry
	if len(sh.entries) < sh.quota {
		e = new(entry)
	} else {
		e = sh.forgetLocked(s.at)
	}
	s.log.write(s)
	*e = entry{identity: k.identity, state: *s}
	sh.adoptLocked(e, k.scope)
}

// resetLocked makes a bucket one that is known to owe nothing.
func (sh *shard) resetLocked(b *policy.Bucket) {
	k := key{b.Identity, b.Scope}
	switch e := sh.entries[k]; {
	case e != nil:
		sh.updateLocked(e, &state{})
	case sh.debtLocked(b.Scope) > 0:
		sh.insertLocked(k, &state{})
	}
}

func (sh *shard) adoptLocked(e *entry, scope string) {
	e.family = sh.familyLocked(scope)
	sh.entries[e.key()] = e
	e.family.heap.push(e)
	sh.ranking.grew(e.family)
	sh.peak = max(sh.peak, len(sh.entries))
}

// familyLocked finds the family of a scope, or founds it.
func (sh *shard) familyLocked(scope string) *family {
	f := sh.families[scope]
	if f != nil {
		return f
	}
	f = &family{scope: scope}
	sh.families[scope] = f
	sh.ranking.add(f)
	if sh.turn == nil {
		sh.turn, f.next = f, f
	} else {
		f.next, sh.turn.next = sh.turn.next, f
	}
	return f
}

// forgetLocked removes an entry of the largest family, the one nearest to idle, and
// remembers until when it would have been in debt. So whoever fills the table with
// clients of one limit does it at that limit's expense. Putting stale keys right can
// take long, but every step is one that a write has saved.
func (sh *shard) forgetLocked(now int64) *entry {
	f := sh.ranking[0]
	for f.heap.advance() {
	}
	e := sh.popLocked(f)
	f.owe(e.idle)
	if e.idle > now {
		sh.overflow.note(&f.scope, now)
	}
	return e
}

// popLocked removes the top of a family's heap.
func (sh *shard) popLocked(f *family) *entry {
	e := f.heap.pop()
	delete(sh.entries, e.key())
	sh.ranking.shrank(f)
	return e
}

// dropIdleLocked removes entries that equal buckets never seen, a few at a
// time, so that no call pays for all. Families take turns, each as long as it has
// more of them.
func (sh *shard) dropIdleLocked(now int64) {
	f := sh.turn
	if f == nil {
		return
	}
	if n := sh.dropFromLocked(f, now); n < dropsPerCall {
		sh.passTurnLocked(now)
		if n == 0 {
			return
		}
	}
	sh.shrinkLocked()
}

// dropFromLocked removes idle entries of a family and returns how many. While its
// newcomers are in debt they do not equal them: that it is known to owe nothing is
// worth a client's place.
func (sh *shard) dropFromLocked(f *family, now int64) (n int) {
	if f.debt > now {
		return 0
	}
	for range dropsPerCall {
		if len(f.heap) == 0 || f.heap[0].due > now {
			break
		}
		if !f.heap.advance() {
			sh.popLocked(f)
		}
		n++
	}
	return n
}

// passTurnLocked gives the turn to the next family, or removes that one if nothing is
// left of it: a limit that is not used any more leaves no trace.
func (sh *shard) passTurnLocked(now int64) {
	f, next := sh.turn, sh.turn.next
	if !next.settled(now) {
		sh.turn = next
		return
	}
	delete(sh.families, next.scope)
	sh.ranking.remove(next)
	if f.next = next.next; next == f {
		sh.turn = nil
	}
}

// shrinkLocked gives the memory of a past flood back.
func (sh *shard) shrinkLocked() {
	if sh.peak < smallMap || len(sh.entries) > sh.peak/shrinkBelow {
		return
	}
	entries := make(map[key]*entry, len(sh.entries))
	for k, e := range sh.entries {
		entries[k] = e
	}
	sh.entries = entries
	for _, f := range sh.ranking {
		f.heap = append(make(idleHeap, 0, len(f.heap)), f.heap...)
	}
	sh.peak = len(entries)
}
