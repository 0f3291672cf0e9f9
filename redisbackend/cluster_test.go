package redisbackend_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// cluster is three masters, and for each a client whose bucket lives there.
type cluster struct {
	nodes      []*testserver.Redis
	identities []string
}

func newCluster(t *testing.T, args ...string) *cluster {
	t.Helper()
	c := &cluster{nodes: testserver.NewCluster(t, 3, args...), identities: make([]string, 3)}
	first := connect(t, c.nodes[0])
	for i, found := 0, 0; found < 3; i++ {
		identity := fmt.Sprintf("198.51.100.%d", i)
		slot, err := first.ClusterKeySlot(t.Context(), "{"+identity+"}").Result()
		if err != nil {
			t.Fatal(err)
		}
		if node := int(slot) * 3 / 16384; c.identities[node] == "" {
			c.identities[node] = identity
			found++
		}
	}
	return c
}

func (c *cluster) urls() []string {
	urls := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		urls[i] = n.URL()
	}
	return urls
}

// bucket is one unit of a limit in the node of that number.
func (c *cluster) bucket(t *testing.T, node int, limit string) policy.Bucket {
	b := bucket(t, "ip", limit)
	b.Identity = c.identities[node]
	return b
}

// look reads what is left in a node.
func (c *cluster) look(t *testing.T, b *redisbackend.Backend, node int, limit string) int64 {
	t.Helper()
	bk := c.bucket(t, node, limit)
	bk.Cost = 0
	return mustTake(t, b, bk)[0].Remaining
}

func TestARequestInSeveralSlotsIsAllOrNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: patient})
	request := []policy.Bucket{c.bucket(t, 0, "100/1h"), c.bucket(t, 1, "5/1h"), c.bucket(t, 2, "100/1h"), c.bucket(t, 0, "50/1h")}
	request[3].Scope = "second"
	for i := range 20 {
		d := mustTake(t, b, request...)
		taken := int64(min(i+1, 5))
		if allowed := policy.Allowed(request, d); allowed != (i < 5) {
			t.Fatalf("request %d: allowed is %t", i+1, allowed)
		}
		for n, full := range []int64{100, 5, 100, 50} {
			if d[n].Remaining != full-taken {
				t.Fatalf("request %d: %d remain in bucket %d, not %d", i+1, d[n].Remaining, n, full-taken)
			}
		}
		if d[0].ResetAfter > time.Duration(taken)*36*time.Second {
			t.Fatalf("request %d: a bucket that was given back resets in %s", i+1, d[0].ResetAfter)
		}
	}
	for node, want := range []int64{95, 0, 95} {
		if got := c.look(t, b, node, []string{"100/1h", "5/1h", "100/1h"}[node]); got != want {
			t.Errorf("%d remain in node %d, not %d", got, node, want)
		}
	}
}

func TestAShadowBucketInAnotherSlotIsGivenBackToo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: patient})
	full, shadow := c.bucket(t, 0, "1/1h"), c.bucket(t, 1, "10/1h")
	shadow.Shadow = true
	mustTake(t, b, full)
	if d := mustTake(t, b, full, shadow); d[0].Allowed || !d[1].Allowed || d[1].Remaining != 10 {
		t.Errorf("decided %+v", d)
	}
	if got := c.look(t, b, 1, "10/1h"); got != 10 {
		t.Errorf("%d remain in the shadow bucket, not 10", got)
	}
	shadow.Cost = 11 // more than it can ever have, so that it refuses for itself
	shadow.Rule = rule(t, "11/1h")
	mustTake(t, b, shadow)
	other := c.bucket(t, 2, "10/1h")
	if d := mustTake(t, b, other, shadow); !d[0].Allowed || d[0].Remaining != 9 || d[1].Allowed {
		t.Errorf("a shadow bucket refused a request: %+v", d)
	}
}

