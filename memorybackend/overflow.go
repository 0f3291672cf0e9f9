package memorybackend

import (
	"sync/atomic"
	"time"
)

// warnEvery is how often a store says at most that it is too small.
const warnEvery = 10 * time.Minute

// overflow passes on that a store has forgotten a bucket which was in use: once, and
// then no more for a while.
type overflow struct {
	quiet   atomic.Int64           // until this time, in microseconds, nothing is said
	pending atomic.Pointer[string] // a scope of which something was forgotten, to be told
	tell    func(scope string)     // nil if nobody wants to know
}

// note remembers what to tell, since it is called with locks held.
func (o *overflow) note(scope *string, now int64) {
	if quiet := o.quiet.Load(); now >= quiet && o.quiet.CompareAndSwap(quiet, now+warnEvery.Microseconds()) {
		o.pending.Store(scope)
	}
}

// pass tells what was noted, if anything. No lock may be held.
func (o *overflow) pass() {
	if o.pending.Load() == nil {
		return
	}
	if scope := o.pending.Swap(nil); scope != nil && o.tell != nil {
		o.tell(*scope)
	}
}
