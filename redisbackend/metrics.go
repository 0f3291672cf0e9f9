package redisbackend

import (
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
)

// beginMetrics lets the state of the breakers be read while the configuration runs.
func (b *Backend) beginMetrics() {
	c := b.client
	b.unwatch = metrics.BreakerState.Add(func() float64 { return float64(c.breakers.worst()) })
}

// endMetrics ends what beginMetrics began. It is harmless without.
func (b *Backend) endMetrics() {
	if b.unwatch != nil {
		b.unwatch()
		b.unwatch = nil
	}
}

// The states of a breaker, as a metric has them.
const (
	stateClosed = iota
	stateHalfOpen
	stateOpen
)

// worst is the state of the breaker that is furthest from letting calls pass.
func (bs *breakers) worst() (state int) {
	for _, b := range bs.all() {
		state = max(state, b.state())
	}
	return state
}

func (b *breaker) state() int {
	switch {
	case b.outage.Load() == nil:
		return stateClosed
	case b.probing.Load():
		return stateHalfOpen
	default:
		return stateOpen
	}
}

// observe takes a call that was queued at a time and has ended, with an error or
// without.
func observe(began time.Time, err error) {
	metrics.ObserveRedis(time.Since(began))
	if err != nil {
		countError(err)
	}
}

// countError counts what kept Redis from deciding. That a client hung up, or that
// this process ends, does not.
func countError(err error) {
	if kind, ok := kindOf(err); ok {
		metrics.CountRedisError(kind)
	}
}
