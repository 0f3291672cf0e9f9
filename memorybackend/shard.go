package memorybackend

import (
	"sync"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// key names a bucket.
type key struct{ identity, scope string }

// entry is a bucket in a shard.
type entry struct {
	key
	state
	position int32 // in the heap
}

// shard is the part of a table behind one lock.
type shard struct {
	mu      sync.Mutex
	entries map[key]*entry
	heap    idleHeap

	// The most entries it may hold.
	quota int

	// Buckets that were forgotten before they were idle, of each scope, are idle at
	// this time. Nobody can tell a newcomer of the scope from one of them, so it is
	// in debt until then.
	forgotten debts

	// The most entries since the map was made. A map never gives memory back.
	peak int

	_ [64]byte // neighbours' locks do not share a cache line
}

// Bounds on the work that one call does beside its own.
const (
	dropsPerCall = 2   // idle entries looked at, more than a call usually adds
	shrinkBelow  = 8   // a map is made anew when filled to less than 1/8 of its peak
	smallMap     = 256 // and not at all while its peak is below this
)

// stateLocked copies the state of a bucket and returns where it is stored, if it is.
func (sh *shard) stateLocked(b *policy.Bucket, now int64, to *state) *entry {
	e := sh.entries[key{b.Identity, b.Scope}]
	switch {
	case e == nil:
		*to = owing(b.Rule, now, sh.forgotten.until[b.Scope])
	case e.expiry() <= now:
		*to = state{}
	default:
		*to = e.state
	}
	return e
}

// updateLocked writes a bucket that is stored.
func (sh *shard) updateLocked(e *entry, s *state) {
	s.log.write(s)
	e.state = *s
	sh.heap.sooner(e)
}

// insertLocked stores a bucket that is not. A full shard forgets the entry
// nearest to idle for it.
func (sh *shard) insertLocked(k key, s *state) {
	var e *entry
	if len(sh.entries) < sh.quota {
		e = new(entry)
	} else {
		e = sh.forgetLocked()
	}
	s.log.write(s)
	*e = entry{key: k, state: *s}
	sh.adoptLocked(e)
}

// resetLocked makes a bucket one that is known to owe nothing.
func (sh *shard) resetLocked(b *policy.Bucket) {
	k := key{b.Identity, b.Scope}
	switch e := sh.entries[k]; {
	case e != nil:
		sh.updateLocked(e, &state{})
	case sh.forgotten.until[b.Scope] > 0:
		sh.insertLocked(k, &state{})
	}
}

func (sh *shard) adoptLocked(e *entry) {
	sh.entries[e.key] = e
	sh.heap.push(e)
	sh.peak = max(sh.peak, len(sh.entries))
}

// forgetLocked removes the entry nearest to idle and remembers until when it
// would have been in debt. Putting stale keys right can take long, but every
// step is one that a write has saved.
func (sh *shard) forgetLocked() *entry {
	for sh.heap.advance() {
	}
	e := sh.heap.pop()
	delete(sh.entries, e.key)
	sh.forgotten.add(e.scope, e.idle)
	return e
}

// debts says until when the forgotten buckets of each scope are in debt. There are
// as many scopes as limits, so they are few.
type debts struct {
	until  map[string]int64
	latest int64 // of all of them
}

func (d *debts) add(scope string, until int64) {
	if d.until == nil {
		d.until = make(map[string]int64)
	}
	d.until[scope] = max(d.until[scope], until)
	d.latest = max(d.latest, until)
}

// settle forgets debts once all of them are paid.
func (d *debts) settle(now int64) {
	if d.until != nil && d.latest <= now {
		*d = debts{}
	}
}

// dropIdleLocked removes entries that equal buckets never seen, a few at a
// time, so that no call pays for all. While newcomers are in debt they do not
// equal them: that it is known to owe nothing is worth a client's place.
func (sh *shard) dropIdleLocked(now int64) {
	sh.forgotten.settle(now)
	if sh.forgotten.latest > now {
		return
	}
	before := len(sh.heap)
	for range dropsPerCall {
		if len(sh.heap) == 0 || sh.heap[0].due > now {
			break
		}
		if !sh.heap.advance() {
			delete(sh.entries, sh.heap.pop().key)
		}
	}
	if len(sh.heap) < before {
		sh.shrinkLocked()
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
	sh.heap = append(make(idleHeap, 0, len(entries)), sh.heap...)
	sh.peak = len(entries)
}
