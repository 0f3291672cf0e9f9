package conformance

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// randomCases are about requests that nobody thought of.
var randomCases = []namedTest{
	{"no window admits more than the algorithm promises", noWindowOverflows},
	{"no window admits more over long traffic either, and all that is promised can be had", longTraffic},
	{"the waits are the first moment that passes", waitsAreExact},
	{"limits that ask in turn give no more than new buckets, and no longer waits than full ones", limitsInTurn},
}

// modelCase demands the model's numbers of histories in which anything changes.
var modelCase = namedTest{"random: every number is the model's", likeTheModel}

// check runs a property on one backend; each run has a client of its own, so
// that it finds no state.
func (s *session) check(property func(r *rapid.T, client string)) {
	runs := 0
	rapid.Check(s.T, func(r *rapid.T) {
		runs++
		s.at(0)
		property(r, "k_"+strconv.Itoa(runs))
	})
}

// send is take for a property.
func (s *session) send(r *rapid.T, buckets ...policy.Bucket) []policy.Decision {
	decisions := make([]policy.Decision, len(buckets))
	for i := range decisions {
		decisions[i] = garbage
	}
	if err := s.backend.Take(s.Context(), buckets, decisions); err != nil {
		r.Fatalf("Take: %v", err)
	}
	return decisions
}

// algorithms are all that a rule may have.
var algorithms = []policy.Algorithm{
	policy.TokenBucket, policy.LeakyBucket, policy.FixedWindow, policy.SlidingWindow, policy.SlidingLog,
}

// drawRule draws a limit by any algorithm.
func drawRule(r *rapid.T) *policy.Rule {
	return drawRuleOf(r, rapid.SampledFrom(algorithms).Draw(r, "algorithm"))
}

// drawRuleOf draws a limit whose units take ten seconds or more to come back, so
// that no server forgets what it was charged while a run lasts. Of a fixed window
// that is only so as long as keepClear sees to it.
func drawRuleOf(r *rapid.T, algorithm policy.Algorithm) *policy.Rule {
	count := rapid.Int64Range(1, 20).Draw(r, "count")
	unit := rapid.Int64Range(10_000_000, 500_000_000).Draw(r, "unit in µs")
	l := policy.Limit{
		Count:  count,
		Window: time.Duration(unit*count+rapid.Int64Range(0, count-1).Draw(r, "rest")) * time.Microsecond,
	}
	switch algorithm {
	case policy.TokenBucket:
		l.Burst = rapid.Int64Range(0, 40).Draw(r, "burst")
	case policy.LeakyBucket:
		delay := min(6*unit, policy.LongestDelay.Microseconds())
		l.MaxDelay = time.Duration(rapid.Int64Range(0, delay).Draw(r, "max_delay in µs")) * time.Microsecond
	}
	rule, err := policy.NewRule(l, algorithm)
	if err != nil {
		r.Fatalf("the suite drew a limit that is none: %v", err)
	}
	return rule
}

// drawPause draws a time between requests: none, short, or around a few units.
func drawPause(r *rapid.T, rule *policy.Rule) time.Duration {
	unit := rule.Limit.Window.Microseconds()/rule.Limit.Count + 1
	longest := rapid.SampledFrom([]int64{0, 3, unit, 4 * unit, 80 * unit}).Draw(r, "longest pause")
	return time.Duration(rapid.Int64Range(0, longest).Draw(r, "pause in µs")) * time.Microsecond
}

// clearance is how long before the end of a fixed window nothing is charged: a
// server would forget it by its own clock, which goes on while the suite's stands.
const clearance = 5 * sec

// keepClear moves the clock on if the rule's fixed window is about to end.
func (s *session) keepClear(r *policy.Rule) {
	window := r.Limit.Window.Microseconds()
	left := window - s.clock.Now()%window
	if r.Algorithm == policy.FixedWindow && left < clearance.Microseconds() {
		s.clock.Set(s.clock.Now() + left)
	}
}

// admission is a request that passed.
type admission struct{ at, cost int64 }

// waitsAreExact asks a bucket when to come back, and comes back one microsecond
// early, and then in time.
func waitsAreExact(s *session) {
	s.check(func(r *rapid.T, client string) {
		b := policy.Bucket{Identity: client, Scope: "zone", Rule: drawRule(r)}
		cost := rapid.Int64Range(1, b.Rule.Limit.Capacity())
		for range 10 {
			s.keepClear(b.Rule)
			b.Cost = cost.Draw(r, "cost")
			if d := s.send(r, b)[0]; !d.Allowed {
				s.returnAfter(r, b, d.RetryAfter)
			}
			s.clock.Advance(drawPause(r, b.Rule))
		}
		b.Cost = 0
		s.returnWhenIdle(r, b)
	})
}

func (s *session) returnAfter(r *rapid.T, b policy.Bucket, wait time.Duration) {
	s.clock.Advance(wait - us)
	if d := s.send(r, b)[0]; d.Allowed || d.RetryAfter != us {
		r.Fatalf("%s, cost %d, told to wait %s: one microsecond before that: %s", written(b.Rule), b.Cost, wait, describe(d))
	}
	s.clock.Advance(us)
	if d := s.send(r, b)[0]; !d.Allowed {
		r.Fatalf("%s, cost %d, told to wait %s: after that: %s", written(b.Rule), b.Cost, wait, describe(d))
	}
}

