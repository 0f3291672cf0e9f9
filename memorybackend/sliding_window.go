package memorybackend

import "github.com/caddy-tollgate/ratelimit/policy"

// decideSlidingWindow estimates what was used in the window that ends now from
// two that are aligned to the epoch: all of the present one, and of the one before
// the share that the sliding window still covers, as if it had been used evenly.
// The idea is Cloudflare's (How we built rate limiting capable of scaling to
// millions of domains, 2017); the comparison here is of integers.
func decideSlidingWindow(s *state, r *policy.Rule, now, cost int64) policy.Decision {
	s.roll(r, now)
	start := s.at - s.at%r.Window
	covered := start + r.Window - s.at // of the window before
	free := r.Limit.Count - s.used
	var d policy.Decision
	if cost == 0 || cost <= free && s.prev*covered <= (free-cost)*r.Window {
		d.Allowed = true
		s.used += cost
		free -= cost
	} else {
		d.RetryAfter = microseconds(s.waitSlidingWindow(r, covered, cost))
	}
	d.Remaining = max(0, free*r.Window-s.prev*covered) / r.Window
	s.idle = s.at
	switch {
	case s.used > 0:
		s.idle = start + 2*r.Window
	case s.prev > 0:
		s.idle = start + r.Window
	}
	d.ResetAfter = microseconds(s.idle - s.at)
	return d
}

// waitSlidingWindow returns how long until a cost passes that does not now: until
// the window before weighs little enough, or else until the present one does,
// which then is the one before.
func (s *state) waitSlidingWindow(r *policy.Rule, covered, cost int64) int64 {
	if free := r.Limit.Count - s.used; cost <= free {
		return covered - (free-cost)*r.Window/s.prev
	}
	return covered + max(0, r.Window-(r.Limit.Count-cost)*r.Window/s.used)
}

// roll brings a stored state to the present and to the rule's window. Neither of its
// counts exceeds the limit. Time never moves back.
//
// Of a window that was changed, the estimate of the time when the state was written
// counts as used then: so how long it still counts is known from then on.
func (s *state) roll(r *policy.Rule, now int64) {
	if s.den == 0 { // never seen
		s.den = r.Window
	}
	if s.den != r.Window {
		covered := s.den - s.at%s.den
		s.used += ceilDiv(s.prev*covered, s.den)
		s.prev, s.den = 0, r.Window
	}
	now = max(now, s.at)
	switch ahead := now/s.den - s.at/s.den; {
	case ahead == 1:
		s.prev, s.used = s.used, 0
	case ahead > 1:
		s.prev, s.used = 0, 0
	}
	s.at = now
	s.used = min(s.used, r.Limit.Count)
	s.prev = min(s.prev, r.Limit.Count)
}

// owingSlidingWindow has used up the present window, or the one before if a bucket
// with anything used in the present one would be idle later than that.
func owingSlidingWindow(r *policy.Rule, now, until int64) state {
	start := now - now%r.Window
	s := state{at: now, den: r.Window, algorithm: slidingWindow}
	switch {
	case until >= start+2*r.Window:
		s.used, s.idle = r.Limit.Count, start+2*r.Window
	case until >= start+r.Window:
		s.prev, s.idle = r.Limit.Count, start+r.Window
	default:
		return state{}
	}
	return s
}
