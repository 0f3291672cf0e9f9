package memorybackend

import (
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// algorithm says which algorithm wrote a state, so that a key whose algorithm
// was changed is recognized.
type algorithm uint8

// The algorithms that write states. The zero value is a bucket never seen.
const (
	unseen algorithm = iota
	tokenBucket
)

// state is what is kept of a bucket. The zero state is a bucket never seen.
type state struct {
	at   int64 // when it was so, in microseconds since the epoch
	used int64 // what was used as of then; a unit costs den
	den  int64
	idle int64 // when it equals a bucket never seen, if nothing more is taken

	algorithm algorithm
}

// expiry is when the state may be forgotten: once it is idle, in whole
// milliseconds after it was written, which is the resolution of a key's time
// to live in Redis.
func (s *state) expiry() int64 {
	return s.at + ceilDiv(s.idle-s.at, 1000)*1000
}

// decide is the one place that knows which function counts by which algorithm.
//
// The function is pure: from a bucket's state it tells what cost does at the
// time now, and the state after it. The state of a refusal is the one before,
// brought up to now. A cost of 0 describes the bucket as it is.
func decide(s state, r *policy.Rule, now, cost int64) (state, policy.Decision) {
	switch r.Algorithm {
	case policy.TokenBucket:
		return decideTokenBucket(s, r, now, cost)
	default: // no rule of another algorithm passes policy.NewRule
		return decideTokenBucket(s, r, now, cost)
	}
}

// owing returns the state of a bucket of the rule that is in debt until the
// time until, or as far as it can be.
func owing(r *policy.Rule, now, until int64) state {
	if until <= now {
		return state{}
	}
	return owingTokenBucket(r, now, until)
}

func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
