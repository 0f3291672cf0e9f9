package redisbackend_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

func TestAFailoverIsFollowed(t *testing.T) {
	t.Parallel()
	master, replica := testserver.NewRedis(t), testserver.NewRedis(t)
	r := connect(t, replica)
	if err := r.ReplicaOf(t.Context(), "127.0.0.1", master.Addr()[len("127.0.0.1:"):]).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "replication", func() bool {
		return r.InfoMap(t.Context(), "replication").Item("Replication", "master_link_status") == "up"
	})
	sentinel := testserver.NewSentinel(t, "mymaster", master)
	b := &redisbackend.Backend{URLs: []string{sentinel.URL()}, Sentinel: "mymaster", Timeout: patient}
	_, told := start(t, b)
	bk := bucket(t, "ip", "10/366d")
	if d := mustTake(t, b, bk); d[0].Remaining != 9 {
		t.Fatalf("%d remain", d[0].Remaining)
	}
	eventually(t, "the debit is replicated", func() bool { return r.DBSize(t.Context()).Val() == 1 })
	master.Kill()
	trip(t, b, bk)
	eventually(t, "the new master is used", b.Settled)
	if d := mustTake(t, b, bk); d[0].Remaining != 8 {
		t.Errorf("%d remain at the new master, not 8", d[0].Remaining)
	}
	if n := len(told.all()); n != 2 {
		t.Errorf("told was %+v", told.all())
	}
	if n := calls(t, r, "evalsha") + calls(t, r, "eval"); n == 0 {
		t.Error("the replica decided nothing")
	}
}

// The old master lives on as a replica: it answers, and does not write any more.
func TestAMasterThatBecomesAReplicaIsLeftForTheNewOneAndNothingIsHadTwice(t *testing.T) {
	t.Parallel()
	const limit, before = 30, 20
	master, replica := testserver.NewRedis(t), testserver.NewRedis(t)
	r := connect(t, replica)
	if err := r.ReplicaOf(t.Context(), "127.0.0.1", strconv.Itoa(master.Port())).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "replication", func() bool { return linked(t, r) })
	sentinel := testserver.NewSentinel(t, "mymaster", master)
	b := &redisbackend.Backend{URLs: []string{sentinel.URL()}, Sentinel: "mymaster", Timeout: patient}
	start(t, b)
	bk := bucket(t, "ip", strconv.Itoa(limit)+"/366d")
	passed := int64(0)
	for range before {
		passed += allowed(mustTake(t, b, bk))
	}
	eventually(t, "replication is up to date", func() bool { return offset(t, r) == offset(t, connect(t, master)) })
	s := connect(t, sentinel)
	eventually(t, "the failover begins", func() bool { return s.Do(t.Context(), "sentinel", "failover", "mymaster").Err() == nil })
	eventually(t, "the replica is promoted", func() bool {
		return strings.Contains(r.Info(t.Context(), "replication").Val(), "role:master")
	})
	old := connect(t, master)
	eventually(t, "the master is a replica", func() bool {
		return strings.Contains(old.Info(t.Context(), "replication").Val(), "role:slave")
	})
	for refused := 0; refused < 5; {
		d, err := take(b, bk)
		switch {
		case err != nil: // until the new master is known
		case d[0].Allowed:
			passed++
		default:
			refused++
		}
	}
	if passed != limit {
		t.Errorf("%d have passed, not %d", passed, limit)
	}
}

func TestSentinelsHaveAPortOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := &redisbackend.Backend{URLs: []string{"redis://[::1]", "redis://[::1]:2"}, Sentinel: "nobody", Timeout: brief}
	_, told := start(t, b)
	eventually(t, "the outage is told", told.down)
	if got, want := told.all()[0].Address, "nobody by sentinel [::1]:26379, [::1]:2"; got != want {
		t.Errorf("the address is %s, not %s", got, want)
	}
}
