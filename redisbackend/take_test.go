package redisbackend_test

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

func TestALedgerOfOneBucket(t *testing.T) {
	s := testserver.NewRedis(t)
	b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient})
	now := int64(1_800_000_000_000_000)
	b.SetClock(func() int64 { return now })
	bk := bucket(t, "ip", "10/1m")
	for i := range 12 {
		d := make([]policy.Decision, 1)
		if err := b.Take(context.Background(), []policy.Bucket{bk}, d); err != nil {
			t.Fatal(err)
		}
		t.Log(i, d[0])
	}
	r := connect(t, s)
	t.Log(r.Keys(t.Context(), "*").Val(), r.PTTL(t.Context(), "ratelimit:{203.0.113.7}:ip").Val(), r.MemoryUsage(t.Context(), "ratelimit:{203.0.113.7}:ip").Val())
	start := time.Now()
	b.SetClock(nil)
	bk.Rule = rule(t, "1000000/1s")
	d := make([]policy.Decision, 1)
	for range 20000 {
		if err := b.Take(context.Background(), []policy.Bucket{bk}, d); err != nil {
			t.Fatal(err)
		}
	}
	t.Log(time.Since(start) / 20000)
}
