// Package conformance is the contract of a backend as one suite that every
// backend passes. What the suite expects is computed by hand or by a model of
// its own, never by a backend.
//
// The suite gives every backend its time, so no test waits. A backend on a
// server may still forget keys by the server's own clock: what the suite stores
// takes at least five seconds to drain.
package conformance

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Backend is what the suite tests. Take decides one request: it takes every
// bucket's cost if all enforced buckets have room for theirs, and else nothing.
// decisions has the length of buckets and is overwritten.
type Backend interface {
	Take(ctx context.Context, buckets []policy.Bucket, decisions []policy.Decision) error
}

// Clock is the time that a backend under test counts by. It is safe for
// concurrent use.
type Clock struct{ now atomic.Int64 }

// epoch is when every clock starts: a time whose microseconds are not round.
var epoch = time.Date(2026, time.March, 14, 15, 9, 26, 535_897_000, time.UTC).UnixMicro()

func newClock() *Clock {
	c := new(Clock)
	c.Set(epoch)
	return c
}

// Now returns the time in microseconds since 1970.
func (c *Clock) Now() int64 { return c.now.Load() }

// Advance moves the clock, backwards if d is negative, by whole microseconds.
func (c *Clock) Advance(d time.Duration) { c.now.Add(d.Microseconds()) }

// Set sets the clock to microseconds since 1970, in either direction.
func (c *Clock) Set(microseconds int64) { c.now.Store(microseconds) }

// Run tests a backend. open returns a new one without any state, which counts
// by the clock; what it has to close, it registers with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T, clock *Clock) Backend) {
	RunGivingBack(t, open)
	runner{t, open}.run(modelCase.name, modelCase.test)
}

// RunGivingBack tests a backend that is all or nothing by giving back: what one place
// has taken when another refuses. It promises all that Run does, but for the last
// microsecond of a bucket that was given back while its window was changed.
func RunGivingBack(t *testing.T, open func(t *testing.T, clock *Clock) Backend) {
	run := runner{t, open}.run
	for _, suite := range ledgers {
		for _, l := range suite.ledgers {
			run(suite.algorithm+": "+l.name, func(s *session) { l.play(s, suite.start) })
		}
	}
	for _, c := range requestCases {
		run("request: "+c.name, c.test)
	}
	for _, c := range concurrentCases {
		run("concurrent: "+c.name, c.test)
	}
	for _, c := range randomCases {
		run("random: "+c.name, c.test)
	}
}

// runner runs each test on a backend of its own.
type runner struct {
	t    *testing.T
	open func(t *testing.T, clock *Clock) Backend
}

func (r runner) run(name string, test func(s *session)) {
	r.t.Run(name, func(t *testing.T) {
		clock := newClock()
		test(&session{T: t, clock: clock, start: epoch, backend: r.open(t, clock)})
	})
}

// namedTest is a test that is not a ledger.
type namedTest struct {
	name string
	test func(s *session)
}
