package memorybackend

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// plenty is a limit that no benchmark reaches.
const plenty = "1000000000000/1d"

// benchmark measures a decision on n buckets of one of so many clients. The
// cost keeps them from being idle when their turn comes again.
func benchmark(b *testing.B, n, clients int) {
	s := NewStore(DefaultMaxKeys)
	r := limit(b, plenty)
	requests := make([][]policy.Bucket, clients)
	decisions := make([]policy.Decision, n)
	for i := range requests {
		requests[i] = clientRequest(i, n, r)
		for j := range requests[i] {
			requests[i][j].Cost = max(1, int64(clients)*50)
		}
		s.Take(Now(), requests[i], decisions)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s.Take(Now(), requests[i], decisions)
		if i++; i == clients {
			i = 0
		}
	}
}

func clientRequest(client, n int, r *policy.Rule) []policy.Bucket {
	buckets := make([]policy.Bucket, n)
	for i := range buckets {
		buckets[i] = policy.Bucket{Identity: "203.0.113." + strconv.Itoa(client), Scope: "zone" + strconv.Itoa(i), Rule: r, Cost: 1}
	}
	return buckets
}

func BenchmarkOneBucket(b *testing.B)                      { benchmark(b, 1, 1) }
func BenchmarkThreeBuckets(b *testing.B)                   { benchmark(b, 3, 1) }
func BenchmarkOneBucketOfAHundredThousand(b *testing.B)    { benchmark(b, 1, 100_000) }
func BenchmarkThreeBucketsOfAThousandClients(b *testing.B) { benchmark(b, 3, 1000) }

func BenchmarkRefused(b *testing.B) {
	s := NewStore(DefaultMaxKeys)
	buckets := clientRequest(0, 1, limit(b, "1/366d"))
	decisions := make([]policy.Decision, 1)
	b.ReportAllocs()
	for b.Loop() {
		s.Take(Now(), buckets, decisions)
	}
}

func BenchmarkParallel(b *testing.B) {
	s := NewStore(DefaultMaxKeys)
	r := limit(b, plenty)
	var clients atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		buckets := clientRequest(int(clients.Add(1)), 1, r)
		decisions := make([]policy.Decision, 1)
		for pb.Next() {
			s.Take(Now(), buckets, decisions)
		}
	})
}

// BenchmarkFlood is a table full of live buckets, and only newcomers.
func BenchmarkFlood(b *testing.B) {
	s := NewStore(10_000)
	r := limit(b, "10/1h")
	identities := make([]string, 100_000)
	for i := range identities {
		identities[i] = "2001:db8::" + strconv.Itoa(i)
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		ask(s, Now(), identities[i], r, 1)
		if i++; i == len(identities) {
			i = 0
		}
	}
}
