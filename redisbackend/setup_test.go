package redisbackend_test

import (
	"context"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// patient is a timeout that no healthy test on a busy machine reaches.
const patient = caddy.Duration(5 * time.Second)

// provision provisions a backend and cleans it up at the test's end.
func provision(tb testing.TB, b *redisbackend.Backend) *redisbackend.Backend {
	tb.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	tb.Cleanup(cancel)
	if err := b.Provision(ctx); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Cleanup(); err != nil {
			tb.Error(err)
		}
	})
	return b
}

// connect is a plain client that looks at what the backend did.
func connect(tb testing.TB, s *testserver.Redis) *redis.Client {
	tb.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr()})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

func rule(tb testing.TB, limit string, burst ...int64) *policy.Rule {
	tb.Helper()
	l, err := policy.ParseLimit(limit)
	if err != nil {
		tb.Fatal(err)
	}
	if len(burst) > 0 {
		l.Burst = burst[0]
	}
	r, err := policy.NewRule(l, policy.TokenBucket)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// bucket is one unit of a limit for the address 203.0.113.7.
func bucket(tb testing.TB, scope, limit string) policy.Bucket {
	tb.Helper()
	return policy.Bucket{Identity: "203.0.113.7", Scope: scope, Rule: rule(tb, limit), Cost: 1}
}
