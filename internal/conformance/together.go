package conformance

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Together runs calls at once, in such a way that the backend finds all of them
// waiting, in their order, when it comes to decide.
type Together func(calls ...func())

// RunTogether tests a backend that decides several waiting requests in one go: the
// answers must be those of one after the other, at one instant, to the last number.
// Equal requests may be decided where the first of them stands.
func RunTogether(t *testing.T, open func(t *testing.T, clock *Clock) (Backend, Together)) {
	for _, c := range []struct {
		name string
		test func(s *session, together Together)
	}{
		{"of equal requests exactly as many pass as the limit has, in order", equalsInOrder},
		{"every number is the model's", togetherLikeTheModel},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := newClock()
			b, together := open(t, clock)
			c.test(&session{T: t, clock: clock, start: epoch, backend: b}, together)
		})
	}
}

// equalsInOrder sends ten equal requests at once by each algorithm, whose limits let
// four pass, and looks at the ledger of their answers.
func equalsInOrder(s *session, together Together) {
	s.start = midnight
	s.at(0)
	for limit, want := range map[string][]policy.Decision{
		"4/4m":                           {pass(3, minute), pass(2, 2*minute), pass(1, 3*minute), pass(0, 4*minute), refuse(0, minute, 4*minute)},
		"1/1m max_delay 3m leaky_bucket": {queued(3, 0, minute), queued(2, minute, 2*minute), queued(1, 2*minute, 3*minute), queued(0, 3*minute, 4*minute), refuse(0, minute, 4*minute)},
		"4/4m fixed_window":              {pass(3, 4*minute), pass(2, 4*minute), pass(1, 4*minute), pass(0, 4*minute), refuse(0, 4*minute, 4*minute)},
		"4/4m sliding_window":            {pass(3, 8*minute), pass(2, 8*minute), pass(1, 8*minute), pass(0, 8*minute), refuse(0, 5*minute, 8*minute)},
		"4/4m sliding_log":               {pass(3, 4*minute), pass(2, 4*minute), pass(1, 4*minute), pass(0, 4*minute), refuse(0, 4*minute, 4*minute)},
	} {
		requests := make([][]policy.Bucket, 10)
		for i := range requests {
			requests[i] = []policy.Bucket{of(limit, bucket(limit, 1)), shadow(of("shadow "+limit, bucket("6/6m", 1)))}
		}
		for i, got := range s.sendTogether(together, requests) {
			if expected := want[min(i, 4)]; got[0] != expected {
				s.Errorf("%s: request %d: got %s, want %s", limit, i, describe(got[0]), describe(expected))
			}
		}
		s.expect([]policy.Bucket{of("shadow "+limit, bucket("6/6m", 2))}, pass(0, 6*minute))
	}
}

// sendTogether sends requests at once and returns what was decided of each.
func (s *session) sendTogether(together Together, requests [][]policy.Bucket) [][]policy.Decision {
	answers := make([][]policy.Decision, len(requests))
	var calls []func()
	for i, request := range requests {
		answers[i] = make([]policy.Decision, len(request))
		for k := range answers[i] {
			answers[i][k] = garbage
		}
		calls = append(calls, func() {
			if err := s.backend.Take(s.Context(), request, answers[i]); err != nil {
				s.Errorf("Take: %v", err)
			}
		})
	}
	together(calls...)
	return answers
}

// togetherLikeTheModel sends requests of up to four buckets, several times each, mixed
// with others of the same buckets, at random times and by limits that change.
func togetherLikeTheModel(s *session, together Together) {
	s.check(func(r *rapid.T, client string) {
		run := traffic{session: s, r: r, model: make(model)}
		for _, scope := range []string{"global", "login", "route:/a", "route:/a:POST"} {
			run.buckets = append(run.buckets, policy.Bucket{Identity: client, Scope: scope, Rule: drawRule(r)})
		}
		for range 6 {
			run.stepTogether(together)
		}
	})
}

func (t *traffic) stepTogether(together Together) {
	t.clock.Advance(t.drawPause())
	now := t.clock.Now()
	var kinds, requests [][]policy.Bucket
	for range rapid.IntRange(1, 3).Draw(t.r, "kinds") {
		kinds = append(kinds, t.drawRequest(now))
	}
	for range rapid.IntRange(1, 12).Draw(t.r, "requests") {
		requests = append(requests, rapid.SampledFrom(kinds).Draw(t.r, "kind"))
	}
	next := t.model.clone()
	want := next.takeTogether(now, requests, t.keepRule)
	if next.fleeting() {
		return
	}
	t.model = next
	for i, got := range t.sendTogether(together, requests) {
		for k := range got {
			if got[k] != want[i][k] {
				t.r.Fatalf("request %d of %d, bucket %d at %s of\n%s got %s\nwant %s", i, len(requests), k, t.elapsed(), listing(requests[i]), describe(got[k]), describe(want[i][k]))
			}
		}
	}
}

// takeTogether decides requests one by one, each where the first of its equals stands,
// and tells of every bucket that was charged.
func (m model) takeTogether(now int64, requests [][]policy.Bucket, charge func(policy.Bucket)) [][]policy.Decision {
	answers := make([][]policy.Decision, len(requests))
	for i := range requests {
		for k := i; k < len(requests); k++ {
			if answers[k] != nil || listing(requests[k]) != listing(requests[i]) {
				continue
			}
			var charged []bool
			answers[k], charged = m.take(now, requests[k])
			for n, b := range requests[k] {
				if charged[n] {
					charge(b)
				}
			}
		}
	}
	return answers
}
