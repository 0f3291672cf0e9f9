package redisbackend_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/conformance"
	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

func TestConformance(t *testing.T) {
	s := testserver.NewRedis(t)
	var fresh atomic.Int64
	conformance.Run(t, func(t *testing.T, clock *conformance.Clock) conformance.Backend {
		b := provision(t, &redisbackend.Backend{
			URLs: []string{s.URL()}, Timeout: patient, KeyPrefix: fmt.Sprintf("test%d", fresh.Add(1)),
		})
		b.SetClock(clock.Now)
		return b
	})
}
