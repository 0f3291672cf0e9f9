package memorybackend

import (
	"strconv"
	"strings"
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

// BenchmarkAlgorithms is a decision on one bucket that lets a request pass every
// microsecond, as far as its limit goes. The logs are those of 10 and of 1000.
func BenchmarkAlgorithms(b *testing.B) {
	for _, text := range []string{
		"1000000/1s token_bucket", "1000000/1s max_delay 10s leaky_bucket", "1000000/1s fixed_window", "1000000/1s sliding_window",
		"10/1s sliding_log", "1000/1s sliding_log",
	} {
		r := limit(b, text)
		for _, pace := range []struct {
			name string
			step int64
		}{{"passes", r.Window/r.Limit.Count + 1}, {"refused", 0}} {
			b.Run(strings.ReplaceAll(text, " ", "_")+"/"+pace.name, func(b *testing.B) {
				s, request := NewStore(DefaultMaxKeys), clientRequest(0, 1, r)
				decisions := make([]policy.Decision, 1)
				now := start
				for range min(2*r.Limit.Count, 100_000) {
					now += pace.step
					s.Take(now, request, decisions)
				}
				request[0].Cost = 1
				if pace.step == 0 {
					request[0].Cost = r.Limit.Count
				}
				b.ReportAllocs()
				for b.Loop() {
					now += pace.step
					s.Take(now, request, decisions)
				}
			})
		}
	}
}

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
