package lua_test

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/lua"
)

var evalshaStats = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`)

// together is how many requests travel in one call.
const together = 16

// BenchmarkScript reports what Redis itself spends on a request with one token bucket,
// in its own count of microseconds, without the network: alone, with others that have
// buckets of their own, and merged with equals. Run it with -benchtime 200000x
// -count 5 and take the smallest.
func BenchmarkScript(b *testing.B) {
	s := testserver.NewRedis(b)
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2})
	defer c.Close()
	plenty := request{1, 1, 86_400, 86_400 * 1_000_000_000, 86_400}
	spent := request{1, 1, 86_400_000_000, 86_400_000_000, 86_400_000_000}
	for _, bench := range []struct {
		name             string
		r                request
		requests, merged int // per call, and how many each stands for
	}{
		{"allow", plenty, 1, 1},
		{"deny", spent, 1, 1},
		{"allow, 16 together", plenty, together, 1},
		{"deny, 16 together", spent, together, 1},
		{"allow, 16 merged", plenty, 1, together},
		{"deny, 16 merged", spent, 1, together},
	} {
		b.Run(bench.name, func(b *testing.B) { benchmarkScript(b, c, bench.r, bench.requests, bench.merged) })
	}
}

func benchmarkScript(b *testing.B, c *redis.Client, r request, requests, merged int) {
	sha := c.ScriptLoad(b.Context(), lua.Take).Val()
	args := []any{"", bytes.Repeat(r.encode(), requests)}
	if requests*merged > 1 {
		args = append(args, bytes.Repeat([]byte{1, 0, byte(merged), 0}, requests))
	}
	c.Do(b.Context(), "CONFIG", "RESETSTAT")
	for sent := 0; sent < b.N; {
		pipe := c.Pipeline()
		for range 100 {
			keys := make([]string, requests)
			for i := range keys {
				keys[i] = fmt.Sprintf("%s%04d", b.Name(), (sent+i)%10_000)
			}
			pipe.EvalSha(b.Context(), sha, keys, args...)
			sent += requests * merged
		}
		if _, err := pipe.Exec(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	calls, spent := evalshas(b, c)
	b.ReportMetric(spent/calls/float64(requests*merged), "redis-µs/request")
}

// evalshas is how many scripts were called by name, and how many microseconds Redis
// spent on them.
func evalshas(b *testing.B, c *redis.Client) (calls, spent float64) {
	b.Helper()
	m := evalshaStats.FindStringSubmatch(c.Info(context.Background(), "commandstats").Val())
	if m == nil {
		b.Fatal("no script was called")
	}
	calls, _ = strconv.ParseFloat(m[1], 64)
	spent, _ = strconv.ParseFloat(m[2], 64)
	return calls, spent
}
