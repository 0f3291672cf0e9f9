package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// stateCase is an algorithm, and how many requests its state is of.
type stateCase struct {
	algorithm policy.Algorithm
	requests  int
}

// stateCases are the rows of the table. Only a log grows with its requests.
var stateCases = []stateCase{
	{policy.TokenBucket, 1},
	{policy.LeakyBucket, 1},
	{policy.FixedWindow, 1},
	{policy.SlidingWindow, 1},
	{policy.SlidingLog, 1},
	{policy.SlidingLog, 10},
	{policy.SlidingLog, 100},
	{policy.SlidingLog, 1000},
}

// How much is measured.
var (
	storedRequests = 100_000 // in all states together that are weighed at once
	timedCalls     = 10_000  // one after the other
)

const (
	callers = 64 // that fill states

	// pace is how far apart calls are at least, so that a log has as many requests in
	// its window as the row says; a log of one has a window that may be none shorter.
	pace = 100 * time.Microsecond
)

// stateCost is a row's numbers.
type stateCost struct {
	own     int64   // bytes by MEMORY USAGE
	allIn   int64   // bytes of used_memory, by the number of keys
	allowed float64 // microseconds of Redis's processor
	refused float64
}

// runAlgorithms measures what each algorithm costs Redis, and prints the table.
func runAlgorithms(ctx context.Context, r redisServer, w io.Writer) error {
	caddyCtx, cancel := caddy.NewContext(caddy.Context{Context: ctx})
	defer cancel()
	backend := &redisbackend.Backend{URLs: []string{r.url}, Timeout: caddy.Duration(askTimeout)}
	if err := backend.Provision(caddyCtx); err != nil {
		return err
	}
	defer func() { _ = backend.Cleanup() }()
	costs := make([]stateCost, len(stateCases))
	for i, c := range stateCases {
		progress("measuring: %s of %d", c.algorithm, c.requests)
		m := stateMeasurement{stateCase: c, ctx: ctx, redis: r, backend: backend}
		var err error
		if costs[i], err = m.measure(); err != nil {
			return fmt.Errorf("%s of %d: %w", c.algorithm, c.requests, err)
		}
	}
	_, err := io.WriteString(w, algorithmsReport(costs))
	return err
}

// stateMeasurement measures one row.
type stateMeasurement struct {
	stateCase
	ctx     context.Context
	redis   redisServer
	backend *redisbackend.Backend
}

func (m stateMeasurement) measure() (c stateCost, err error) {
	if c.own, c.allIn, err = m.weigh(); err != nil {
		return c, err
	}
	free, err := m.passing()
	if err != nil {
		return c, err
	}
	if c.allowed, err = m.time(free, true); err != nil {
		return c, err
	}
	full, err := m.bucket(numbered(1), int64(m.requests), 24*time.Hour)
	if err != nil {
		return c, err
	}
	if err := m.fill(full, m.requests); err != nil {
		return c, err
	}
	c.refused, err = m.time(full, false)
	return c, err
}

// weighed is the client whose key is weighed by itself.
var weighed = netip.AddrFrom4([4]byte{203, 0, 113, 7})

// numbered is one of many other clients.
func numbered(client int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(client >> 16), byte(client >> 8), byte(client)})
}

// bucket is one unit of a limit for a client.
func (m stateMeasurement) bucket(client netip.Addr, count int64, window time.Duration) (policy.Bucket, error) {
	rule, err := policy.NewRule(policy.Limit{Count: count, Window: window}, m.algorithm)
	return policy.Bucket{Identity: client.String(), Scope: "zone", Rule: rule, Cost: 1}, err
}

// store takes what the row says for a client that has taken nothing so far.
func (m stateMeasurement) store(client netip.Addr) error {
	b, err := m.bucket(client, int64(m.requests)+1, 100*24*time.Hour)
	return errors.Join(err, m.fill(b, m.requests))
}

// passing is a bucket that lets every timed call pass. The window of a log is as long as
// the calls take that it is to hold.
func (m stateMeasurement) passing() (policy.Bucket, error) {
	b, err := m.bucket(numbered(0), 1_000_000, time.Hour)
	if err != nil {
		return b, err
	}
	l := b.Rule.Limit
	switch m.algorithm {
	case policy.LeakyBucket:
		l.MaxDelay = policy.LongestDelay
	case policy.SlidingLog:
		l.Window = time.Duration(m.requests) * m.pace()
	}
	b.Rule, err = policy.NewRule(l, m.algorithm)
	return b, err
}

