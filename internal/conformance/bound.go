package conformance

import (
	"math/rand/v2"
	"strconv"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// counter counts what a bucket lets pass, by itself, and knows what its algorithm
// promises.
type counter interface {
	// admit counts what passed at a time after a delay, in microseconds. It returns
	// by how many units, times the rule's window, the most that passed in any window
	// so far is from what is promised: above 0, the promise was broken; at 0, all of
	// it was given.
	admit(at, cost, delay int64) int64
}

func newCounter(r *policy.Rule) counter {
	window, count := r.Limit.Window.Microseconds(), r.Limit.Count
	switch r.Algorithm {
	case policy.LeakyBucket:
		return &queueCounter{window: window, count: count, delay: r.Limit.MaxDelay.Microseconds()}
	case policy.FixedWindow:
		return &alignedCounter{window: window, count: count}
	case policy.SlidingWindow:
		return &weightedCounter{aligned: alignedCounter{window: window, count: count}, any: trailingCounter{window: window, count: 2*count - 1}}
	case policy.SlidingLog:
		return &trailingCounter{window: window, count: count}
	default:
		return &rateCounter{window: window, count: count, most: r.Limit.Capacity()}
	}
}

// rateCounter is the promise of a token bucket: in any time its burst and the share
// of its count, not more. In scaled units, what passed since any request is what
// passed in all, less the least surplus that there ever was before one.
type rateCounter struct {
	window, count, most int64

	started        bool
	first          int64
	total, surplus int64 // what passed, times the window; its least, less what the rate gives
}

func (c *rateCounter) admit(at, cost, _ int64) int64 {
	if !c.started {
		c.started, c.first = true, at
	}
	share := (at - c.first) * c.count
	c.surplus = min(c.surplus, c.total-share)
	c.total += cost * c.window
	return c.total - share - c.surplus - c.most*c.window
}

// queueCounter is the promise of a leaky bucket: each request leaves after
// everything that the one before it takes at the rate, and none waits longer than
// the longest delay.
type queueCounter struct {
	window, count, delay int64

	free int64 // when the one before is through, times the count
}

func (c *queueCounter) admit(at, cost, delay int64) int64 {
	if delay > c.delay {
		return c.window
	}
	early := c.free - (at+delay)*c.count
	c.free = max(c.free, at*c.count) + cost*c.window
	return early
}

// alignedCounter is the promise of a fixed window: its count in every window since
// 1970.
type alignedCounter struct {
	window, count int64

	number, used int64
}

func (c *alignedCounter) admit(at, cost, _ int64) int64 {
	if at/c.window != c.number {
		c.number, c.used = at/c.window, 0
	}
	c.used += cost
	return (c.used - c.count) * c.window
}

// trailingCounter is the promise of a sliding log: its count in every window,
// wherever it begins.
type trailingCounter struct {
	window, count int64

	passed []admission
	used   int64
}

func (c *trailingCounter) admit(at, cost, _ int64) int64 {
	c.passed = append(c.passed, admission{at, cost})
	c.used += cost
	for c.passed[0].at <= at-c.window {
		c.used -= c.passed[0].cost
		c.passed = c.passed[1:]
	}
	return (c.used - c.count) * c.window
}

// weightedCounter is the promise of a sliding window: its count in every window
// since 1970, and less than twice as much in any other.
type weightedCounter struct {
	aligned alignedCounter
	any     trailingCounter
}

func (c *weightedCounter) admit(at, cost, _ int64) int64 {
	return max(c.aligned.admit(at, cost, 0), c.any.admit(at, cost, 0))
}

// noWindowOverflows counts by itself what passed, and compares with the promise.
func noWindowOverflows(s *session) {
	s.check(func(r *rapid.T, client string) {
		b := policy.Bucket{Identity: client, Scope: "zone", Rule: drawRule(r)}
		counter := newCounter(b.Rule)
		for i := range 60 {
			s.clock.Advance(drawPause(r, b.Rule))
			s.keepClear(b.Rule)
			b.Cost = rapid.Int64Range(1, min(3, b.Rule.Limit.Capacity())).Draw(r, "cost")
			d := s.send(r, b)[0]
			if !d.Allowed {
				continue
			}
			if over := counter.admit(s.clock.Now(), b.Cost, d.Delay.Microseconds()); over > 0 {
				r.Fatalf("%s admitted more than it promises, by %d scaled units, with request %d", written(b.Rule), over, i)
			}
		}
	})
}

// longTraffic is a client of each algorithm that tries to get more than it is
// promised: it often comes back at the very moment it is told to. Over so many
// requests it must have been given all of the promise, or the count shows nothing.
func longTraffic(s *session) {
	const requests = 4_000
	for seed, limit := range []string{
		"10/10m", "7/11m burst 20", "10/10m leaky_bucket", "7/11m max_delay 2m leaky_bucket",
		"10/10m fixed_window", "7/11m fixed_window", "10/10m sliding_window", "7/11m sliding_window", "10/10m sliding_log", "50/11m sliding_log",
	} {
		b := of("long"+strconv.Itoa(seed), bucket(limit, 1))
		counter := newCounter(b.Rule)
		random := rand.New(rand.NewPCG(uint64(seed), 2026))
		nearest := -b.Rule.Window * b.Rule.Limit.Count
		for i := range requests {
			s.keepClear(b.Rule)
			b.Cost = min(1+random.Int64N(3)*random.Int64N(2), b.Rule.Limit.Capacity())
			d := s.take(b)[0]
			if d.Allowed {
				nearest = max(nearest, counter.admit(s.clock.Now(), b.Cost, d.Delay.Microseconds()))
			}
			if nearest > 0 {
				s.Fatalf("%s admitted more than it promises, by %d scaled units, with request %d", limit, nearest, i)
			}
			s.clock.Set(s.clock.Now() + pause(random, b.Rule, d.RetryAfter.Microseconds()))
		}
		if nearest < 0 {
			s.Errorf("%s gave never all that it promises; nearest were %d scaled units", limit, nearest)
		}
	}
}

// pause is how long the client of longTraffic stays away: mostly not at all, until
// it is told to come, or a microsecond less; sometimes up to two windows.
func pause(random *rand.Rand, r *policy.Rule, retry int64) int64 {
	switch random.IntN(20) {
	case 0:
		return random.Int64N(2 * r.Window)
	case 1, 2, 3:
		return max(0, retry-1)
	case 4, 5:
		return random.Int64N(r.Window / r.Limit.Count)
	default:
		return retry
	}
}

// Interface guards.
var (
	_ counter = (*rateCounter)(nil)
	_ counter = (*queueCounter)(nil)
	_ counter = (*alignedCounter)(nil)
	_ counter = (*trailingCounter)(nil)
	_ counter = (*weightedCounter)(nil)
)
