package conformance

import (
	"fmt"
	"math/big"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// bucketTally is a token or a leaky bucket: what is in it, in units that cost den
// each, without a bound on the integers.
type bucketTally struct {
	at   int64
	used *big.Int
	rule *policy.Rule
}

func newBucketTally(r *policy.Rule, now int64) *bucketTally {
	return &bucketTally{at: now, used: new(big.Int), rule: r}
}

func (t *bucketTally) now() int64 { return t.at }

func (t *bucketTally) later(now int64) tally {
	now = max(now, t.at)
	gone := new(big.Int).Mul(big.NewInt(now-t.at), big.NewInt(t.rule.Num))
	used := new(big.Int).Sub(t.used, gone)
	if used.Sign() < 0 {
		used.SetInt64(0)
	}
	return &bucketTally{at: now, used: used, rule: t.rule}
}

func (t *bucketTally) under(r *policy.Rule) tally {
	if r.Algorithm != t.rule.Algorithm {
		return nil
	}
	used := new(big.Int).Mul(t.used, big.NewInt(r.Den))
	used = ceil(used, t.rule.Den)
	most := units(r, r.Limit.Capacity())
	if r.Algorithm == policy.LeakyBucket {
		most.Add(most, longest(r))
	}
	if used.Cmp(most) > 0 {
		used = most
	}
	return &bucketTally{at: t.at, used: used, rule: r}
}

func (t *bucketTally) fits(cost int64) bool {
	if t.rule.Algorithm == policy.LeakyBucket {
		return t.used.Cmp(longest(t.rule)) <= 0
	}
	after := new(big.Int).Add(t.used, units(t.rule, cost))
	return after.Cmp(units(t.rule, t.rule.Limit.Capacity())) <= 0
}

func (t *bucketTally) charge(cost int64) { t.used = new(big.Int).Add(t.used, units(t.rule, cost)) }

func (t *bucketTally) delay() time.Duration {
	if t.rule.Algorithm != policy.LeakyBucket {
		return 0
	}
	return time.Duration(ceil(t.used, t.rule.Num).Int64()) * time.Microsecond
}

func (t *bucketTally) empty() bool { return t.used.Sign() == 0 }

func (t *bucketTally) String() string { return fmt.Sprint(written(t.rule), t.at, t.used) }

// units scales n units of a rule.
func units(r *policy.Rule, n int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(n), big.NewInt(r.Den))
}

// longest is the longest queue that a request may still join, scaled.
func longest(r *policy.Rule) *big.Int {
	return new(big.Int).Mul(big.NewInt(r.Limit.MaxDelay.Microseconds()), big.NewInt(r.Num))
}

// ceil divides and rounds up.
func ceil(a *big.Int, b int64) *big.Int {
	q, rest := new(big.Int).DivMod(a, big.NewInt(b), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

// fixedTally is what was used in the window of a time.
type fixedTally struct {
	at, used int64
	rule     *policy.Rule
}

func (t *fixedTally) now() int64 { return t.at }

func (t *fixedTally) later(now int64) tally {
	next := *t
	next.at = max(now, t.at)
	if windowOf(t.rule, next.at) != windowOf(t.rule, t.at) {
		next.used = 0
	}
	return &next
}

func (t *fixedTally) under(r *policy.Rule) tally {
	if r.Algorithm != policy.FixedWindow {
		return nil
	}
	return &fixedTally{at: t.at, used: t.used, rule: r}
}

func (t *fixedTally) fits(cost int64) bool { return t.used+cost <= t.rule.Limit.Count }
func (t *fixedTally) charge(cost int64)    { t.used += cost }
func (t *fixedTally) delay() time.Duration { return 0 }
func (t *fixedTally) empty() bool          { return t.used == 0 }
func (t *fixedTally) String() string       { return fmt.Sprint(written(t.rule), t.at, t.used) }

// slidingTally is what was used in the window of a time and in the one before.
type slidingTally struct {
	at, used, before int64
	rule             *policy.Rule
}

func (t *slidingTally) now() int64 { return t.at }

func (t *slidingTally) later(now int64) tally {
	next := *t
	next.at = max(now, t.at)
	switch windowOf(t.rule, next.at) - windowOf(t.rule, t.at) {
	case 0:
	case 1:
		next.used, next.before = 0, t.used
	default:
		next.used, next.before = 0, 0
	}
	return &next
}

func (t *slidingTally) under(r *policy.Rule) tally {
	if r.Algorithm != policy.SlidingWindow {
		return nil
	}
	next := &slidingTally{at: t.at, used: t.used, before: t.before, rule: r}
	if r.Limit.Window != t.rule.Limit.Window {
		window := t.rule.Limit.Window.Microseconds()
		estimate := ceil(t.estimate(), window)
		next.used, next.before = estimate.Int64(), 0
	}
	next.used = min(next.used, r.Limit.Count)
	next.before = min(next.before, r.Limit.Count)
	return next
}

// estimate is what the window that ends now has used, times its length.
func (t *slidingTally) estimate() *big.Int {
	window := t.rule.Limit.Window.Microseconds()
	covered := (windowOf(t.rule, t.at)+1)*window - t.at
	sum := new(big.Int).Mul(big.NewInt(t.before), big.NewInt(covered))
	return sum.Add(sum, new(big.Int).Mul(big.NewInt(t.used), big.NewInt(window)))
}

func (t *slidingTally) fits(cost int64) bool {
	window := big.NewInt(t.rule.Limit.Window.Microseconds())
	after := new(big.Int).Mul(big.NewInt(cost), window)
	after.Add(after, t.estimate())
	return after.Cmp(window.Mul(window, big.NewInt(t.rule.Limit.Count))) <= 0
}

func (t *slidingTally) charge(cost int64)    { t.used += cost }
func (t *slidingTally) delay() time.Duration { return 0 }
func (t *slidingTally) empty() bool          { return t.used == 0 && t.before == 0 }
func (t *slidingTally) String() string {
	return fmt.Sprint(written(t.rule), t.at, t.used, t.before)
}

// logTally is every request that counts.
type logTally struct {
	at     int64
	passed []admission
	rule   *policy.Rule
}

func (t *logTally) now() int64 { return t.at }

func (t *logTally) later(now int64) tally {
	next := &logTally{at: max(now, t.at), rule: t.rule}
	for _, a := range t.passed {
		if next.at < a.at+t.rule.Limit.Window.Microseconds() {
			next.passed = append(next.passed, a)
		}
	}
	return next
}

func (t *logTally) under(r *policy.Rule) tally {
	if r.Algorithm != policy.SlidingLog {
		return nil
	}
	return &logTally{at: t.at, passed: t.passed, rule: r}
}

func (t *logTally) fits(cost int64) bool {
	for _, a := range t.passed {
		cost += a.cost
	}
	return cost <= t.rule.Limit.Count
}

func (t *logTally) charge(cost int64) {
	t.passed = append(t.passed[:len(t.passed):len(t.passed)], admission{t.at, cost})
}

func (t *logTally) delay() time.Duration { return 0 }
func (t *logTally) empty() bool          { return len(t.passed) == 0 }
func (t *logTally) String() string       { return fmt.Sprint(written(t.rule), t.at, t.passed) }

// windowOf is the number of the rule's window that a time lies in, since 1970.
func windowOf(r *policy.Rule, at int64) int64 { return at / r.Limit.Window.Microseconds() }

// Interface guards.
var (
	_ tally = (*bucketTally)(nil)
	_ tally = (*fixedTally)(nil)
	_ tally = (*slidingTally)(nil)
	_ tally = (*logTally)(nil)
)
