package redisbackend

import (
	"time"

	"go.uber.org/zap"
)

// StateChange says that Redis became unavailable or is back.
type StateChange struct {
	// Whether it is available now.
	Up bool

	// Since when.
	Since time.Time

	// Which server, without secrets.
	Address string

	// What made it unavailable; nil when it is available.
	Err error

	// Err in one word: timeout, connection, auth, memory, readonly, loading,
	// persistence, replicas, busy, clients, cluster, unsupported or reply (an error
	// that Redis does not give). Empty when it is available.
	Kind string

	// How long it was unavailable; zero when it is.
	DownFor time.Duration

	// Whether a configuration that ran before was told already: this one starts in
	// the middle of an outage.
	Repeated bool
}

// hear logs a change and passes it on. It is called with a lock held, so the
// observer must not wait for anything.
func (b *Backend) hear(change StateChange) {
	address := zap.String("address", change.Address)
	switch {
	case change.Up:
		b.logger.Info("redis is back", address, zap.Duration("down_for", change.DownFor))
	case change.Repeated:
		b.logger.Warn("redis is still unavailable", address,
			zap.Time("since", change.Since), zap.String("kind", change.Kind), zap.Error(change.Err))
	default:
		b.logger.Error("redis is unavailable; requests are decided by on_error until it is back", address,
			zap.Time("since", change.Since), zap.String("kind", change.Kind), zap.Error(change.Err))
	}
	if b.observer != nil {
		b.observer(change)
	}
}

// hearUnusable logs why a server that answers again is not used.
func (b *Backend) hearUnusable(change StateChange) {
	b.logger.Error("redis answers again, but cannot be used; requests are decided by on_error until it can", zap.String("address", change.Address),
		zap.Time("since", change.Since), zap.String("kind", change.Kind), zap.Error(change.Err))
}

// health sums up the breakers.
func (c *client) health() (up bool, since time.Time, lastErr error) {
	up, since = true, c.created
	var latest time.Time
	for _, br := range c.breakers.all() {
		if f := br.last.Load(); f != nil && f.at.After(latest) {
			latest, lastErr = f.at, f.err
		}
		switch o := br.outage.Load(); {
		case o != nil && (up || o.since.Before(since)):
			up, since = false, o.since
		case o == nil && up:
			since = later(since, br.upSince())
		}
	}
	return up, since, lastErr
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
