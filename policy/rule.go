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

// algorithms lists every name that a configuration may use; implemented, those
// that both backends can decide.
var (
	algorithms  = []Algorithm{TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog}
	implemented = []Algorithm{TokenBucket}
)

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

// Rule is a limit and its algorithm in the integers that a backend computes
// with. It is immutable and may be shared.
//
// For a token bucket, every microsecond gives back Num and a unit costs Den:
// count/window in lowest terms. 100/1m is Num 1, Den 600000, and with no burst
// of its own has a Capacity of 60000000.
type Rule struct {
	Limit     Limit
	Algorithm Algorithm

	Num, Den int64

	// Capacity is Limit.Capacity in the unit of Den. It is below 2^53. Zero
	// denies everything, and such a rule is never given to a backend.
	Capacity int64
}

// NewRule checks the limit and reduces it. An empty algorithm is TokenBucket.
// It refuses a limit whose exact
// arithmetic would leave the integers that Redis's Lua can hold, and an
// algorithm that this version cannot decide.
func NewRule(l Limit, a Algorithm) (*Rule, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	if a == "" {
		a = TokenBucket
	}
	if l.Count == 0 { // denied without any state, so by any algorithm
		return &Rule{Limit: l, Algorithm: a}, nil
	}
	if !slices.Contains(implemented, a) {
		return nil, fmt.Errorf("algorithm %s is not available in this version; write token_bucket, or leave the word out", a)
	}
	window := int64(l.Window / time.Microsecond)
	g := gcd(l.Count, window)
	r := &Rule{Limit: l, Algorithm: a, Num: l.Count / g, Den: window / g}
	hi, lo := bits.Mul64(uint64(l.Capacity()), uint64(r.Den))
	if hi != 0 || lo >= uint64(maxExact) {
		return nil, fmt.Errorf("limit %s cannot be counted exactly: its burst of %d times %d (the window in microseconds, reduced by the count) reaches 2^53; "+
			"write a smaller burst, a shorter window, or a count that shares more factors with the window", l, l.Capacity(), r.Den)
	}
	r.Capacity = int64(lo)
	return r, nil
}

// DenyAll reports whether the rule refuses every request. No backend is asked
// about it.
func (r *Rule) DenyAll() bool { return r.Limit.Count == 0 }

// CheckCost reports a cost that this rule could never grant.
func (r *Rule) CheckCost(cost int64) error {
	switch {
	case cost < 0:
		return fmt.Errorf("cost %d is negative; write a whole number from 0", cost)
	case !r.DenyAll() && cost > r.Limit.Capacity():
		return fmt.Errorf("cost %d can never be granted: the limit %s gives at most %d at once; raise the burst or lower the cost",
			cost, r.Limit, r.Limit.Capacity())
	}
	return nil
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
