package conformance

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// randomCases are about requests that nobody thought of.
var randomCases = []namedTest{
	{"no window admits more than the burst and its share", noWindowOverflows},
	{"the waits are the first moment that passes", waitsAreExact},
	{"every number is the model's", likeTheModel},
}

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

// drawRule draws a limit whose units take ten seconds or more to come back, so
// that no server forgets what it was charged while a run lasts.
func drawRule(r *rapid.T) *policy.Rule {
	count := rapid.Int64Range(1, 20).Draw(r, "count")
	unit := rapid.Int64Range(10_000_000, 500_000_000).Draw(r, "unit in µs")
	l := policy.Limit{
		Count:  count,
		Window: time.Duration(unit*count+rapid.Int64Range(0, count-1).Draw(r, "rest")) * time.Microsecond,
		Burst:  rapid.Int64Range(0, 40).Draw(r, "burst"),
	}
	rule, err := policy.NewRule(l, policy.TokenBucket)
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

// admission is a request that passed.
type admission struct{ at, cost int64 }

// noWindowOverflows counts by itself what passed, and compares every window
// that starts and ends with an admission.
func noWindowOverflows(s *session) {
	s.check(func(r *rapid.T, client string) {
		b := policy.Bucket{Identity: client, Scope: "zone", Rule: drawRule(r)}
		var log []admission
		for range 60 {
			s.clock.Advance(drawPause(r, b.Rule))
			b.Cost = rapid.Int64Range(1, min(3, b.Rule.Limit.Capacity())).Draw(r, "cost")
			if s.send(r, b)[0].Allowed {
				log = append(log, admission{s.clock.Now(), b.Cost})
			}
		}
		checkWindows(r, b.Rule.Limit, log)
	})
}

func checkWindows(r *rapid.T, l policy.Limit, log []admission) {
	for i, first := range log {
		sum := int64(0)
		for _, last := range log[i:] {
			sum += last.cost
			length := last.at - first.at
			if !withinLimit(l, sum, length) {
				r.Fatalf("%s admitted %d within %d µs, from request %d on", l, sum, length, i)
			}
		}
	}
}

// withinLimit tells whether sum is at most the capacity plus the window's share
// of the count, without a division.
func withinLimit(l policy.Limit, sum, length int64) bool {
	window := big.NewInt(l.Window.Microseconds())
	have := new(big.Int).Mul(big.NewInt(sum-l.Capacity()), window)
	share := new(big.Int).Mul(big.NewInt(l.Count), big.NewInt(length))
	return have.Cmp(share) <= 0
}

// waitsAreExact asks a bucket when to come back, and comes back one microsecond
// early, and then in time.
func waitsAreExact(s *session) {
	s.check(func(r *rapid.T, client string) {
		b := policy.Bucket{Identity: client, Scope: "zone", Rule: drawRule(r)}
		cost := rapid.Int64Range(1, b.Rule.Limit.Capacity())
		for range 10 {
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
		r.Fatalf("%s, cost %d, told to wait %s: one microsecond before that: %s", b.Rule.Limit, b.Cost, wait, describe(d))
	}
	s.clock.Advance(us)
	if d := s.send(r, b)[0]; !d.Allowed {
		r.Fatalf("%s, cost %d, told to wait %s: after that: %s", b.Rule.Limit, b.Cost, wait, describe(d))
	}
}

func (s *session) returnWhenIdle(r *rapid.T, look policy.Bucket) {
	wait := s.send(r, look)[0].ResetAfter
	if wait > 0 {
		s.clock.Advance(wait - us)
		if d := s.send(r, look)[0]; d.ResetAfter != us {
			r.Fatalf("%s, to be idle in %s: one microsecond before that: %s", look.Rule.Limit, wait, describe(d))
		}
		s.clock.Advance(us)
	}
	if d, want := s.send(r, look)[0], pass(look.Rule.Limit.Capacity(), 0); d != want {
		r.Fatalf("%s, to be idle in %s: after that: %s", look.Rule.Limit, wait, describe(d))
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
}

func (t *traffic) step() {
	t.clock.Advance(drawPause(t.r, t.buckets[0].Rule))
	now := t.clock.Now()
	defer t.clock.Set(now)
	// A backend may have forgotten a bucket that was idle for a moment; then
	// a clock set back, or a limit that drains slower, has nothing to act on.
	if t.allLive(now) && rapid.IntRange(0, 5).Draw(t.r, "set back") == 0 {
		t.clock.Advance(-time.Duration(rapid.Int64Range(0, 1e9).Draw(t.r, "back by µs")) * time.Microsecond)
	}
	request := t.drawRequest(now)
	got := t.send(t.r, request...)
	want, charged := t.model.take(t.clock.Now(), request)
	for i, b := range request {
		if got[i] != want[i] {
			t.r.Fatalf("bucket %d at %s of\n%s got %s\nwant %s", i, t.elapsed(), listing(request), describe(got[i]), describe(want[i]))
		}
		if charged[i] {
			t.keepRule(b)
		}
	}
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
		l := t.model[name{b.Identity, b.Scope}]
		if (l == nil || l.idle > now) && rapid.IntRange(0, 3).Draw(t.r, "new limit") == 0 {
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
		fmt.Fprintf(&text, "\t%s of %s: %s, cost %d, shadow %t\n", b.Scope, b.Identity, b.Rule.Limit, b.Cost, b.Shadow)
	}
	return text.String()
}
