package memorybackend

import (
	"math/bits"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// decideTokenBucket counts by the token bucket, also known as the leaky bucket
// as a meter (ITU-T I.371, Annex A): it drains by Num units every
// microsecond, a cost adds Den for each of its units, and what does not fit in
// is refused.
func decideTokenBucket(s *state, r *policy.Rule, now, cost int64) policy.Decision {
	s.settle(r, now)
	d := policy.Decision{Remaining: (r.Capacity - s.used) / r.Den}
	if cost <= d.Remaining {
		d.Allowed = true
		d.Remaining -= cost
		s.used += cost * r.Den
	} else {
		missing := s.used - (r.Capacity - cost*r.Den)
		d.RetryAfter = microseconds(ceilDiv(missing, r.Num))
	}
	reset := ceilDiv(s.used, r.Num)
	s.idle = s.at + reset
	d.ResetAfter = microseconds(reset)
	return d
}

// settle brings the state of a token or leaky bucket to the present and into the
// rule's unit; idle is left to whoever knows what is used in the end. Time never
// moves back: with a clock behind the state's, the state stays as of its own
// time, so nothing drains twice.
func (s *state) settle(r *policy.Rule, now int64) {
	if s.used > 0 && s.den != r.Den {
		s.used = rescale(s.used, s.den, r.Den, r.Capacity)
	}
	now = max(now, s.at)
	s.used = drain(min(s.used, r.Capacity), now-s.at, r.Num)
	s.at, s.den = now, r.Den
}

// rescale converts used from the unit from to the unit to, rounded up so that
// no fraction is forgiven, and cut at capacity.
func rescale(used, from, to, capacity int64) int64 {
	hi, lo := bits.Mul64(uint64(used), uint64(to))
	if hi >= uint64(from) { // the quotient has more than 64 bits
		return capacity
	}
	q, rem := bits.Div64(hi, lo, uint64(from))
	if q >= uint64(capacity) {
		return capacity
	}
	if rem > 0 {
		q++
	}
	return int64(q)
}

// drain returns what is left of used after elapsed microseconds.
func drain(used, elapsed, num int64) int64 {
	hi, lo := bits.Mul64(uint64(elapsed), uint64(num))
	if hi > 0 || lo >= uint64(used) {
		return 0
	}
	return used - int64(lo)
}

// owingBucket is a token or leaky bucket that will have drained at the time until,
// or a full one if that takes less long.
func owingBucket(r *policy.Rule, now, until int64, a algorithm) state {
	used := r.Capacity
	hi, lo := bits.Mul64(uint64(until-now), uint64(r.Num))
	if hi == 0 && lo < uint64(r.Capacity) {
		used = int64(lo)
	}
	return state{at: now, used: used, den: r.Den, idle: now + ceilDiv(used, r.Num), algorithm: a}
}