func (s *session) returnWhenIdle(r *rapid.T, look policy.Bucket) {
	wait := s.send(r, look)[0].ResetAfter
	if wait > 0 {
		s.clock.Advance(wait - us)
		if d := s.send(r, look)[0]; d.ResetAfter != us {
			r.Fatalf("%s, to be idle in %s: one microsecond before that: %s", written(look.Rule), wait, describe(d))
		}
		s.clock.Advance(us)
	}
	if d, want := s.send(r, look)[0], pass(look.Rule.AtOnce, 0); d != want {
		r.Fatalf("%s, to be idle in %s: after that: %s", written(look.Rule), wait, describe(d))
	}
}

// likeTheModel sends requests of up to four buckets at random times, by limits
// that change, and compares with the model.
func likeTheModel(s *session) {
	s.check(func(r *rapid.T, client string) {
		run := traffic{session: s, r: r, model: make(model)}
		for _, scope := range []string{"global", "login", "route:/a", "route:/a:POST"} {
			b := policy.Bucket{Identity: client, Scope: scope, Rule: drawRule(r)}
			if scope == "login" {
				b.Identity = "203.0.113.7_" + client
			}
			run.buckets = append(run.buckets, b)
		}
		for range 40 {
			run.step()
		}
	})
}

// traffic is one run of likeTheModel.
type traffic struct {
	*session
	r       *rapid.T
	model   model
	buckets []policy.Bucket
	told    []time.Duration // waits of the last answer
}

func (t *traffic) step() {
	t.clock.Advance(t.drawPause())
	now := t.clock.Now()
	defer t.clock.Set(now)
	// A backend may have forgotten a bucket that was idle for a moment; then
	// a clock set back, or a limit that drains slower, has nothing to act on.
	if t.allLive(now) && rapid.IntRange(0, 5).Draw(t.r, "set back") == 0 {
		t.clock.Advance(-time.Duration(rapid.Int64Range(0, 1e9).Draw(t.r, "back by µs")) * time.Microsecond)
	}
	request := t.drawRequest(now)
	next := t.model.clone()
	want, charged := next.take(t.clock.Now(), request)
	if next.fleeting() {
		return
	}
	t.model = next
	got := t.send(t.r, request...)
	t.told = nil
	for i, b := range request {
		t.told = append(t.told, got[i].RetryAfter, got[i].ResetAfter)
		if got[i] != want[i] {
			t.r.Fatalf("bucket %d at %s of\n%s got %s\nwant %s", i, t.elapsed(), listing(request), describe(got[i]), describe(want[i]))
		}
		if charged[i] {
			t.keepRule(b)
		}
	}
}

// drawPause draws any pause, or one of those that the last answer told, or a
// microsecond less: there errors of one microsecond are.
func (t *traffic) drawPause() time.Duration {
	if len(t.told) > 0 && rapid.Bool().Draw(t.r, "as told") {
		early := time.Duration(rapid.IntRange(0, 1).Draw(t.r, "early by µs")) * us
		return max(0, rapid.SampledFrom(t.told).Draw(t.r, "told")-early)
	}
	return drawPause(t.r, t.buckets[0].Rule)
}

// fleeting reports whether anything was charged so shortly before it is idle that a
// server may forget it while the suite's clock stands.
func (m model) fleeting() bool {
	for _, a := range m {
		if a.idle-a.now() < clearance.Microseconds() {
			return true
		}
	}
	return false
}

func (t *traffic) allLive(now int64) bool {
	for _, l := range t.model {
		if l.idle <= now {
			return false
		}
	}
	return true
}

// drawRequest draws one to four buckets in any order. Some get a new limit,
// which keepRule makes theirs once a charge was stored by it.
func (t *traffic) drawRequest(now int64) []policy.Bucket {
	n := rapid.IntRange(1, len(t.buckets)).Draw(t.r, "buckets")
	request := append([]policy.Bucket(nil), rapid.Permutation(t.buckets).Draw(t.r, "order")[:n]...)
	for i := range request {
		b := &request[i]
		stored, ok := t.model[name{b.Identity, b.Scope}]
		if (!ok || stored.idle > now) && rapid.IntRange(0, 3).Draw(t.r, "new limit") == 0 {
			b.Rule = drawRule(t.r)
		}
		b.Cost = rapid.Int64Range(0, b.Rule.Limit.Capacity()/2+1).Draw(t.r, "cost")
		b.Shadow = rapid.IntRange(0, 3).Draw(t.r, "shadow") == 0
	}
	return request
}

func (t *traffic) keepRule(changed policy.Bucket) {
	for i := range t.buckets {
		if b := &t.buckets[i]; b.Identity == changed.Identity && b.Scope == changed.Scope {
			b.Rule = changed.Rule
		}
	}
}

func listing(request []policy.Bucket) string {
	var text strings.Builder
	for _, b := range request {
		fmt.Fprintf(&text, "\t%s of %s: %s, cost %d, shadow %t\n", b.Scope, b.Identity, written(b.Rule), b.Cost, b.Shadow)
	}
	return text.String()
}
