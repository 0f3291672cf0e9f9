package memorybackend

import (
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// algorithm says which algorithm wrote a state. What another one wrote counts as
// never seen, and the next write replaces it.
type algorithm uint8

// The algorithms that write states. The zero value is a bucket never seen.
const (
	unseen algorithm = iota
	tokenBucket
	leakyBucket
	fixedWindow
	slidingWindow
	slidingLog
)

// state is what is kept of a bucket. The zero state is a bucket never seen. How
// the numbers are meant depends on the algorithm:
//
//	                 used                 den          prev
//	token_bucket     in use, scaled       of a unit
//	leaky_bucket     the queue, scaled    of a unit
//	fixed_window     in the window of at
//	sliding_window   in the window of at  its length   in the window before
//	sliding_log      in all requests      -            in those that count no more
type state struct {
	at   int64 // as of when it is so, in microseconds since the epoch
	used int64
	den  int64
	prev int64
	idle int64 // when it equals a bucket never seen, if nothing more is taken; at, if it does now

	// The requests of a sliding log that count, nil if there is only the one
	// that at and used are of.
	log *history

	algorithm algorithm
}

// expiry is when the state may be forgotten: once it is idle, in whole
// milliseconds after the time it is of, as a key's time to live in Redis has
// that resolution.
func (s *state) expiry() int64 {
	return s.at + ceilDiv(s.idle-s.at, 1000)*1000
}

// by makes the state one that the algorithm wrote: what another one did counts as
// never seen.
func (s *state) by(a algorithm) *state {
	if s.algorithm != a {
		*s = state{algorithm: a}
	}
	return s
}

// decide is the one place that knows which function counts by which algorithm.
//
// From a bucket's state it tells what cost does at the time now, and makes it the
// state after that. The state of a refusal is the one before, brought up to now. A
// cost of 0 describes the bucket as it is, and is always allowed. Nothing changes
// but the state itself: the history of a log stays as it was.
func decide(s *state, r *policy.Rule, now, cost int64) policy.Decision {
	switch r.Algorithm {
	case policy.LeakyBucket:
		return decideLeakyBucket(s.by(leakyBucket), r, now, cost)
	case policy.FixedWindow:
		return decideFixedWindow(s.by(fixedWindow), r, now, cost)
	case policy.SlidingWindow:
		return decideSlidingWindow(s.by(slidingWindow), r, now, cost)
	case policy.SlidingLog:
		return decideSlidingLog(s.by(slidingLog), r, now, cost)
	default:
		return decideTokenBucket(s.by(tokenBucket), r, now, cost)
	}
}

// owing returns the state of a bucket of the rule that owes the most that a
// bucket can owe which is idle at the time until.
func owing(r *policy.Rule, now, until int64) state {
	if until <= now {
		return state{}
	}
	switch r.Algorithm {
	case policy.LeakyBucket:
		return owingBucket(r, now, until, leakyBucket)
	case policy.FixedWindow:
		return owingFixedWindow(r, now, until)
	case policy.SlidingWindow:
		return owingSlidingWindow(r, now, until)
	case policy.SlidingLog:
		return owingSlidingLog(r, now, until)
	default:
		return owingBucket(r, now, until, tokenBucket)
	}
}

func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
