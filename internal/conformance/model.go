package conformance

import (
	"math/big"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// model is the contract once more, as plainly as it can be said: unbounded
// integers, one bucket at a time, nothing forgotten.
type model map[name]*level

type name struct{ identity, scope string }

// level is what was used of a bucket as of a time, in units that cost den each.
type level struct {
	at   int64
	used *big.Int
	den  int64
	idle int64 // when it will have drained
}

// take decides one request and says which buckets were charged.
func (m model) take(now int64, buckets []policy.Bucket) (decisions []policy.Decision, charged []bool) {
	passes := true
	levels := make([]*level, len(buckets))
	for i, b := range buckets {
		levels[i] = m.level(b, now)
		passes = passes && (b.Shadow || levels[i].fits(b))
	}
	charged = make([]bool, len(buckets))
	for i, b := range buckets {
		fits := levels[i].fits(b)
		decision := policy.Decision{Allowed: fits}
		if fits && passes && b.Cost > 0 {
			charged[i] = true
			levels[i].charge(b)
			m[name{b.Identity, b.Scope}] = levels[i]
		}
		if !fits {
			decision.RetryAfter = levels[i].until(units(b.Rule, b.Rule.Limit.Capacity()-b.Cost), b.Rule)
		}
		decision.Remaining = levels[i].free(b.Rule)
		decision.ResetAfter = levels[i].until(new(big.Int), b.Rule)
		decisions = append(decisions, decision)
	}
	return decisions, charged
}

// level returns a copy of a bucket's level, converted to the rule and drained.
func (m model) level(b policy.Bucket, now int64) *level {
	stored := m[name{b.Identity, b.Scope}]
	if stored == nil {
		return &level{at: now, used: new(big.Int), den: b.Rule.Den}
	}
	used := new(big.Int).Mul(stored.used, big.NewInt(b.Rule.Den))
	used = ceil(used, stored.den)
	if capacity := units(b.Rule, b.Rule.Limit.Capacity()); used.Cmp(capacity) > 0 {
		used = capacity
	}
	at := max(now, stored.at)
	back := new(big.Int).Mul(big.NewInt(at-stored.at), big.NewInt(b.Rule.Num))
	if used.Sub(used, back).Sign() < 0 {
		used.SetInt64(0)
	}
	return &level{at: at, used: used, den: b.Rule.Den}
}

func (l *level) fits(b policy.Bucket) bool {
	after := new(big.Int).Add(l.used, units(b.Rule, b.Cost))
	return after.Cmp(units(b.Rule, b.Rule.Limit.Capacity())) <= 0
}

func (l *level) charge(b policy.Bucket) {
	l.used.Add(l.used, units(b.Rule, b.Cost))
	l.idle = l.at + l.until(new(big.Int), b.Rule).Microseconds()
}

func (l *level) free(r *policy.Rule) int64 {
	left := new(big.Int).Sub(units(r, r.Limit.Capacity()), l.used)
	return left.Div(left, big.NewInt(r.Den)).Int64()
}

// until returns how long the level takes to drain to another.
func (l *level) until(to *big.Int, r *policy.Rule) time.Duration {
	return time.Duration(ceil(new(big.Int).Sub(l.used, to), r.Num).Int64()) * time.Microsecond
}

// units scales n units of a rule.
func units(r *policy.Rule, n int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(n), big.NewInt(r.Den))
}

// ceil divides and rounds up.
func ceil(a *big.Int, b int64) *big.Int {
	q, rest := new(big.Int).DivMod(a, big.NewInt(b), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}
