package redisbackend_test

import (
	"context"
	"fmt"
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
	for range redisbackend.MaxWaiting + redisbackend.MaxBatch + excess { // at most a batch is on its way, not waiting
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
	if n := refused.Load(); n >= excess+redisbackend.MaxBatch {
		t.Errorf("%d calls were refused, of which less than %d should have been on their way", n, redisbackend.MaxBatch)
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the queue is empty again", func() bool { _, err := take(b, bk); return err == nil })
}

// Calls are pooled, and some are given up while they are on their way. Every
// caller has a limit of its own here, so that a wrong answer shows.
func TestEveryAnswerReachesItsOwnCallerThroughStalls(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: brief, MaxConnections: 4})
	ctx, cancel := context.WithCancel(t.Context())
	var answers, failures atomic.Int64
	var wg sync.WaitGroup
	for i := range int64(50) {
		bk := bucket(t, "ip", fmt.Sprintf("%d/366d", (i+1)*1_000_000))
		bk.Identity = policy.KeyIdentity(fmt.Sprint(i))
		wg.Go(func() {
			asked := int64(0)
			for ctx.Err() == nil {
				asked++
				d, err := take(b, bk)
				switch most := (i + 1) * 1_000_000; {
				case err != nil:
					failures.Add(1)
				case d[0].Remaining >= most || d[0].Remaining < most-asked:
					t.Errorf("%d of %d remain after %d requests", d[0].Remaining, most, asked)
					return
				default:
					answers.Add(1)
				}
			}
		})
	}
	for range 4 {
		more := answers.Load() + 500
		eventually(t, "answers", func() bool { return answers.Load() > more })
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
		more = failures.Load() + 500
		eventually(t, "failures", func() bool { return failures.Load() > more })
		if err := s.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	wg.Wait()
}
