package ratelimit

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const (
	// maxDenials is how many refusals are remembered, in some 4 MB; a power of two.
	maxDenials = 1 << 14

	// trustedFor is how long a refusal is repeated until the backend is asked again:
	// what moves a bucket in the client's favor, like an admin's reset at another
	// instance, takes effect after that.
	trustedFor = time.Second
)

// denials remembers of each bucket the last cost that it refused, and until when. By itself, a
// bucket only moves against its client: what it refuses until a time, it refuses
// until then, whoever else takes from it. So a request that such a bucket is part of
// is refused without asking the backend, as the backend would.
//
// Times are of this process's monotonic clock. A refusal is repeated until the time
// before the backend was asked plus its RetryAfter, which is never later than when
// the backend would let the request pass. A rule that differs in anything is another
// one, of which nothing is known.
//
// The table has a fixed size; refusals that meet in a slot replace one another. It
// belongs to one configuration: the next one may have another backend.
type denials struct {
	seed   maphash.Seed
	start  time.Time
	latest atomic.Int64 // when the last of them ends, or later
	table  [maxDenials]atomic.Pointer[denial]
}

// denial is one refusal. Its times are in nanoseconds since the start.
type denial struct {
	identity string
	scope    string
	cost     int64
	rule     policy.Rule

	until     int64 // repeated before that
	passes    int64 // when the cost passes, or a little later
	idle      int64 // when the bucket is as never seen
	remaining int64
}

func newDenials() *denials {
	return &denials{seed: maphash.MakeSeed(), start: time.Now()}
}

// now is the time as remember and find take it.
func (ds *denials) now() int64 { return int64(time.Since(ds.start)) }

// any reports whether any refusal may be known, cheaply.
func (ds *denials) any(now int64) bool { return now < ds.latest.Load() }

// forget drops all that is known.
func (ds *denials) forget() {
	for i := range ds.table {
		ds.table[i].Store(nil)
	}
}

// learn takes note of a call that was sent at a time and has just been answered.
func (ds *denials) learn(buckets []policy.Bucket, decisions []policy.Decision, sent int64) {
	switch {
	case !policy.Allowed(buckets, decisions):
		ds.remember(buckets, decisions, sent, ds.now())
	case ds.any(sent):
		ds.outdate(buckets)
	}
}

// remember keeps the refusals of a call, by the times when it was sent and when its
// answer was received.
func (ds *denials) remember(buckets []policy.Bucket, decisions []policy.Decision, sent, received int64) {
	for i := range buckets {
		b, d := &buckets[i], &decisions[i]
		// the last microsecond may be one that the backend's clock rounded
		wait := min(d.RetryAfter-time.Microsecond, trustedFor)
		if b.Shadow || d.Allowed || wait <= 0 {
			continue
		}
		until := sent + int64(wait)
		ds.slot(b).Store(&denial{
			identity: b.Identity, scope: b.Scope, cost: b.Cost, rule: *b.Rule,
			until: until, passes: received + int64(d.RetryAfter), idle: received + int64(d.ResetAfter), remaining: d.Remaining,
		})
		ds.extend(until)
	}
}

// extend says that a refusal ends at a time.
func (ds *denials) extend(until int64) {
	for {
		latest := ds.latest.Load()
		if latest >= until || ds.latest.CompareAndSwap(latest, until) {
			return
		}
	}
}

// outdate drops what is known of buckets that were taken from: they refuse what they
// refused for longer now.
func (ds *denials) outdate(buckets []policy.Bucket) {
	for i := range buckets {
		slot := ds.slot(&buckets[i])
		if d := slot.Load(); d != nil && d.identity == buckets[i].Identity && d.scope == buckets[i].Scope {
			slot.CompareAndSwap(d, nil)
		}
	}
}

// find returns what the backend would decide about an enforced bucket, if it is
// known to refuse now.
func (ds *denials) find(b *policy.Bucket, now int64) (policy.Decision, bool) {
	d := ds.slot(b).Load()
	if d == nil || now >= d.until || b.Shadow || d.cost != b.Cost || d.identity != b.Identity || d.scope != b.Scope || d.rule != *b.Rule {
		return policy.Decision{}, false
	}
	return policy.Decision{
		Remaining:  d.remaining,
		RetryAfter: ceilMicroseconds(d.passes - now),
		ResetAfter: ceilMicroseconds(d.idle - now),
	}, true
}

// slot is where a bucket's last refusal is kept.
func (ds *denials) slot(b *policy.Bucket) *atomic.Pointer[denial] {
	const odd = 0x9e3779b97f4a7c15 // spreads, so that equal parts do not cancel out
	sum := maphash.String(ds.seed, b.Identity)
	sum = sum*odd + maphash.String(ds.seed, b.Scope)
	return &ds.table[(sum^sum>>32)%maxDenials]
}

// ceilMicroseconds rounds nanoseconds up, as backends do.
func ceilMicroseconds(ns int64) time.Duration {
	return (time.Duration(ns) + time.Microsecond - 1).Truncate(time.Microsecond)
}

// recall refuses the request if an enforced bucket of it is known to refuse.
func (e *evaluation) recall(now int64) *refusal {
	denials := e.h.app.denials
	if !denials.any(now) {
		return nil
	}
	first, refused := len(e.report.entries), false
	for i := range e.buckets {
		d, known := denials.find(&e.buckets[i], now)
		refused = refused || known
		e.report.entries = append(e.report.entries, entry{limit: e.limits[i], Decision: d, unasked: !known})
	}
	if refused {
		return e.refuseFrom(first)
	}
	e.report.entries = e.report.entries[:first]
	return nil
}
