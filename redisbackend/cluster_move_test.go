package redisbackend_test

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// move is a slot on its way from one master to another.
type move struct {
	t            *testing.T
	nodes        []*redis.Client
	from, to     *redis.Client
	toPort       int
	fromID, toID string
	slot         int64
}

// move prepares to move the slot of an identity of the first node to the second.
func (c *cluster) move(t *testing.T) *move {
	t.Helper()
	m := &move{t: t, toPort: c.nodes[1].Port()}
	for _, n := range c.nodes {
		m.nodes = append(m.nodes, connect(t, n))
	}
	m.from, m.to = m.nodes[0], m.nodes[1]
	m.slot = m.from.ClusterKeySlot(t.Context(), "{"+c.identities[0]+"}").Val()
	m.fromID, m.toID = id(t, m.from), id(t, m.to)
	return m
}

func id(t *testing.T, r *redis.Client) string {
	t.Helper()
	text, err := r.Do(t.Context(), "cluster", "myid").Text()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// back returns the move in the other direction.
func (m *move) back(port int) *move {
	return &move{t: m.t, nodes: m.nodes, from: m.to, to: m.from, toPort: port, fromID: m.toID, toID: m.fromID, slot: m.slot}
}

func (m *move) do(r *redis.Client, args ...any) {
	m.t.Helper()
	if err := r.Do(m.t.Context(), args...).Err(); err != nil {
		m.t.Errorf("%v: %v", args, err)
	}
}

// begin makes the old master say ASK for keys that it has not.
func (m *move) begin() {
	m.t.Helper()
	m.do(m.to, "cluster", "setslot", m.slot, "importing", m.fromID)
	m.do(m.from, "cluster", "setslot", m.slot, "migrating", m.toID)
}

func (m *move) key(key string) {
	m.t.Helper()
	m.do(m.from, "migrate", "127.0.0.1", m.toPort, key, 0, 5000)
}

// rest moves all the keys that are left.
func (m *move) rest() {
	m.t.Helper()
	for {
		keys, err := m.from.ClusterGetKeysInSlot(m.t.Context(), int(m.slot), 100).Result()
		if err != nil || len(keys) == 0 {
			return
		}
		for _, key := range keys {
			m.key(key)
		}
	}
}

// end makes the old master say MOVED, and waits until all masters know: the next move
// would otherwise be against one that does not, and Redis itself would lose keys.
func (m *move) end() {
	m.t.Helper()
	m.do(m.to, "cluster", "setslot", m.slot, "node", m.toID)
	for _, n := range m.nodes {
		m.do(n, "cluster", "setslot", m.slot, "node", m.toID)
	}
	eventually(m.t, "all masters agree", func() bool {
		epoch := m.epoch(m.to)
		for _, n := range m.nodes {
			if m.epoch(n) != epoch {
				return false
			}
		}
		return true
	})
}

func (m *move) epoch(n *redis.Client) string {
	_, behind, _ := strings.Cut(n.ClusterInfo(m.t.Context()).Val(), "cluster_current_epoch:")
	epoch, _, _ := strings.Cut(behind, "\r")
	return epoch
}

func TestASlotThatMovesIsFollowedAndNothingIsCountedTwice(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: patient})
	bk := c.bucket(t, 0, "1000/1h")
	want := int64(1000)
	takeOne := func() {
		t.Helper()
		want--
		if d := mustTake(t, b, bk); d[0].Remaining != want {
			t.Fatalf("%d remain, not %d", d[0].Remaining, want)
		}
	}
	takeOne()
	m := c.move(t)
	m.begin()
	takeOne() // the key is still where it was
	m.key("ratelimit:{" + bk.Identity + "}:ip")
	for range 3 {
		takeOne() // the old master says ASK
	}
	m.end()
	for range 3 {
		takeOne() // MOVED
	}
	if n := calls(t, m.to, "evalsha") + calls(t, m.to, "eval"); n < 6 {
		t.Errorf("the new master ran %d calls: the slot did not move", n)
	}
}

