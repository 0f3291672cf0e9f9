package redisbackend

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const (
	// tripAfter is how many calls in a row must fail until the breaker opens.
	tripAfter = 5

	// minOutage is for how long they must: one stall fails all calls that it meets,
	// and is over before that.
	minOutage = 150 * time.Millisecond

	// probeInterval is how often an open breaker tries whether Redis is back,
	// and probeTimeout how long such an attempt may take, connecting included.
	probeInterval = 250 * time.Millisecond
	probeTimeout  = 500 * time.Millisecond
)

// breaker keeps calls from a server that does not work. While it is open, no
// request is let through: a probe in the background finds out.
type breaker struct {
	client  *client
	address string
	cb      *gobreaker.TwoStepCircuitBreaker[struct{}]
	forced  atomic.Bool // trip at the next failure
	last    atomic.Pointer[failure]
	failing atomic.Int64           // Unix nanoseconds of the first failure in a row; 0 if there is none
	outage  atomic.Pointer[outage] // nil while the server works
	back    atomic.Int64           // Unix nanoseconds of the last recovery; 0 if there was none

	told bool // the observer knows of the outage; protected by client.tenancy.mu
}

// failure is the last one seen, and the key whose call it was.
type failure struct {
	at  time.Time
	err error
	key string
}

// outage is the time in which the breaker is open.
type outage struct {
	since time.Time
	cause error        // of the trip
	err   *unavailable // what calls get
	key   string       // of a call that failed: the probe asks for its slot
}

func newBreaker(c *client, address string) *breaker {
	b := &breaker{client: c, address: address}
	b.cb = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:    address,
		Timeout: time.Millisecond, // when to try is for watch to say
		ReadyToTrip: func(counts gobreaker.Counts) bool {
			return b.forced.Load() || counts.ConsecutiveFailures >= tripAfter && b.failingFor() >= minOutage
		},
		IsSuccessful:  func(err error) bool { return !isOutage(err) },
		IsExcluded:    isUncounted,
		OnStateChange: func(_ string, _, to gobreaker.State) { b.changed(to) },
	})
	return b
}

// allow lets a call pass or says why not. A call that passed must be reported.
func (b *breaker) allow() (done func(error), err error) {
	if o := b.outage.Load(); o != nil {
		return nil, o.err
	}
	done, err = b.cb.Allow()
	if err != nil { // it has opened this moment
		return nil, failed(err)
	}
	return done, nil
}

// report says how a call ended.
func (b *breaker) report(done func(error), key string, err error) {
	switch {
	case isUncounted(err):
	case isOutage(err):
		now := time.Now()
		b.last.Store(&failure{at: now, err: err, key: key})
		b.failing.CompareAndSwap(0, now.UnixNano())
	case b.failing.Load() != 0: // an answer, be it an objection
		b.failing.Store(0)
	}
	done(err)
}

// failingFor is how long calls have failed without one that succeeded.
func (b *breaker) failingFor() time.Duration {
	if since := b.failing.Load(); since != 0 {
		return time.Since(time.Unix(0, since))
	}
	return 0
}

// trip opens the breaker at once.
func (b *breaker) trip(key string, err error) {
	done, refused := b.cb.Allow()
	if refused != nil {
		return
	}
	b.forced.Store(true)
	defer b.forced.Store(false)
	b.report(done, key, err)
}

// changed hears of every change of state, under the lock of the breaker.
func (b *breaker) changed(to gobreaker.State) {
	if to != gobreaker.StateOpen || b.outage.Load() != nil {
		return
	}
	last, now := b.last.Load(), time.Now()
	b.outage.Store(&outage{
		since: now, cause: last.err, key: last.key,
		err: failed(fmt.Errorf("%s is down since %s: %w", b.address, now.Format(time.TimeOnly), last.err)),
	})
	b.client.spawn(b.watch)
}

