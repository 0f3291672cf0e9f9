package policy

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// Algorithm is how a limit is counted.
type Algorithm string

// The algorithms. TokenBucket is the default.
const (
	TokenBucket   Algorithm = "token_bucket"
	LeakyBucket   Algorithm = "leaky_bucket"
	FixedWindow   Algorithm = "fixed_window"
	SlidingWindow Algorithm = "sliding_window"
	SlidingLog    Algorithm = "sliding_log"
)

// algorithms lists every name that a configuration may use.
var algorithms = []Algorithm{TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog}

// Mode says whether a limit refuses or only counts.
type Mode string

// The modes. Enforce is the default. A shadow limit is counted and reported,
// and never refuses.
const (
	Enforce Mode = "enforce"
	Shadow  Mode = "shadow"
)

// OnError says what happens to a request while the backend cannot decide.
type OnError string

// The failure modes. Local is the default.
const (
	Open   OnError = "open"   // let the request pass
	Closed OnError = "closed" // answer 503
	Local  OnError = "local"  // count in this process until the backend is back
)

// ParseAlgorithm reads an algorithm's name; the empty string is TokenBucket.
func ParseAlgorithm(s string) (Algorithm, error) {
	if s == "" {
		return TokenBucket, nil
	}
	return parseWord("algorithm", Algorithm(s), algorithms...)
}

// ParseMode reads a mode; the empty string is Enforce.
func ParseMode(s string) (Mode, error) {
	if s == "" {
		return Enforce, nil
	}
	return parseWord("mode", Mode(s), Enforce, Shadow)
}

// ParseOnError reads a failure mode; the empty string is Local.
func ParseOnError(s string) (OnError, error) {
	if s == "" {
		return Local, nil
	}
	return parseWord("on_error", OnError(s), Open, Closed, Local)
}

func parseWord[T ~string](what string, word T, known ...T) (T, error) {
	if slices.Contains(known, word) {
		return word, nil
	}
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	last := len(names) - 1
	return "", fmt.Errorf("unknown %s %q; write %s or %s", what, word, strings.Join(names[:last], ", "), names[last])
}

// maxExact is 2^53: below it a float64, which is all that Redis's Lua has,
// holds every integer exactly.
const maxExact = int64(1) << 53

// MaxLogged is the largest count of a sliding log, which keeps an entry for each
// request that it has let pass in its window.
const MaxLogged = 1_000_000

// Rule is a limit and its algorithm in the integers that a backend computes
// with. It is immutable and may be shared.
//
// For the buckets, every microsecond gives back Num and a unit costs Den:
// count/window in lowest terms. 100/1m is Num 1, Den 600000, and as a token bucket
// with no burst of its own has a Capacity of 60000000.
type Rule struct {
	Limit     Limit
	Algorithm Algorithm

	// The limit's window and longest delay in microseconds.
	Window, MaxDelay int64

	// The rate of a token or leaky bucket. Zero for the other algorithms.
	Num, Den int64

	// Capacity is the most that a token or leaky bucket can hold, in the unit of
	// Den: the burst, or the longest queue and the requests at its end. It is
	// below 2^53. Zero for the other algorithms.
	Capacity int64

	// AtOnce is the most units that can be had at once, which Remaining counts down
	// from. Zero denies everything, and such a rule is never given to a backend.
	AtOnce int64
}

// NewRule checks the limit and reduces it. An empty algorithm is TokenBucket. It
// refuses a limit whose exact arithmetic would leave the integers that Redis's Lua
// can hold, or whose state would not be small.
func NewRule(l Limit, a Algorithm) (*Rule, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	if a == "" {
		a = TokenBucket
	}
	if err := l.fits(a); err != nil {
		return nil, err
	}
	r := &Rule{Limit: l, Algorithm: a, Window: int64(l.Window / time.Microsecond), MaxDelay: int64(l.MaxDelay / time.Microsecond)}
	if l.Count == 0 { // denied without any state, so by any algorithm
		return r, nil
	}
	if err := r.complete(); err != nil {
		return nil, err
	}
	return r, nil
}

