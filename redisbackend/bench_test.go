package redisbackend_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// BenchmarkTake compares a caller that is alone, directly and through the queue, with
// many that ask for the same and for buckets of their own.
func BenchmarkTake(b *testing.B) {
	url := testserver.NewRedis(b).URL()
	direct := provision(b, &redisbackend.Backend{URLs: []string{url}, Timeout: short})
	backend := provision(b, &redisbackend.Backend{URLs: []string{url}, Timeout: patient})
	for _, n := range []int{1, 3} {
		var buckets []policy.Bucket
		for i := range n {
			buckets = append(buckets, bucket(b, fmt.Sprint("zone", i), "1000000/1s"))
		}
		b.Run(fmt.Sprintf("%d buckets, one caller, direct", n), func(b *testing.B) { lone(b, direct, buckets) })
		b.Run(fmt.Sprintf("%d buckets, one caller, queued", n), func(b *testing.B) { lone(b, backend, buckets) })
		b.Run(fmt.Sprintf("%d buckets, 64 callers, merged", n), func(b *testing.B) {
			crowd(b, backend, func(int64) []policy.Bucket { return buckets })
		})
		b.Run(fmt.Sprintf("%d buckets, 64 callers, each its own", n), func(b *testing.B) {
			crowd(b, backend, func(caller int64) []policy.Bucket {
				own := slices.Clone(buckets)
				for i := range own {
					own[i].Identity = policy.KeyIdentity(fmt.Sprint(caller))
				}
				return own
			})
		})
	}
}

// short is a timeout with which a lone call does not queue.
const short = caddy.Duration(100 * time.Millisecond)

// lone asks from one goroutine. Answers that a busy machine delays are counted.
func lone(b *testing.B, backend *redisbackend.Backend, buckets []policy.Bucket) {
	b.ReportAllocs()
	decisions, failures := make([]policy.Decision, len(buckets)), 0
	for b.Loop() {
		if err := backend.Take(context.Background(), buckets, decisions); err != nil {
			failures++
		}
	}
	b.ReportMetric(float64(failures), "failures")
}

// crowd asks from 64 goroutines, each for what buckets returns for its number.
func crowd(b *testing.B, backend *redisbackend.Backend, buckets func(caller int64) []policy.Bucket) {
	b.ReportAllocs()
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	var callers atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		own := buckets(callers.Add(1))
		decisions := make([]policy.Decision, len(own))
		for pb.Next() {
			if err := backend.Take(context.Background(), own, decisions); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkPing is the yardstick: the least that a round trip costs.
func BenchmarkPing(b *testing.B) {
	c := redis.NewClient(&redis.Options{Addr: testserver.NewRedis(b).Addr(), Protocol: 2, MaxRetries: -1})
	defer c.Close()
	b.Run("one caller", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := c.Ping(context.Background()).Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("64 callers", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := c.Ping(context.Background()).Err(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
