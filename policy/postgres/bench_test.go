package postgres

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// BenchmarkPropagation measures the time from the return of a change on one
// instance to the changed policies on another, 100 times whatever b.N is.
func BenchmarkPropagation(b *testing.B) {
	dsn := server.NewDatabase(b)
	writer := started(b, &Provider{DSN: dsn}, storageIn(b))
	reader := started(b, &Provider{DSN: dsn}, storageIn(b))
	for b.Loop() {
		var committed, seen []time.Duration
		for count := int64(1000); count < 1100; count++ {
			all, err := writer.ListPolicies(b.Context(), "PRO", "", policy.Page{})
			if err != nil {
				b.Fatal(err)
			}
			all[0].Limit.Count = count
			began := time.Now()
			if _, err := writer.UpdatePolicy(b.Context(), by, all[0]); err != nil {
				b.Fatal(err)
			}
			returned := time.Now()
			for reader.Snapshot().AppendMatches(nil, policy.Client{Tier: "PRO"}, "GET", "/")[0].Rule.Limit.Count != count {
				time.Sleep(20 * time.Microsecond)
			}
			committed, seen = append(committed, returned.Sub(began)), append(seen, time.Since(returned))
		}
		report(b, "change", committed)
		report(b, "propagation", seen)
	}
}

func report(b *testing.B, what string, all []time.Duration) {
	slices.Sort(all)
	for name, d := range map[string]time.Duration{"p50": all[len(all)/2], "p99": all[len(all)*99/100], "max": all[len(all)-1]} {
		b.ReportMetric(float64(d.Microseconds()), what+"-"+name+"-µs")
	}
	b.ReportMetric(0, "ns/op")
}

func BenchmarkKnownKey(b *testing.B) {
	in := started(b, &Provider{DSN: server.NewDatabase(b)}, storageIn(b))
	key, _ := in.newKey(b, "PRO")
	sum := policy.HashKey(key)
	eventually(b, "the key", func() bool { return in.works(key) })
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok := in.APIKey(context.Background(), sum); !ok {
				b.Error("unknown")
			}
		}
	})
}
