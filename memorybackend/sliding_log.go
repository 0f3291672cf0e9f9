package memorybackend

import (
	"slices"
	"sort"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// decideSlidingLog remembers every request that passed, for as long as it counts,
// and so is exact in every window. Each is kept with the total of everything used
// up to it, so that what was used between two of them is a difference, and what is
// looked for is found by bisection.
func decideSlidingLog(s *state, r *policy.Rule, now, cost int64) policy.Decision {
	now = max(now, s.at)
	s.expire(now - r.Window)
	used := s.used - s.prev
	var d policy.Decision
	if cost == 0 || cost <= r.Limit.Count-used {
		d.Allowed = true
		used += cost
		s.extend(now, cost)
	} else {
		due := s.timeOf(s.used - (r.Limit.Count - cost))
		d.RetryAfter = microseconds(due + r.Window - now)
	}
	d.Remaining = max(0, r.Limit.Count-used)
	s.idle = s.at
	if used > 0 {
		s.idle = s.at + r.Window
		d.ResetAfter = microseconds(s.idle - now)
	}
	return d
}

// expire counts the requests up to a time no more. They stay where they are until
// the state is written.
func (s *state) expire(until int64) {
	if s.at <= until {
		s.prev = s.used
		return
	}
	if s.log == nil {
		return
	}
	moments := s.log.moments
	if i := sort.Search(len(moments), func(i int) bool { return moments[i].at > until }); i > 0 {
		s.prev = max(s.prev, moments[i-1].total)
	}
}

// extend adds a request to the state, and leaves its history to write.
func (s *state) extend(now, cost int64) {
	if cost == 0 {
		return
	}
	if s.log == nil && s.used > s.prev && s.at < now {
		s.log = &history{moments: []moment{{s.at, s.used}}}
	}
	s.at = now
	s.used += cost
}

// timeOf returns when the total was reached.
func (s *state) timeOf(total int64) int64 {
	if s.log == nil {
		return s.at
	}
	moments := s.log.moments
	return moments[sort.Search(len(moments), func(i int) bool { return moments[i].total >= total })].at
}

// owingSlidingLog has used everything up at the time whose window ends then, or now
// if that is later than a window from now.
func owingSlidingLog(r *policy.Rule, now, until int64) state {
	at := min(until-r.Window, now)
	return state{at: at, used: r.Limit.Count, idle: at + r.Window, algorithm: slidingLog}
}

// moment is when requests passed, and the total of everything that was used up to
// and with them.
type moment struct{ at, total int64 }

// history is the part of a sliding log that changes in place. Its last moment is
// the one in the state that it belongs to.
type history struct{ moments []moment }

// A history gives memory back when less than a quarter of it is filled, but not
// below so many moments.
const smallHistory = 16

// write makes the history the one of a new state: moments that count no more go,
// and the state's own comes last. A nil history has nothing to write.
func (h *history) write(s *state) {
	if h == nil {
		return
	}
	h.drop(s.prev)
	if last := len(h.moments) - 1; last >= 0 && h.moments[last].at == s.at {
		h.moments[last].total = s.used
		return
	}
	h.moments = append(h.moments, moment{s.at, s.used})
}

// drop removes the moments up to a total once they are half of all, so that each
// moment is moved once on average.
func (h *history) drop(total int64) {
	dead := sort.Search(len(h.moments), func(i int) bool { return h.moments[i].total > total })
	if 2*dead < len(h.moments) {
		return
	}
	live := h.moments[dead:]
	if cap(h.moments) > smallHistory && 4*len(live) < cap(h.moments) {
		h.moments = append(make([]moment, 0, 2*len(live)), live...)
		return
	}
	h.moments = slices.Delete(h.moments, 0, dead)
}