func TestConcurrentRequestsOverSeveralSlotsNeverAdmitOneTooMany(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: patient})
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				request := []policy.Bucket{c.bucket(t, 0, "100/1h"), c.bucket(t, 1, "30/1h"), c.bucket(t, 2, "100/1h")}
				d, err := take(b, request...)
				if err != nil {
					t.Error(err)
					return
				}
				if policy.Allowed(request, d) {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := admitted.Load(); n != 30 {
		t.Errorf("%d were admitted, not 30", n)
	}
	// Others may have taken in between, so a little may stay taken: less than
	// what drains in the seconds that this took.
	for _, node := range []int{0, 2} {
		if got := c.look(t, b, node, "100/1h"); got < 69 || got > 70 {
			t.Errorf("%d remain in node %d, not 70", got, node)
		}
	}
}

func TestAMasterThatIsGoneCostsTheOthersClientsNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := &redisbackend.Backend{URLs: c.urls(), Timeout: brief}
	_, told := start(t, b)
	all := []policy.Bucket{c.bucket(t, 0, "1000/1h"), c.bucket(t, 1, "1000/1h"), c.bucket(t, 2, "1000/1h")}
	eventually(t, "the first answer", func() bool { _, err := take(b, all...); return err == nil })
	eventually(t, "quiet", b.Settled)
	before := c.look(t, b, 0, "1000/1h")

	if err := c.nodes[1].Pause(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the breaker opens", func() bool {
		_, _ = take(b, all[1])
		up, _, _ := b.Health()
		return !up
	})
	for range 100 {
		eventually(t, "an answer of another master", func() bool { _, err := take(b, all[0]); return err == nil })
	}
	// A request that needs the dead master fails before it charges anybody.
	charged := before - c.look(t, b, 0, "1000/1h")
	for range 100 {
		mustFail(t, b, all...)
	}
	if got := before - c.look(t, b, 0, "1000/1h"); got != charged {
		t.Errorf("a hundred failed requests charged %d", got-charged)
	}
	if err := c.nodes[1].Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", b.Settled)
	eventually(t, "an answer", func() bool { _, err := take(b, all...); return err == nil })
	for _, change := range told.all() {
		if change.Address != c.nodes[1].Addr() {
			t.Errorf("told was %+v", change)
		}
	}
}

func TestSeveralURLsOfAServerThatIsNoClusterAreExplained(t *testing.T) {
	t.Parallel()
	one, two := testserver.NewRedis(t), testserver.NewRedis(t)
	b := &redisbackend.Backend{URLs: []string{one.URL(), two.URL()}, Timeout: patient}
	_, told := start(t, b)
	eventually(t, "the outage is told", func() bool { return len(told.all()) == 1 })
	err := mustFail(t, b, bucket(t, "ip", "10/1m"))
	wantText(t, err, "several urls mean a Cluster; write one")
}

func TestOneURLOfAClusterIsExplained(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := &redisbackend.Backend{URLs: c.urls()[:1], Timeout: patient}
	logs, _ := start(t, b)
	eventually(t, "the error is logged", func() bool {
		return logs.FilterMessageSnippet("write two or more of its nodes as urls").Len() == 1
	})
	wantText(t, mustFail(t, b, c.bucket(t, 1, "10/1m")), "write two or more of its nodes as urls")
}

func TestAnAbandonedRequestIsGivenBackInTheBackground(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: brief})
	request := []policy.Bucket{c.bucket(t, 0, "1000/1h"), c.bucket(t, 1, "1000/1h")}
	eventually(t, "the first answer", func() bool { _, err := take(b, request...); return err == nil })
	var before int64
	eventually(t, "a look", func() bool {
		bk := request[0]
		bk.Cost = 0
		d, err := take(b, bk)
		before = d[0].Remaining
		return err == nil
	})
	if err := c.nodes[1].Pause(); err != nil {
		t.Fatal(err)
	}
	if err := b.Take(context.Background(), request, make([]policy.Decision, 2)); err == nil {
		t.Fatal("a paused master decided")
	}
	eventually(t, "what the living master took is given back", func() bool {
		bk := request[0]
		bk.Cost = 0
		d, err := take(b, bk)
		return err == nil && d[0].Remaining >= before
	})
	if err := c.nodes[1].Resume(); err != nil {
		t.Fatal(err)
	}
}