// While one key of a slot is here and one there, Redis runs no script for both.
func TestARequestWhoseKeysAreTornApartByAMoveIsDecidedAllTheSame(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: patient})
	for _, elsewhere := range []bool{false, true} { // a bucket in another slot beside them
		m := c.move(t)
		wide, narrow := c.bucket(t, 0, "100/366d"), c.bucket(t, 0, "3/366d")
		wide.Scope, narrow.Scope = "wide"+strconv.FormatBool(elsewhere), "narrow"+strconv.FormatBool(elsewhere)
		request := []policy.Bucket{wide, narrow}
		if elsewhere {
			request = append(request, c.bucket(t, 2, "50/366d"))
		}
		mustTake(t, b, request...)
		m.begin()
		m.key("ratelimit:{" + wide.Identity + "}:" + narrow.Scope)
		for i := int64(2); i <= 6; i++ {
			taken := min(i, 3)
			d := mustTake(t, b, request...)
			if policy.Allowed(request, d) != (i <= 3) || d[0].Remaining != 100-taken || d[1].Remaining != 3-taken {
				t.Fatalf("elsewhere %t, request %d: %+v", elsewhere, i, d)
			}
			if elsewhere && d[2].Remaining != 50-taken {
				t.Fatalf("request %d: %d remain in the other slot, not %d", i, d[2].Remaining, 50-taken)
			}
		}
		// One of them is new, and so on neither side.
		fresh := c.bucket(t, 0, "10/366d")
		fresh.Scope = "fresh" + wide.Scope
		if d := mustTake(t, b, wide, fresh); d[0].Remaining != 96 || d[1].Remaining != 9 {
			t.Errorf("beside a new bucket: %+v", d)
		}
		m.rest()
		m.end()
		if d := mustTake(t, b, wide, fresh); d[0].Remaining != 95 || d[1].Remaining != 8 {
			t.Errorf("after the move: %+v", d)
		}
		back := m.back(c.nodes[0].Port())
		back.begin()
		back.rest()
		back.end()
	}
}

func TestWhatATornRequestTookIsGivenBackKeyByKey(t *testing.T) {
	t.Parallel()
	const now = 1_800_000_000_000_000
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: patient})
	b.SetClock(func() int64 { return now })
	request := []policy.Bucket{c.bucket(t, 0, "10/366d"), c.bucket(t, 0, "10/366d")}
	request[1].Scope = "other"
	d := mustTake(t, b, request...)
	m := c.move(t)
	m.begin()
	m.key("ratelimit:{" + request[0].Identity + "}:other")
	b.GiveBack(request, d, now)
	for i, bk := range request {
		bk.Cost = 0
		if left := mustTake(t, b, bk)[0].Remaining; left != 10 || d[i].Remaining != 10 {
			t.Errorf("bucket %d: %d are left, and %d were told", i, left, d[i].Remaining)
		}
	}
}

// A slot goes to and fro, key by key, while many ask for two buckets in it. Whatever
// fails meanwhile, not one too many is admitted, and what failed is all that is missing.
func TestSlotsThatMoveUnderLoadAdmitNotOneTooMany(t *testing.T) {
	t.Parallel()
	const limit, moves = 3000, 4
	c := newCluster(t)
	b := provision(t, &redisbackend.Backend{URLs: c.urls(), Timeout: patient})
	request := []policy.Bucket{c.bucket(t, 0, "10000/366d"), c.bucket(t, 0, strconv.Itoa(limit)+"/366d")}
	request[1].Scope = "narrow"
	var admitted, failed atomic.Int64
	ask := func() (passed bool) {
		d, err := take(b, request...)
		switch {
		case err != nil:
			failed.Add(1)
			return true
		case policy.Allowed(request, d):
			admitted.Add(1)
			return true
		}
		return false
	}
	ask()
	var moved atomic.Bool
	var load sync.WaitGroup
	for range 6 {
		load.Go(func() {
			for !moved.Load() {
				ask()
			}
		})
	}
	m := c.move(t)
	for i := range moves {
		m.begin()
		m.rest()
		m.end()
		m = m.back(c.nodes[i%2].Port())
	}
	moved.Store(true)
	load.Wait()
	t.Logf("%d were admitted while the slot moved, %d failed", admitted.Load(), failed.Load())
	for ask() {
	}
	if n := admitted.Load(); n > limit || n < limit-failed.Load() {
		t.Errorf("%d were admitted, not %d; %d failed", n, limit, failed.Load())
	}
}
