package redisbackend

import (
	"context"
	"errors"
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

	// probeInterval is how often an open breaker tries whether Redis is back.
	probeInterval = 250 * time.Millisecond

	// An attempt may take as long as a request waits, connecting included, but not
	// less than shortestProbe, since a server may be far away, nor more than
	// longestProbe, so that its return is noticed soon.
	shortestProbe = 500 * time.Millisecond
)

// longestProbe is longer in tests, whose machine may stand still for so long.
var longestProbe = 1500 * time.Millisecond

// breaker keeps calls from a server that does not work. While it is open, no
// request is let through: a probe in the background finds out.
type breaker struct {
	client  *client
	address string
	cb      *gobreaker.TwoStepCircuitBreaker[struct{}]
	forced  atomic.Bool // trip at the next failure
	probing atomic.Bool // a probe is on its way
	last    atomic.Pointer[failure]
	failing atomic.Int64           // Unix nanoseconds of the first failure in a row; 0 if there is none
	outage  atomic.Pointer[outage] // nil while the server works
	back    atomic.Int64           // Unix nanoseconds of the last recovery; 0 if there was none

	examined atomic.Bool // what the server says of itself was looked at, for the running configuration
	answered atomic.Bool // a call was, since the goroutine that pings idle servers last looked
	probed   int         // that goroutine's: the number in a key that the master had, in a Cluster
}

// failure is the last one seen, and the key whose call it was.
type failure struct {
	at  time.Time
	err error
	key string

	inherited bool // another client for the server saw it
}

// outage is the time in which the breaker is open.
type outage struct {
	since time.Time
	cause error        // of the trip
	err   *unavailable // what calls get
	key   string       // of a call that failed: the probe asks for its slot

	inherited bool // another client for the server has met it
}

func newBreaker(c *client, address string) *breaker {
	b := &breaker{client: c, address: address}
	b.cb = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:    address,
		Timeout: time.Nanosecond, // when to try is for watch to say
		ReadyToTrip: func(counts gobreaker.Counts) bool {
			return b.forced.Load() || counts.ConsecutiveFailures >= tripAfter && b.failingFor() >= minOutage
		},
		IsSuccessful:  func(err error) bool { return !isOutage(err) },
		IsExcluded:    isUncounted,
		OnStateChange: func(_ string, _, to gobreaker.State) { b.changed(to) },
	})
	return b
}

// allow lets a call pass or says why not. A call that passed and was sent must be
// reported.
func (b *breaker) allow() error {
	if o := b.outage.Load(); o != nil {
		return o.err
	}
	return nil
}

// report says how a call ended. While all goes well that is a look at two numbers: an
// answer is only counted where it ends a row of failures.
func (b *breaker) report(key string, err error) {
	switch {
	case isUncounted(err):
	case isOutage(err):
		b.fail(&failure{at: time.Now(), err: err, key: key})
	default: // an answer, be it an objection
		if !b.answered.Load() {
			b.answered.Store(true)
		}
		if b.failing.Load() != 0 {
			b.failing.Store(0)
			b.count(err)
		}
	}
}

func (b *breaker) fail(f *failure) {
	b.last.Store(f)
	b.count(f.err)
	b.failing.CompareAndSwap(0, f.at.UnixNano()) // after it is counted, so that the next answer undoes both
}

// count counts how a call ended. During an outage only probes count.
func (b *breaker) count(err error) {
	if b.outage.Load() != nil {
		return
	}
	if done, refused := b.cb.Allow(); refused == nil {
		done(err)
	}
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
	b.forced.Store(true)
	defer b.forced.Store(false)
	b.report(key, err)
}

// resume opens the breaker as of an outage that another client for the server has met.
func (b *breaker) resume(o *outage) {
	b.forced.Store(true)
	defer b.forced.Store(false)
	b.fail(&failure{at: o.since, err: o.cause, key: o.key, inherited: true})
}

// changed hears of every change of state, under the lock of the breaker.
func (b *breaker) changed(to gobreaker.State) {
	if to != gobreaker.StateOpen || b.outage.Load() != nil {
		return
	}
	b.outage.Store(b.newOutage(b.last.Load()))
	b.client.spawn(b.watch)
}

