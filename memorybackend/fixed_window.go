package memorybackend

import "github.com/caddy-tollgate/ratelimit/policy"

// decideFixedWindow counts what is used in windows that follow each other without
// a gap, aligned to the epoch: the windows of a minute are those of the clock.
//
// Of what was used only the last time is known, so with a changed window it counts
// if that lies in the new limit's window.
func decideFixedWindow(s *state, r *policy.Rule, now, cost int64) policy.Decision {
	now = max(now, s.at)
	start := now - now%r.Window
	if s.at < start {
		s.used = 0
	}
	s.at = now
	var d policy.Decision
	end := start + r.Window
	if cost == 0 || cost <= r.Limit.Count-s.used {
		d.Allowed = true
		s.used += cost
	} else {
		d.RetryAfter = microseconds(end - now)
	}
	d.Remaining = max(0, r.Limit.Count-s.used)
	s.idle = now
	if s.used > 0 {
		s.idle = end
		d.ResetAfter = microseconds(end - now)
	}
	return d
}

// owingFixedWindow has used up the present window, unless a bucket with anything
// used in it would be idle later than that.
func owingFixedWindow(r *policy.Rule, now, until int64) state {
	start := now - now%r.Window
	if until < start+r.Window {
		return state{}
	}
	return state{at: now, used: r.Limit.Count, idle: start + r.Window, algorithm: fixedWindow}
}
