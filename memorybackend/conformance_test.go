package memorybackend

import (
	"context"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/conformance"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// timed is a store that counts by a clock of the suite.
type timed struct {
	*Store
	clock *conformance.Clock
}

func (s timed) Take(_ context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	s.Store.Take(s.clock.Now(), buckets, decisions)
	return nil
}

func TestAStoreConforms(t *testing.T) {
	conformance.Run(t, func(_ *testing.T, clock *conformance.Clock) conformance.Backend {
		return timed{NewStore(DefaultMaxKeys), clock}
	})
}

// Interface guard.
var _ conformance.Backend = (*Backend)(nil)