// The library repeats a call after a timeout in a Cluster, although it may have
// run, unless it is told not to.
func TestACallThatMayHaveRunIsNotRepeatedInAClusterEither(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const timeout = 400 * time.Millisecond // sockets have a second
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: caddy.Duration(timeout), MaxConnections: 1})
	bk, other := c.bucket(t, 1, "1000/366d"), c.bucket(t, 1, "1000/366d")
	other.Scope = "other"
	eventually(t, "the first answer", func() bool { _, err := take(b, other); return err == nil })
	if err := c.nodes[1].Pause(); err != nil {
		t.Fatal(err)
	}
	mustFail(t, b, bk)
	trip(t, b, other) // takes longer than the socket's deadline
	if err := c.nodes[1].Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", b.Settled)
	bk.Cost = 0
	if d := mustTake(t, b, bk); d[0].Remaining < 999 {
		t.Errorf("%d remain: the call ran more than once", d[0].Remaining)
	}
}

// As after the promotion of a replica: nobody says MOVED, since the old master
// says nothing any more, and no call leaves for it.
func TestTheSlotsOfADeadMasterAreFoundAtAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--cluster-require-full-coverage", "no")
	b := &redisbackend.Backend{URLs: c.urls(), Timeout: patient}
	_, told := start(t, b)
	bk := c.bucket(t, 1, "10/366d")
	mustTake(t, b, bk)
	c.nodes[1].Kill()
	trip(t, b, bk)
	heir := connect(t, c.nodes[0])
	slot := heir.ClusterKeySlot(t.Context(), "{"+bk.Identity+"}").Val()
	for _, args := range [][]any{{"cluster", "delslots", slot}, {"cluster", "addslots", slot}, {"cluster", "bumpepoch"}} {
		if err := heir.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// The third one must know too: what it says would send the backend back to the dead.
	other, moved := connect(t, c.nodes[2]), fmt.Sprintf("MOVED %d %s", slot, c.nodes[0].Addr())
	eventually(t, "the masters agree", func() bool {
		return redis.HasErrorPrefix(other.Get(t.Context(), "{"+bk.Identity+"}").Err(), moved)
	})
	begin := time.Now()
	eventually(t, "the slot is served again", b.Settled)
	if took := time.Since(begin); took > redisbackend.TopologyInterval*8/10 {
		t.Errorf("the heir was found after %s, by the regular look at the Cluster only", took)
	}
	if d := mustTake(t, b, bk); d[0].Remaining != 9 {
		t.Errorf("%d remain", d[0].Remaining)
	}
	if n := len(told.all()); n != 2 {
		t.Errorf("told was %+v", told.all())
	}
}

// The clock stands still, so that a bucket in the slot that refused looks as if
// its last request were the one that is given back.
func TestTheSlotThatRefusedGetsNothingBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: patient})
	b.SetClock(func() int64 { return 1_800_000_000_000_000 })
	free, full, shadow, elsewhere := c.bucket(t, 0, "10/1h"), c.bucket(t, 0, "1/1h"), c.bucket(t, 1, "1/1h"), c.bucket(t, 1, "10/1h")
	full.Scope, elsewhere.Scope = "full", "elsewhere"
	shadow.Shadow = true
	mustTake(t, b, free, full)
	mustTake(t, b, shadow)
	if d := mustTake(t, b, free, full, shadow, elsewhere); d[1].Allowed || d[2].Allowed {
		t.Fatalf("decided %+v", d)
	}
	for i, want := range []int64{9, 0, 0, 10} {
		look := []policy.Bucket{free, full, shadow, elsewhere}[i]
		look.Cost = 0
		if d := mustTake(t, b, look); d[0].Remaining != want {
			t.Errorf("%d remain in bucket %d, not %d", d[0].Remaining, i, want)
		}
	}
}
