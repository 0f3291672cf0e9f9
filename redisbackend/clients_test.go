package redisbackend_test

import (
	"strconv"
	"sync"
	"testing"

	"go.uber.org/zap/zapcore"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// askTogether takes from many goroutines, and returns the last error, if there was one.
func askTogether(t *testing.T, b *redisbackend.Backend, goroutines, each int) error {
	t.Helper()
	var (
		mu   sync.Mutex
		last error
		wg   sync.WaitGroup
	)
	for range goroutines {
		wg.Go(func() {
			for range each {
				if _, err := take(b, bucket(t, "ip", "1000000/366d")); err != nil {
					mu.Lock()
					last = err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return last
}

// Redis takes no more connections than the ones that there are: what they can do, they do.
func TestWhereRedisTakesNoMoreConnectionsThoseThatThereAreServeAll(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	r := connect(t, s)
	b := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	logs, _ := start(t, b)
	eventually(t, "the look at the start is over", func() bool { return infoNumber(t, r, "number_of_cached_scripts") == 2 })
	mustTake(t, b, bucket(t, "ip", "1000000/366d"))
	connections := b.Connections()
	if err := r.ConfigSet(t.Context(), "maxclients", strconv.Itoa(connections+1)).Err(); err != nil {
		t.Fatal(err)
	}
	asked := int64(1)
	for refused := 0; refused < 3*redisbackend.TripAfter; refused = infoNumber(t, r, "rejected_connections") {
		if err := askTogether(t, b, 30, 20); err != nil {
			t.Fatal(err)
		}
		asked += 30 * 20
	}
	if n := b.Connections(); n != connections {
		t.Errorf("%d connections, before %d", n, connections)
	}
	if n := logs.FilterMessageSnippet("redis takes no more connections").FilterLevelExact(zapcore.WarnLevel).Len(); n != 1 {
		t.Errorf("that was said %d times", n)
	}
	// Each was counted once, although some were tried on several connections.
	if d := mustTake(t, b, bucket(t, "ip", "1000000/366d")); d[0].Remaining != 1_000_000-asked-1 {
		t.Errorf("%d remain after %d calls", d[0].Remaining, asked+1)
	}
	if err := r.ConfigSet(t.Context(), "maxclients", "100").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "more connections are made again", func() bool {
		return askTogether(t, b, 30, 20) == nil && b.Connections() > connections
	})
}

// And where there is none, that is an outage whose reason is said.
func TestWhereRedisTakesNoConnectionAtAllItIsDownUntilItDoes(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	r := connect(t, s)
	if err := r.ConfigSet(t.Context(), "maxclients", "1").Err(); err != nil {
		t.Fatal(err)
	}
	b := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	logs, told := start(t, b)
	eventually(t, "the outage is told", func() bool { return len(told.all()) == 1 })
	wantText(t, mustFail(t, b, bucket(t, "ip", "1000/1h")), "raise maxclients")
	if kind := b.Outage(); kind != "clients" {
		t.Errorf("the kind is %q", kind)
	}
	stayDown(t, b)
	if err := r.ConfigSet(t.Context(), "maxclients", "100").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", b.Settled)
	mustTake(t, b, bucket(t, "ip", "1000/1h"))
	checkOneOutage(t, s, logs, told)
}
