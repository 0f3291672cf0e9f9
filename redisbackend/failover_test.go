package redisbackend_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// replica starts a replica of the second node and returns when it has what that has.
func (c *cluster) replica(t *testing.T) *redis.Client {
	t.Helper()
	s := testserver.NewRedis(t, "--cluster-enabled", "yes", "--cluster-config-file", filepath.Join(t.TempDir(), "nodes.conf"),
		"--cluster-node-timeout", "2000", "--cluster-replica-validity-factor", "0")
	r, master := connect(t, s), connect(t, c.nodes[1])
	if err := r.ClusterMeet(t.Context(), "127.0.0.1", fmt.Sprint(c.nodes[1].Port())).Err(); err != nil {
		t.Fatal(err)
	}
	masterID := id(t, master)
	eventually(t, "the replica knows its master", func() bool { return r.ClusterReplicate(t.Context(), masterID).Err() == nil })
	eventually(t, "replication", func() bool { return linked(t, r) })
	replicaID := id(t, r)
	eventually(t, "all masters know the replica", func() bool {
		for _, n := range c.nodes {
			if !strings.Contains(connect(t, n).ClusterNodes(t.Context()).Val(), replicaID) {
				return false
			}
		}
		return true
	})
	return r
}

func linked(t *testing.T, replica *redis.Client) bool {
	return replica.InfoMap(t.Context(), "replication").Item("Replication", "master_link_status") == "up"
}

// cutOff ends replication and makes sure that it cannot begin again.
func cutOff(t *testing.T, replica *redis.Client) {
	t.Helper()
	if err := replica.ConfigSet(t.Context(), "masterauth", "not the password").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "replication ends", func() bool {
		_ = replica.Do(t.Context(), "client", "kill", "type", "master").Err() // an error: it is gone already
		return !linked(t, replica)
	})
}

// What a master has granted and not passed on to its replica dies with it, and can be had
// once more from the replica. That is all: in the end the limit and as much have passed.
func TestAFailoverAdmitsWhatReplicationHadNotCarriedAndNoMore(t *testing.T) {
	t.Parallel()
	for _, unreplicated := range []int64{0, 7} {
		t.Run(fmt.Sprint(unreplicated), func(t *testing.T) {
			t.Parallel()
			const limit, replicated = 40, 20
			c := newCluster(t)
			replica := c.replica(t)
			b := &redisbackend.Backend{URLs: c.urls(), Timeout: patient}
			start(t, b)
			bk := c.bucket(t, 1, fmt.Sprintf("%d/366d", limit))
			passed := int64(0)
			for range replicated {
				passed += allowed(mustTake(t, b, bk))
			}
			eventually(t, "replication is up to date", func() bool { return offset(t, replica) == offset(t, connect(t, c.nodes[1])) })
			cutOff(t, replica)
			for range unreplicated {
				passed += allowed(mustTake(t, b, bk))
			}
			c.nodes[1].Kill()
			trip(t, b, bk)
			eventually(t, "the replica is the master", func() bool {
				return strings.Contains(replica.Info(t.Context(), "replication").Val(), "role:master")
			})
			eventually(t, "it is used", b.Settled)
			for range 2 * limit {
				passed += allowed(mustTake(t, b, bk))
			}
			if passed != limit+unreplicated {
				t.Errorf("%d have passed, not the limit of %d and %d", passed, limit, unreplicated)
			}
		})
	}
}

// allowed is 1 if the first bucket allowed.
func allowed(d []policy.Decision) int64 {
	if d[0].Allowed {
		return 1
	}
	return 0
}

// offset is how much of the replication stream a server has.
func offset(t *testing.T, r *redis.Client) string {
	t.Helper()
	info := r.InfoMap(t.Context(), "replication")
	if at := info.Item("Replication", "slave_repl_offset"); at != "" {
		return at
	}
	return info.Item("Replication", "master_repl_offset")
}

// With min-replicas-to-write a master that has lost its replicas stops granting, so that
// there is nothing to lose beyond the lag that it tolerates.
func TestAMasterThatMayNotBeAloneGrantsNothingAlone(t *testing.T) {
	t.Parallel()
	master := testserver.NewRedis(t, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")
	s := testserver.NewRedis(t)
	replica := connect(t, s)
	if err := replica.ReplicaOf(t.Context(), "127.0.0.1", fmt.Sprint(master.Port())).Err(); err != nil {
		t.Fatal(err)
	}
	b := provision(t, &redisbackend.Backend{URLs: []string{master.URL()}, Timeout: patient})
	bk := bucket(t, "ip", "100000/366d")
	eventually(t, "the replica is in time", func() bool { _, err := take(b, bk); return err == nil })
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	var err error
	eventually(t, "the master stops", func() bool { _, err = take(b, bk); return err != nil })
	wantText(t, err, "NOREPLICAS")
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the master goes on", func() bool { _, err := take(b, bk); return err == nil })
}