// watch lives as long as an outage: it tells of its beginning, probes, and
// tells of its end.
func (b *breaker) watch() {
	o := b.outage.Load()
	b.client.tell(b, StateChange{Address: b.address, Since: o.since, Err: o.cause})
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-b.client.ctx.Done():
			return
		case <-tick.C:
		}
		if b.recovered(o.key) {
			now := time.Now()
			b.back.Store(now.UnixNano())
			b.outage.Store(nil)
			b.client.tell(b, StateChange{Up: true, Address: b.address, Since: now})
			return
		}
	}
}

// recovered probes, and reports whether the breaker is closed again.
func (b *breaker) recovered(key string) bool {
	if done, err := b.cb.Allow(); err == nil {
		b.report(done, key, b.client.probe(key))
	}
	return b.cb.State() == gobreaker.StateClosed
}

// upSince is when the last outage ended; the zero time if there was none.
func (b *breaker) upSince() time.Time {
	if ns := b.back.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// probeBucket is what a probe takes from: full again after a microsecond.
var probeBucket = policy.Bucket{
	Rule: &policy.Rule{Algorithm: policy.TokenBucket, Num: 1, Den: 1, Capacity: 1000}, Cost: 1,
}

// probe does what a request does: the first call may have to connect, the
// second must be as fast as a request wants it.
func (c *client) probe(key string) error {
	ctx, cancel := context.WithTimeout(c.ctx, probeTimeout)
	defer cancel()
	if err := c.probeVersion(ctx); err != nil {
		return err
	}
	if err := c.probeOnce(ctx, key); err != nil {
		if c.cluster != nil {
			c.cluster.ReloadState(ctx) // the slot may have another master now
		}
		return err
	}
	start := time.Now()
	err := c.probeOnce(ctx, key)
	if limit := c.tenancy.timeout(); err == nil && time.Since(start) > limit {
		return errTimeout
	}
	return err
}

func (c *client) probeOnce(ctx context.Context, key string) error {
	call := newCall(takeScript)
	defer call.release()
	call.text = append(call.text, probeKey(key)...)
	call.endPart()
	call.endPart() // no time: the server's
	call.appendBucket(&probeBucket)
	call.endPart()
	call.seal(1)
	_, err := c.run(ctx, call)
	return err
}

// probeKey is a key beside another one, in its slot, which no scope can have:
// scopes do not begin with a colon.
func probeKey(key string) string {
	identity, _, _ := strings.Cut(key, "}")
	return identity + "}::probe"
}

// breakers holds one breaker, or in a Cluster one for every master.
type breakers struct {
	client *client
	whole  *breaker    // the server, or the Cluster while its masters are unknown
	known  atomic.Bool // the Cluster's masters are known

	mu    sync.RWMutex
	nodes map[string]*breaker
}

func (bs *breakers) init(c *client) {
	bs.client, bs.whole, bs.nodes = c, newBreaker(c, c.address), make(map[string]*breaker)
}

// forKey is the breaker of the server that has a key. It does no I/O.
func (bs *breakers) forKey(key string) *breaker {
	if bs.client.cluster == nil || !bs.known.Load() {
		return bs.whole
	}
	node, err := bs.client.cluster.MasterForKey(bs.client.ctx, key)
	if err != nil {
		return bs.whole
	}
	return bs.forNode(node.Options().Addr)
}

func (bs *breakers) forNode(address string) *breaker {
	bs.mu.RLock()
	b := bs.nodes[address]
	bs.mu.RUnlock()
	if b != nil {
		return b
	}
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if b = bs.nodes[address]; b == nil {
		b = newBreaker(bs.client, address)
		bs.nodes[address] = b
	}
	return b
}

// all lists the breakers that there are.
func (bs *breakers) all() []*breaker {
	bs.mu.RLock()
	defer bs.mu.RUnlock()
	list := []*breaker{bs.whole}
	for _, b := range bs.nodes {
		list = append(list, b)
	}
	return list
}
