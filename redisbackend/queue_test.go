package redisbackend_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

func TestMoreCallsThanCanWaitFailAtOnce(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, MaxConnections: 2})
	bk := bucket(t, "ip", "1000000/1h")
	mustTake(t, b, bk)
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var refused, others atomic.Int64
	var wg sync.WaitGroup
	const excess = 100
	for range redisbackend.MaxWaiting + 1 + excess { // one is on its way, not waiting
		wg.Go(func() {
			err := b.Take(ctx, []policy.Bucket{bk}, make([]policy.Decision, 1))
			if err != nil && strings.Contains(err.Error(), "too many calls are waiting") {
				refused.Add(1)
			} else {
				others.Add(1)
			}
		})
	}
	eventually(t, "the excess fails", func() bool { return refused.Load() >= excess })
	if n := others.Load(); n != 0 {
		t.Errorf("%d calls ended in another way", n)
	}
	if up, _, _ := b.Health(); !up {
		t.Error("a full queue was taken for a dead server")
	}
	cancel()
	wg.Wait()
	if n := refused.Load(); n != excess {
		t.Errorf("%d calls were refused, not %d", n, excess)
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the queue is empty again", func() bool { _, err := take(b, bk); return err == nil })
}
