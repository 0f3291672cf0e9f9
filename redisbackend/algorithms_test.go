package redisbackend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// algorithms are all of them, with a limit each.
var algorithms = []policy.Algorithm{
	policy.TokenBucket, policy.LeakyBucket, policy.FixedWindow, policy.SlidingWindow, policy.SlidingLog,
}

func bucketBy(t *testing.T, scope string, a policy.Algorithm, l policy.Limit) policy.Bucket {
	t.Helper()
	if a == policy.LeakyBucket {
		l.MaxDelay = time.Minute
	}
	rule, err := policy.NewRule(l, a)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Bucket{Identity: "203.0.113.7", Scope: scope, Rule: rule, Cost: 1}
}

// Kong's keys lived for ever, or for the wrong unit of time: each key of ours lives
// exactly until it would equal one never seen, and never longer than that.
func TestEveryKeyOfEveryAlgorithmLivesUntilItEqualsOneNeverSeen(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}), connect(t, s)
	for _, limit := range []policy.Limit{
		{Count: 1, Window: 200 * 24 * time.Hour},
		{Count: 7, Window: time.Minute},
		{Count: 100, Window: time.Hour},
		{Count: 1_000_000, Window: 10 * time.Second},
	} {
		for _, a := range algorithms {
			scope := fmt.Sprintf("%s-%d-%s", a, limit.Count, limit.Window)
			if a == policy.SlidingWindow && limit.Window > 100*24*time.Hour {
				limit.Window = 100 * 24 * time.Hour // count times window stays exact
			}
			d := mustTake(t, b, bucketBy(t, scope, a, limit))[0]
			ttl := r.PTTL(t.Context(), "ratelimit:{203.0.113.7}:"+scope).Val()
			want := d.ResetAfter
			if lived := want - ttl; ttl <= 0 && want > 5*time.Millisecond || lived < -time.Millisecond || lived > 5*time.Second {
				t.Errorf("%s %s: it lives for %s, and equals one never seen after %s", a, limit, ttl, want)
			}
		}
	}
}

func TestBucketsOfEveryAlgorithmAreDecidedInOneRoundTrip(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}), connect(t, s)
	var buckets []policy.Bucket
	for _, a := range algorithms {
		buckets = append(buckets, bucketBy(t, string(a), a, policy.Limit{Count: 10, Window: time.Minute}))
	}
	mustTake(t, b, buckets...) // brings the script
	before := calls(t, r, "evalsha")
	mustTake(t, b, buckets...)
	if n := calls(t, r, "evalsha") - before; n != 1 {
		t.Errorf("%d script calls, not 1", n)
	}
}

func TestAResetBucketIsAsIfNeverSeen(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient})
	for _, a := range algorithms {
		reset := bucketBy(t, "reset-"+string(a), a, policy.Limit{Count: 10, Window: time.Minute})
		kept := bucketBy(t, "kept-"+string(a), a, policy.Limit{Count: 10, Window: time.Minute})
		reset.Cost, kept.Cost = 10, 10
		mustTake(t, b, reset, kept)
		if err := b.Reset(t.Context(), []policy.Bucket{reset, bucketBy(t, "never seen", a, policy.Limit{Count: 1, Window: time.Minute})}); err != nil {
			t.Fatal(err)
		}
		if d := mustTake(t, b, reset)[0]; !d.Allowed || d.Delay > 0 {
			t.Errorf("%s: after the reset: %+v", a, d)
		}
		kept.Cost = 1
		if d := mustTake(t, b, kept)[0]; d.Allowed && d.Delay == 0 {
			t.Errorf("%s: the other bucket: %+v", a, d)
		}
	}
}
