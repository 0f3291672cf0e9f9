package redisbackend

import (
	"github.com/sony/gobreaker/v2"
	"go.uber.org/zap"
)

// What the tests of the package know of it besides its API.
const (
	TripAfter     = tripAfter
	ProbeInterval = probeInterval
	MaxWaiting    = maxWaiting
	MaxBatch      = maxBatch

	TopologyInterval = topologyInterval
)

// SetClock makes scripts use the given time, in microseconds, in place of the
// server's own.
func (b *Backend) SetClock(clock func() int64) { b.clock = clock }

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

// MaskURL hides secrets.
var MaskURL = maskURL

// IsOutage is what tells an outage from an objection.
var IsOutage = isOutage
