package redisbackend_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// directly is the longest timeout with which a lone call does not queue.
const directly = caddy.Duration(redisbackend.LongestDirect)

func TestALoneCallGoesDirectlyOnceRedisHasAnswered(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: directly})
	eventually(t, "a call that did not queue", func() bool {
		_, err := take(b, bucket(t, "ip", "100000/1h"))
		before := b.Collected()
		d, err2 := take(b, bucket(t, "ip", "100000/1h"))
		return err == nil && err2 == nil && d[0].Allowed && b.Collected() == before
	})
	slow := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient})
	mustTake(t, slow, bucket(t, "ip", "100000/1h"))
	if before := slow.Collected(); before != 1 {
		t.Errorf("the first call of a client did not queue")
	}
	if mustTake(t, slow, bucket(t, "ip", "100000/1h")); slow.Collected() != 2 {
		t.Error("a call that may wait long did not queue")
	}
}

// The socket of a call that goes directly ends with the call; those that follow
// queue, and so one stall costs one connection at most, and each caller its timeout.
func TestAStallCostsALoneCallItsTimeoutAndOneConnection(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: brief, MaxConnections: 3}), connect(t, s)
	for range 3 {
		eventually(t, "a call that goes directly", func() bool {
			_, err := take(b, bucket(t, "ip", "100000/1h"))
			before := b.Collected()
			_, err2 := take(b, bucket(t, "ip", "100000/1h"))
			return err == nil && err2 == nil && b.Collected() == before
		})
		before, collected := infoNumber(t, r, "total_connections_received"), b.Collected()
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			start := time.Now()
			err := mustFail(t, b, bucket(t, "ip", "100000/1h"))
			if !strings.Contains(err.Error(), "no answer within the timeout") || time.Since(start) < time.Duration(brief) {
				t.Errorf("call %d ended after %s with %v", i, time.Since(start), err)
			}
		}
		if n := b.Collected() - collected; n != 2 {
			t.Errorf("%d of three calls queued, not all but the first", n)
		}
		if err := s.Resume(); err != nil {
			t.Fatal(err)
		}
		late := 0 // on a busy machine
		eventually(t, "answers", func() bool {
			_, err := take(b, bucket(t, "ip", "100000/1h"))
			if err != nil {
				late++
			}
			return err == nil
		})
		// One in place of the lone call's, and each sender's first.
		if made := infoNumber(t, r, "total_connections_received") - before; made > 3+late {
			t.Errorf("a stall made %d connections, and %d answers were late after it", made, late)
		}
	}
}
