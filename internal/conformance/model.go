package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// model is the contract once more, as plainly as it can be said: one bucket at a
// time, nothing forgotten, and every number found by trying.
type model map[name]account

type name struct{ identity, scope string }

// account is what the model keeps of a bucket.
type account struct {
	tally
	idle int64 // when it will be empty
}

// tally is what was used of one bucket, as of a time, by one algorithm.
type tally interface {
	// now returns the time that it is of.
	now() int64
	// later returns a copy as of a time, or of its own if that is later.
	later(now int64) tally
	// under returns a copy by another limit of the same algorithm, as of its own
	// time, or nil if it is by another algorithm.
	under(r *policy.Rule) tally
	fits(cost int64) bool
	charge(cost int64)
	// delay is how long what fits has to wait.
	delay() time.Duration
	// empty reports whether it equals a bucket never seen.
	empty() bool
	// String writes all of it, so that tallies of equal text are equal.
	String() string
}

// take decides one request and says which buckets were charged.
func (m model) take(now int64, buckets []policy.Bucket) (decisions []policy.Decision, charged []bool) {
	passes := true
	tallies := make([]tally, len(buckets))
	for i, b := range buckets {
		tallies[i] = m.tally(b, now)
		passes = passes && (b.Shadow || fits(tallies[i], b.Cost))
	}
	charged = make([]bool, len(buckets))
	for i, b := range buckets {
		t := tallies[i]
		decision := policy.Decision{Allowed: fits(t, b.Cost)}
		if !decision.Allowed {
			decision.RetryAfter = wait(t, func(t tally) bool { return t.fits(b.Cost) })
		}
		if decision.Allowed && passes && b.Cost > 0 {
			charged[i] = true
			if !b.Shadow {
				decision.Delay = t.delay()
			}
			t.charge(b.Cost)
			idle := t.now() + wait(t, tally.empty).Microseconds()
			m[name{b.Identity, b.Scope}] = account{t, idle}
		}
		decision.Remaining = singles(t)
		decision.ResetAfter = wait(t, tally.empty)
		decisions = append(decisions, decision)
	}
	return decisions, charged
}

// tally returns a copy of what is kept of a bucket, by its rule and as of now.
func (m model) tally(b policy.Bucket, now int64) tally {
	if stored, ok := m[name{b.Identity, b.Scope}]; ok {
		if t := stored.under(b.Rule); t != nil {
			return t.later(now)
		}
	}
	return newTally(b.Rule, now)
}

func newTally(r *policy.Rule, now int64) tally {
	switch r.Algorithm {
	case policy.FixedWindow:
		return &fixedTally{at: now, rule: r}
	case policy.SlidingWindow:
		return &slidingTally{at: now, rule: r}
	case policy.SlidingLog:
		return &logTally{at: now, rule: r}
	default:
		return newBucketTally(r, now)
	}
}

// clone returns a model that may be taken from without changing this one.
func (m model) clone() model {
	c := make(model, len(m))
	for n, a := range m {
		c[n] = a // a stored tally is copied before it is charged
	}
	return c
}

// fingerprint writes all of a model, so that models of equal text are equal.
func (m model) fingerprint() string {
	lines := make([]string, 0, len(m))
	for n, a := range m {
		lines = append(lines, fmt.Sprintf("%s %s: %s", n.identity, n.scope, a.tally))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// fits says whether a cost would pass; a look always does.
func fits(t tally, cost int64) bool { return cost == 0 || t.fits(cost) }

// singles counts how many units could be had one by one.
func singles(t tally) int64 {
	t = t.later(t.now())
	n := int64(0)
	for ; t.fits(1); n++ {
		t.charge(1)
	}
	return n
}

// wait finds the first microsecond from which on something is so, by bisection.
func wait(t tally, so func(tally) bool) time.Duration {
	if so(t) {
		return 0
	}
	early, late := int64(0), int64(1)<<50
	for late-early > 1 {
		if middle := (early + late) / 2; so(t.later(t.now() + middle)) {
			late = middle
		} else {
			early = middle
		}
	}
	return time.Duration(late) * time.Microsecond
}
