package topk

import (
	"sync"
	"time"
)

// Window is a time for which Recent answers.
type Window int

// The windows.
const (
	Minute Window = iota
	FiveMinutes
	Hour
	windows
)

// tick is how often the present becomes part of the past.
const tick = 10 * time.Second

// lengths says how windows are cut into slots. The present slot is not over, so a
// window is answered from one more: from up to a fifth longer than it is.
var lengths = [windows]struct {
	ticks int64 // in a slot
	slots int64 // in a window
}{
	Minute:      {1, 6},
	FiveMinutes: {6, 5},
	Hour:        {60, 6},
}

const (
	shards          = 8
	countersInShard = 64

	// gathered is how many different keys a shard notes before it counts them. To
	// count many in a row costs each of them less than to count it when it comes.
	gathered = 16
)

// Recent counts the occurrences of keys in the last minute, five minutes and hour.
// It is safe for concurrent use, and takes at most some 10,000 entries whatever
// occurs: 64 counters of each shard, for the present and for the slots of each
// window. Make one with NewRecent.
type Recent[K comparable] struct{ shards [shards]shard[K] }

// shard is the part of the keys behind one lock.
type shard[K comparable] struct {
	mu    sync.Mutex
	tick  int64      // when the present began, in ticks
	now   *Sketch[K] // the present, but for what has been gathered since
	slots [windows][]slot[K]

	gathered []run[K] // at most so many

	_ [64]byte // neighbours' locks do not share a cache line
}

// run is occurrences of a key that followed one another.
type run[K comparable] struct {
	key   K
	times int64
}

// slot is a part of the past.
type slot[K comparable] struct {
	number int64 // of the slots of its window, from the beginning of time
	Summary[K]
}

// NewRecent makes an empty Recent.
func NewRecent[K comparable]() *Recent[K] {
	r := new(Recent[K])
	for i := range r.shards {
		sh := &r.shards[i]
		sh.now = NewSketch[K](countersInShard)
		sh.gathered = make([]run[K], 0, gathered)
		for w, length := range lengths {
			sh.slots[w] = make([]slot[K], length.slots+1)
		}
	}
	return r
}

// Add counts one occurrence at a time since some beginning. hash is any hash of the
// key that is always the same.
func (r *Recent[K]) Add(key K, hash uint64, now time.Duration) {
	sh := &r.shards[hash%shards]
	sh.mu.Lock()
	if t := int64(now / tick); t > sh.tick {
		sh.passLocked(t)
	}
	sh.gatherLocked(key)
	sh.mu.Unlock()
}

// gatherLocked notes an occurrence in the present.
func (sh *shard[K]) gatherLocked(key K) {
	if n := len(sh.gathered); n > 0 && sh.gathered[n-1].key == key {
		sh.gathered[n-1].times++
		return
	}
	if len(sh.gathered) == gathered {
		sh.countLocked()
	}
	sh.gathered = append(sh.gathered, run[K]{key, 1})
}

// countLocked counts what was gathered.
func (sh *shard[K]) countLocked() {
	for i := range sh.gathered {
		sh.now.Add(sh.gathered[i].key, sh.gathered[i].times)
	}
	clear(sh.gathered) // keys hold memory
	sh.gathered = sh.gathered[:0]
}

// passLocked makes the present part of the past, and begins a new one.
func (sh *shard[K]) passLocked(next int64) {
	sh.countLocked()
	for w, length := range lengths {
		number := sh.tick / length.ticks
		s := &sh.slots[w][number%int64(len(sh.slots[w]))]
		if s.number != number {
			*s = slot[K]{number: number}
		}
		s.merge(sh.now)
	}
	sh.now.Reset()
	sh.tick = max(sh.tick, next)
}

// Last sums up what occurred in a window that ends now.
func (r *Recent[K]) Last(w Window, now time.Duration) Summary[K] {
	var all Summary[K]
	for i := range r.shards {
		all.join(r.shards[i].last(w, int64(now/tick)))
	}
	return all
}

func (sh *shard[K]) last(w Window, now int64) (sum Summary[K]) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.passLocked(now)
	oldest := sh.tick/lengths[w].ticks - lengths[w].slots
	for i := range sh.slots[w] {
		if s := &sh.slots[w][i]; s.number >= oldest {
			sum.add(&s.Summary)
		}
	}
	return sum
}
