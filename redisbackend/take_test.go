package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

func TestARequestCostsOneCallHoweverManyBucketsItHas(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}), connect(t, s)
	mustTake(t, b, bucket(t, "warm", "10/1m")) // loads the script
	for _, n := range []int{1, 3, 10} {
		var buckets []policy.Bucket
		for i := range n {
			buckets = append(buckets, bucket(t, fmt.Sprintf("zone%d", i), "10/1m"))
		}
		before, gets, sets := calls(t, r, "evalsha"), calls(t, r, "get"), calls(t, r, "psetex")
		mustTake(t, b, buckets...)
		if got := calls(t, r, "evalsha") - before; got != 1 {
			t.Errorf("%d buckets took %d calls", n, got)
		}
		if got := calls(t, r, "get") - gets; got != n {
			t.Errorf("%d buckets were read %d times", n, got)
		}
		if got := calls(t, r, "psetex") - sets; got != n {
			t.Errorf("%d buckets were written %d times", n, got)
		}
	}
	if other := calls(t, r, "eval"); other != 1 {
		t.Errorf("the script's text was sent %d times, not once", other)
	}
}

// The keys are a contract with whoever looks at them.
func TestKeysAreNamedByPrefixIdentityAndScope(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	r := connect(t, s)
	route, err := policy.NewRoute("/orders/*", "POST")
	if err != nil {
		t.Fatal(err)
	}
	limit := rule(t, "10/1m")
	for _, prefix := range []string{"", "shop:"} {
		b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, KeyPrefix: prefix})
		mustTake(t, b,
			policy.Bucket{Identity: "203.0.113.7", Scope: policy.ZoneScope("ip"), Rule: limit, Cost: 1},
			policy.Bucket{Identity: policy.KeyIdentity("8Fq2"), Scope: route.Scope(), Rule: limit, Cost: 1},
		)
	}
	keys, err := r.Keys(t.Context(), "*").Result()
	slices.Sort(keys)
	want := []string{
		"ratelimit:{203.0.113.7}:ip", "ratelimit:{k_8Fq2}:route:/orders/*:POST",
		"shop::{203.0.113.7}:ip", "shop::{k_8Fq2}:route:/orders/*:POST",
	}
	if err != nil || !slices.Equal(keys, want) {
		t.Errorf("the keys are %q, %v", keys, err)
	}
}

func TestEveryKeyLivesAsLongAsItMattersAndNoLonger(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}), connect(t, s)
	for _, tt := range []struct {
		limit string
		cost  int64
		want  time.Duration
	}{
		{"10/1m", 1, 6 * time.Second},
		{"10/1m", 10, time.Minute},
		{"1/1h", 1, time.Hour},
		{"7/1m", 3, 25715 * time.Millisecond}, // 25.714285714… s, rounded up
		{"1/366d", 1, 366 * 24 * time.Hour},
	} {
		bk := bucket(t, policy.ZoneScope(fmt.Sprint(tt.limit, tt.cost)), tt.limit)
		bk.Cost = tt.cost
		before := time.Now()
		mustTake(t, b, bk)
		ttl := r.PTTL(t.Context(), "ratelimit:{203.0.113.7}:"+bk.Scope).Val()
		if least := tt.want - time.Since(before) - time.Millisecond; ttl > tt.want || ttl < least {
			t.Errorf("%d of %s: the TTL is %s, not %s to %s", tt.cost, tt.limit, ttl, least, tt.want)
		}
	}
	for _, key := range r.Keys(t.Context(), "*").Val() {
		if r.TTL(t.Context(), key).Val() < 0 {
			t.Errorf("%s has no TTL", key)
		}
	}
}

func TestAnIdleBucketIsSmall(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}), connect(t, s)
	mustTake(t, b, bucket(t, "ip", "100/1m"))
	const expiryEntry = 24 // the key's place in the table of expiries
	used := r.MemoryUsage(t.Context(), "ratelimit:{203.0.113.7}:ip").Val() + expiryEntry
	t.Logf("%d bytes", used)
	if used >= 150 {
		t.Errorf("a bucket takes %d bytes", used)
	}
}

func TestAFlushedScriptIsLoadedAgainUnnoticed(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}), connect(t, s)
	for want := int64(9); want > 6; want-- {
		if err := r.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if d := mustTake(t, b, bucket(t, "ip", "10/1m")); d[0].Remaining != want {
			t.Errorf("%d remain, not %d: it ran another number of times than once", d[0].Remaining, want)
		}
	}
}

func TestAKeyOfAnotherTypeIsAnErrorThatNamesTheScope(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}), connect(t, s)
	r.HSet(t.Context(), "ratelimit:{203.0.113.7}:odd", "x", "y")
	for range 2 * redisbackend.TripAfter {
		err := mustFail(t, b, bucket(t, "ip", "10/1m"), bucket(t, "odd", "10/1m"))
		if !strings.Contains(err.Error(), "the scope odd ") {
			t.Fatalf("the error is %v", err)
		}
	}
	if up, _, _ := b.Health(); !up {
		t.Error("a server that answers was declared dead")
	}
	if d := mustTake(t, b, bucket(t, "ip", "10/1m")); d[0].Remaining != 9 {
		t.Errorf("%d remain: a failed call was charged", d[0].Remaining)
	}
}

func TestNoBucketsNeedNoServer(t *testing.T) {
	t.Parallel()
	b := provision(t, &redisbackend.Backend{URLs: []string{"unix:///no/such/socket"}})
	if err := b.Take(t.Context(), nil, nil); err != nil {
		t.Error(err)
	}
}

func TestAClientThatHangsUpIsNoFailureOfRedis(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient})
	mustTake(t, b, bucket(t, "ip", "10/1m"))
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	for range 2 * redisbackend.TripAfter {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		err := b.Take(ctx, []policy.Bucket{bucket(t, "ip", "10/1m")}, make([]policy.Decision, 1))
		if !errors.Is(err, context.Canceled) || !errors.Is(err, redisbackend.ErrUnavailable) {
			t.Fatalf("the error is %v", err)
		}
	}
	if up, _, _ := b.Health(); !up {
		t.Error("the breaker counted clients that hung up")
	}
}

// Two instances with connections of their own, as two Caddy processes have.
func TestInstancesThatShareAServerNeverAdmitOneTooMany(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	const limit = 50
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for instance := range 3 {
		b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, MaxConnections: 4 + instance})
		for range 8 {
			wg.Go(func() {
				for range 20 {
					d, err := take(b, bucket(t, "ip", "50/1h"), bucket(t, "other", "1000/1h"))
					if err != nil {
						t.Error(err)
						return
					}
					if d[0].Allowed {
						admitted.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	if admitted.Load() != limit {
		t.Errorf("%d were admitted, not %d", admitted.Load(), limit)
	}
}

func TestASocketAndADatabaseWork(t *testing.T) {
	t.Parallel()
	socket := t.TempDir() + "/redis.sock"
	s := testserver.NewRedis(t, "--unixsocket", socket)
	b := provision(t, &redisbackend.Backend{URLs: []string{"unix://" + socket}, Timeout: patient, DB: 3})
	mustTake(t, b, bucket(t, "ip", "10/1m"))
	c := provision(t, &redisbackend.Backend{URLs: []string{s.URL() + "/3"}, Timeout: patient})
	if d := mustTake(t, c, bucket(t, "ip", "10/1m")); d[0].Remaining != 8 {
		t.Errorf("%d remain: the two are not in one database", d[0].Remaining)
	}
	if n := connect(t, s).DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are in database 0", n)
	}
}
