package redisbackend

import (
	"time"

	"github.com/sony/gobreaker/v2"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// What the tests of the package know of it besides its API.
const (
	TripAfter     = tripAfter
	ProbeInterval = probeInterval
	MaxWaiting    = maxWaiting
	MaxBatch      = maxBatch

	LongestDirect = longestDirect

	TopologyInterval = topologyInterval
)

// SetClock makes scripts use the given time, in microseconds, in place of the
// server's own.
func (b *Backend) SetClock(clock func() int64) { b.clock = clock }

// SetLinger changes how long the client outlives the configuration.
func (b *Backend) SetLinger(d time.Duration) { b.linger = d }

// SetLogger replaces the logger that Provision got.
func (b *Backend) SetLogger(l *zap.Logger) { b.logger = l }

// Settled reports whether every breaker is closed.
func (b *Backend) Settled() bool {
	for _, br := range b.client.breakers.all() {
		if br.outage.Load() != nil || br.cb.State() != gobreaker.StateClosed {
			return false
		}
	}
	return true
}

// Rounds is how often idle and unknown servers were looked after.
func (b *Backend) Rounds() int64 { return b.client.rounds.Load() }

// Outage is the kind of the outage that is on.
func (b *Backend) Outage() string {
	o := b.client.breakers.whole.outage.Load()
	if o == nil {
		return ""
	}
	return b.client.breakers.whole.downSince(o).Kind
}

// Waiting is how many calls wait for a connection.
func (b *Backend) Waiting() int {
	q := b.client.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.calls)
}

// Collected is how many calls senders have taken over so far.
func (b *Backend) Collected() int {
	q := b.client.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.collected
}

// Connections is how many connections there are.
func (b *Backend) Connections() int { return b.client.guard.count() }

// References is how many configurations hold the client of b.
func (b *Backend) References() int {
	n, _ := clients.References(b.poolKey)
	return n
}

// Clients is how many clients there are.
func Clients() (n int) {
	clients.Range(func(any, any) bool { n++; return true })
	return n
}

// SameClient reports whether two backends share one.
func (b *Backend) SameClient(other *Backend) bool { return b.client == other.client }

// TooOld is what decides whether a version is.
var TooOld = tooOld

// GiveBack gives back what was taken at a time of buckets in one slot.
func (b *Backend) GiveBack(buckets []policy.Bucket, decisions []policy.Decision, taken int64) {
	b.giveBackGroup(&group{buckets: buckets, decisions: decisions, taken: taken})
}

// MaskURL hides secrets.
var MaskURL = maskURL

// IsOutage is what tells an outage from an objection.
var IsOutage = isOutage

// SetLongestProbe is to be called before anything else.
func SetLongestProbe(d time.Duration) { longestProbe = d }
