package redisbackend_test

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// sizedRequests is how many requests are counted to measure what a client takes.
const sizedRequests = 100_000

// unmoving is a window in which nothing comes back while a benchmark runs.
const unmoving = 30 * 24 * time.Hour

// BenchmarkSize measures what a bucket takes in Redis, everything included: the
// growth of the server's used_memory, tables and all, divided by the number of
// clients. Each client, an address like 203.0.113.7 in the zone "address", has sent
// as many requests as the name says; 100,000 are sent in all. The table in docs/operations.md is from here:
//
//	go test -run '^$' -bench Size -benchtime 1x ./redisbackend
func BenchmarkSize(b *testing.B) {
	for _, algorithm := range []policy.Algorithm{policy.TokenBucket, policy.LeakyBucket, policy.FixedWindow, policy.SlidingWindow, policy.SlidingLog} {
		requests := []int{1}
		if algorithm == policy.SlidingLog {
			requests = []int{1, 10, 100}
		}
		for _, n := range requests {
			b.Run(fmt.Sprintf("%s of %d", algorithm, n), func(b *testing.B) {
				for b.Loop() {
					b.ReportMetric(bytesPerBucket(b, algorithm, n), "B/bucket")
				}
				b.ReportMetric(0, "ns/op") // says nothing here
			})
		}
	}
}

// bytesPerBucket fills a Redis of its own.
func bytesPerBucket(b *testing.B, algorithm policy.Algorithm, requests int) float64 {
	b.Helper()
	server := testserver.NewRedis(b)
	backend := provision(b, &redisbackend.Backend{URLs: []string{server.URL()}, Timeout: patient})
	rule, err := policy.NewRule(policy.Limit{Count: 1000, Window: unmoving}, algorithm)
	if err != nil {
		b.Fatal(err)
	}
	c, clients := connect(b, server), sizedRequests/requests
	before := usedMemory(b, c)
	var wg sync.WaitGroup
	const callers = 64
	for first := range callers {
		wg.Go(func() {
			for i := first; i < clients; i += callers {
				fill(b, backend, rule, i, requests)
			}
		})
	}
	wg.Wait()
	if n := c.DBSize(context.Background()).Val(); n != int64(clients) {
		b.Fatalf("%d keys, want %d", n, clients)
	}
	return float64(usedMemory(b, c)-before) / float64(clients)
}

// fill sends requests of the i-th client.
func fill(b *testing.B, backend *redisbackend.Backend, rule *policy.Rule, i, requests int) {
	addr := netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)})
	buckets := []policy.Bucket{{Identity: policy.AddressIdentity(addr, 32, 64), Scope: policy.ZoneScope("address"), Rule: rule, Cost: 1}}
	decisions := make([]policy.Decision, 1)
	for range requests {
		if err := backend.Take(context.Background(), buckets, decisions); err != nil {
			b.Error(err)
			return
		}
	}
}

var usedMemoryLine = regexp.MustCompile(`(?m)^used_memory:(\d+)`)

func usedMemory(b *testing.B, c *redis.Client) int {
	b.Helper()
	info, err := c.Info(context.Background(), "memory").Result()
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.Atoi(usedMemoryLine.FindStringSubmatch(info)[1])
	if err != nil {
		b.Fatal(err)
	}
	return n
}