// pace is how far apart timed calls are at least.
func (m stateMeasurement) pace() time.Duration {
	return max(pace, policy.MinWindow/time.Duration(m.requests))
}

// weighedKey is where the backend keeps the bucket of the weighed client.
var weighedKey = "ratelimit:{" + weighed.String() + "}:zone"

var memoryUsage = regexp.MustCompile(`(\d+)`)

// weigh stores many states and finds what each takes.
func (m stateMeasurement) weigh() (own, allIn int64, err error) {
	if _, err = m.redis.command("FLUSHALL"); err != nil {
		return 0, 0, err
	}
	clients := storedRequests / m.requests
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for caller := range callers {
		wg.Go(func() {
			for client := caller; client < clients && errs[caller] == nil; client += callers {
				errs[caller] = m.store(numbered(client))
			}
		})
	}
	wg.Wait()
	if err = errors.Join(append(errs, m.store(weighed))...); err != nil {
		return 0, 0, err
	}
	if own, err = m.redis.number("MEMORY USAGE "+weighedKey+" SAMPLES 0", memoryUsage); err != nil {
		return 0, 0, err
	}
	allIn, err = m.redis.bytesPerKey()
	return own, allIn, err
}

// fill takes from a bucket so often.
func (m stateMeasurement) fill(b policy.Bucket, times int) error {
	decisions := make([]policy.Decision, 1)
	for range times {
		if err := m.backend.Take(m.ctx, []policy.Bucket{b}, decisions); err != nil {
			return err
		}
		if !decisions[0].Allowed {
			return fmt.Errorf("the limit %s is used up too early", b.Rule.Limit)
		}
	}
	return nil
}

var scriptTime = regexp.MustCompile(`(?m)^cmdstat_evalsha:calls=(\d+),usec=(\d+)`)

// time returns how long Redis takes for a call on average, by its own statistics.
func (m stateMeasurement) time(b policy.Bucket, passes bool) (float64, error) {
	var others atomic.Int64
	decisions := make([]policy.Decision, 1)
	call := func() error {
		err := m.backend.Take(m.ctx, []policy.Bucket{b}, decisions)
		if decisions[0].Allowed != passes {
			others.Add(1)
		}
		return err
	}
	for range 2 * m.requests { // until a log is as long as it gets
		if err := m.paced(call); err != nil {
			return 0, err
		}
	}
	if _, err := m.redis.command("CONFIG RESETSTAT"); err != nil {
		return 0, err
	}
	for range timedCalls {
		if err := m.paced(call); err != nil {
			return 0, err
		}
	}
	if n := others.Load(); n > 0 {
		return 0, fmt.Errorf("%d calls were decided otherwise than meant", n)
	}
	return m.scriptTime()
}

func (m stateMeasurement) scriptTime() (float64, error) {
	stats, err := m.redis.command("INFO commandstats")
	if err != nil {
		return 0, err
	}
	match := scriptTime.FindStringSubmatch(stats)
	if match == nil {
		return 0, errors.New("redis ran no script")
	}
	calls, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		return 0, err
	}
	usec, err := strconv.ParseFloat(match[2], 64)
	return usec / calls, err
}

// paced makes a call that takes as long as the pace, at least.
func (m stateMeasurement) paced(call func() error) error {
	start := time.Now()
	err := call()
	for time.Since(start) < m.pace() { // a timer is not that exact
	}
	return errors.Join(err, m.ctx.Err())
}

// algorithmsReport is the table, in Markdown.
func algorithmsReport(costs []stateCost) string {
	out := "\n| algorithm | bytes of a key | with its share of all | allowed | refused |\n|---|---:|---:|---:|---:|\n"
	for i, c := range stateCases {
		name := "`" + string(c.algorithm) + "`"
		if c.algorithm == policy.SlidingLog {
			name += fmt.Sprintf(" of %d", c.requests)
		}
		out += fmt.Sprintf("| %s | %d | %d | %.1f µs | %.1f µs |\n", name, costs[i].own, costs[i].allIn, costs[i].allowed, costs[i].refused)
	}
	return out + fmt.Sprintf("\nBytes by MEMORY USAGE of %s, and by used_memory over %d requests of as many clients as that makes.\n"+
		"Microseconds of Redis's processor for a call by INFO commandstats, on average over %d calls one after the other; the network and Caddy come on top.\n",
		weighedKey, storedRequests, timedCalls)
}