func (b *breaker) newOutage(f *failure) *outage {
	return &outage{
		since: f.at, cause: f.err, key: f.key, inherited: f.inherited,
		err: failed(fmt.Errorf("%s is down since %s: %w", b.address, f.at.Format(time.TimeOnly), f.err)),
	}
}

// watch lives as long as an outage: it tells of its beginning, probes, and
// tells of its end.
func (b *breaker) watch() {
	o := b.outage.Load()
	if !isReply(o.cause) { // nothing answers: then nobody waits for it either
		b.client.guard.drop(b.address)
	}
	b.client.tellDown(b, o)
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	// The setting that this client has and the other had not may be what was wrong.
	for atOnce := o.inherited; ; atOnce = false {
		if !atOnce {
			select {
			case <-b.client.ctx.Done():
				return
			case <-tick.C:
			}
		}
		if b.recovered(o.key) {
			b.back.Store(time.Now().UnixNano())
			b.outage.Store(nil)
			b.client.tellUp(b)
			return
		}
	}
}

// learn replaces the cause of the outage when the server answers again and turns out to
// be too old: what kept it from answering is not what must be mended any more.
func (b *breaker) learn(err error) {
	o := b.outage.Load()
	if !errors.Is(err, errTooOld) || errors.Is(o.cause, errTooOld) {
		return
	}
	o = b.newOutage(&failure{at: o.since, err: err, key: o.key})
	b.outage.Store(o)
	b.client.tellUnusable(b, o)
}

// downSince is what is told of an outage.
func (b *breaker) downSince(o *outage) StateChange {
	kind, _ := kindOf(o.cause)
	return StateChange{Address: b.address, Since: o.since, Err: o.cause, Kind: kind.String()}
}

// recovered probes, and reports whether the breaker is closed again.
func (b *breaker) recovered(key string) bool {
	b.probing.Store(true)
	defer b.probing.Store(false)
	if done, refused := b.cb.Allow(); refused == nil {
		b.examined.Store(false) // who returns may be another server
		err := b.client.probe(b, key)
		if err != nil && b.client.ctx.Err() == nil {
			countError(err)
		}
		switch {
		case isUncounted(err):
		case isOutage(err):
			b.last.Store(&failure{at: time.Now(), err: err, key: key})
			b.learn(err)
		default:
			b.failing.Store(0)
		}
		done(err)
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

// patience is how long a probe may take.
func (c *client) patience() time.Duration {
	return min(max(c.tenancy.timeout(), shortestProbe), longestProbe)
}

// probe does what a request does: the first call may have to connect, the
// second must be as fast as a request wants it.
func (c *client) probe(b *breaker, key string) error {
	ctx, cancel := context.WithTimeout(c.ctx, c.patience())
	defer cancel()
	err := b.reexamine(ctx, key)
	if err == nil {
		err = c.probeOnce(ctx, key)
	}
	if err != nil {
		if c.cluster != nil {
			c.cluster.ReloadState(ctx) // the slot may have another master now
		}
		return err
	}
	start := time.Now()
	err = c.probeOnce(ctx, key)
	if limit := c.tenancy.timeout(); err == nil && time.Since(start) > limit {
		return errTimeout
	}
	return err
}

func (c *client) probeOnce(ctx context.Context, key string) error {
	call := newCall(takeScript)
	defer call.release()
	call.bytes = append(call.bytes, probeKey(key)...)
	call.endPart()
	call.endPart() // no time: the server's
	call.appendBucket(&probeBucket)
	call.endPart()
	call.seal(1)
	call.want = numberSize + decisionSize
	reply, err := c.run(ctx, call.script, call.command())
	if err == nil {
		err = call.answer(reply)
	}
	if err == nil {
		err = call.check()
	}
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

// at is the breaker of an address.
func (bs *breakers) at(address string) *breaker {
	if address == bs.whole.address {
		return bs.whole
	}
	return bs.forNode(address)
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
