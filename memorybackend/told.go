package memorybackend

import "github.com/caddy-tollgate/ratelimit/policy"

// Tell remembers what another backend, which is asked first, said of buckets at the
// time now: so that when it fails, this store does not begin afresh. What is not
// known exactly is remembered as the most that can have been used. It may come
// late and in any order; what was known to be used stays used until it drains.
func (s *Store) Tell(now int64, buckets []policy.Bucket, decisions []policy.Decision) {
	var slots [4]slot
	c := call{now: now, buckets: buckets}
	if len(buckets) <= len(slots) {
		c.slots = slots[:len(buckets)]
	} else {
		c.slots = make([]slot, len(buckets))
	}
	defer s.overflow.pass()
	t, mask := s.lock(&c)
	defer t.unlock(mask)
	t.dropIdle(mask, now)
	for i := range buckets {
		b := &buckets[i]
		told := told(b.Rule, now, &decisions[i])
		c.slots[i].shard.tellLocked(key{b.Identity, b.Scope}, now, &told)
	}
}

// tellLocked stores a state unless one that owes more is stored.
func (sh *shard) tellLocked(k key, now int64, told *state) {
	switch e := sh.entries[k]; {
	case told.idle <= now:
	case e == nil:
		sh.insertLocked(k, told)
	case e.algorithm != told.algorithm || e.idle < told.idle:
		sh.updateLocked(e, told)
	}
}

// told is a state of which a decision would be made, or one that owes more.
func told(r *policy.Rule, now int64, d *policy.Decision) state {
	reset := d.ResetAfter.Microseconds()
	used := r.Limit.Count - d.Remaining
	switch r.Algorithm {
	case policy.LeakyBucket:
		return owingBucket(r, now, now+reset, leakyBucket)
	case policy.FixedWindow:
		return state{at: now, used: used, idle: now + reset, algorithm: fixedWindow}
	case policy.SlidingWindow:
		start := now - now%r.Window
		return state{at: now, used: used, den: r.Window, idle: start + 2*r.Window, algorithm: slidingWindow}
	case policy.SlidingLog:
		at := min(now, now+reset-r.Window)
		return state{at: at, used: used, idle: at + r.Window, algorithm: slidingLog}
	default:
		return owingBucket(r, now, now+reset, tokenBucket)
	}
}