// complete computes what the rule's algorithm needs.
func (r *Rule) complete() error {
	r.AtOnce = r.Limit.Count
	switch r.Algorithm {
	case TokenBucket:
		return r.reduceTokenBucket()
	case LeakyBucket:
		return r.reduceLeakyBucket()
	case SlidingWindow:
		return r.checkSlidingWindow()
	case SlidingLog:
		return r.checkSlidingLog()
	}
	return nil
}

// fits reports a word of the limit that the algorithm does not have.
func (l Limit) fits(a Algorithm) error {
	if _, err := ParseAlgorithm(string(a)); err != nil {
		return err
	}
	if l.Burst > 0 && a != TokenBucket {
		return fmt.Errorf("burst goes with algorithm token_bucket only, not with %s; leave it out", a)
	}
	if l.MaxDelay > 0 && a != LeakyBucket {
		return fmt.Errorf("max_delay goes with algorithm leaky_bucket only, not with %s; leave it out", a)
	}
	return nil
}

func (r *Rule) reduce() {
	g := gcd(r.Limit.Count, r.Window)
	r.Num, r.Den = r.Limit.Count/g, r.Window/g
}

func (r *Rule) reduceTokenBucket() error {
	r.reduce()
	r.AtOnce = r.Limit.Capacity()
	capacity, ok := exactProduct(r.AtOnce, r.Den)
	if !ok {
		large := "burst"
		if r.Limit.Burst == 0 {
			large = "count"
		}
		return fmt.Errorf("limit %s cannot be counted exactly: its %s of %d times %d (the window in microseconds, reduced by the count) reaches 2^53; "+
			"write a smaller %s, a shorter window, or a count that shares more factors with the window", r.Limit, large, r.AtOnce, r.Den, large)
	}
	r.Capacity = capacity
	return nil
}

func (r *Rule) reduceLeakyBucket() error {
	r.reduce()
	queue, ok1 := exactProduct(r.MaxDelay, r.Num)
	last, ok2 := exactProduct(r.Limit.Count, r.Den)
	if !ok1 || !ok2 || queue >= maxExact-last {
		return fmt.Errorf("limit %s with max_delay %s cannot be counted exactly: its longest queue times %d (the window in microseconds, reduced by the count) reaches 2^53; "+
			"write a shorter max_delay, a shorter window, or a smaller count", r.Limit, r.Limit.MaxDelay, r.Den)
	}
	r.Capacity = queue + last
	r.AtOnce = queue/r.Den + 1
	return nil
}

func (r *Rule) checkSlidingWindow() error {
	if _, ok := exactProduct(r.Limit.Count, r.Window); !ok {
		return fmt.Errorf("limit %s cannot be counted exactly by sliding_window: the count times the window in microseconds reaches 2^53; "+
			"write a smaller count, a shorter window, or algorithm token_bucket", r.Limit)
	}
	return nil
}

func (r *Rule) checkSlidingLog() error {
	if r.Limit.Count > MaxLogged {
		return fmt.Errorf("limit %s is too large for sliding_log, which keeps an entry for each request: the most is %d; "+
			"write a smaller count, or algorithm sliding_window", r.Limit, MaxLogged)
	}
	return nil
}

// DenyAll reports whether the rule refuses every request. No backend is asked
// about it.
func (r *Rule) DenyAll() bool { return r.Limit.Count == 0 }

// CheckCost reports a cost that this rule could never grant: more than the burst
// of a token bucket, or else more than the count.
func (r *Rule) CheckCost(cost int64) error {
	switch most := r.Limit.Capacity(); {
	case cost < 0:
		return fmt.Errorf("cost %d is negative; write a whole number from 0", cost)
	case !r.DenyAll() && cost > most:
		larger := "count"
		if r.Algorithm == TokenBucket {
			larger = "burst"
		}
		return fmt.Errorf("cost %d can never be granted: the limit %s gives at most %d at once; raise the %s or lower the cost",
			cost, r.Limit, most, larger)
	}
	return nil
}

// exactProduct multiplies, and reports whether the product is below 2^53.
func exactProduct(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo < uint64(maxExact)
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
