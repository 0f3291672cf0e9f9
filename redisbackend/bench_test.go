package redisbackend_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

func BenchmarkTake(b *testing.B) {
	backend := provision(b, &redisbackend.Backend{URLs: []string{testserver.NewRedis(b).URL()}, Timeout: patient})
	for _, n := range []int{1, 3} {
		var buckets []policy.Bucket
		for i := range n {
			buckets = append(buckets, bucket(b, fmt.Sprint("zone", i), "1000000/1s"))
		}
		b.Run(fmt.Sprintf("%d buckets, one caller", n), func(b *testing.B) {
			b.ReportAllocs()
			decisions := make([]policy.Decision, n)
			for b.Loop() {
				if err := backend.Take(context.Background(), buckets, decisions); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("%d buckets, 64 callers", n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				decisions := make([]policy.Decision, n)
				for pb.Next() {
					if err := backend.Take(context.Background(), buckets, decisions); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
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
