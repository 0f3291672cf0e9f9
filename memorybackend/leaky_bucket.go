package memorybackend

import "github.com/caddy-tollgate/ratelimit/policy"

// decideLeakyBucket counts by the leaky bucket as a queue (Turner, New Directions
// in Communications, 1986): what is in it leaves evenly, Num every microsecond, a
// cost adds Den for each of its units, and a request passes once everything before
// it has left. One that would have to wait longer than the limit allows is refused.
//
// What a request itself adds does not delay it, so the queue may be longer than
// what can be waited for, by one request.
func decideLeakyBucket(s *state, r *policy.Rule, now, cost int64) policy.Decision {
	s.settle(r, now)
	longest := r.MaxDelay * r.Num
	d := policy.Decision{Allowed: cost == 0 || s.used <= longest}
	switch {
	case !d.Allowed:
		d.RetryAfter = microseconds(ceilDiv(s.used-longest, r.Num))
	case cost > 0:
		d.Delay = microseconds(ceilDiv(s.used, r.Num))
		s.used += cost * r.Den
	}
	if s.used <= longest {
		d.Remaining = (longest-s.used)/r.Den + 1
	}
	reset := ceilDiv(s.used, r.Num)
	s.idle = s.at + reset
	d.ResetAfter = microseconds(reset)
	return d
}
