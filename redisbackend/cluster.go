package redisbackend

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// group is the buckets of one request that live in one slot.
type group struct {
	buckets   []policy.Bucket
	places    []int // of each in the request
	decisions []policy.Decision
	flight    flight
	taken     int64 // when, by the server's clock
	err       error
}

// takeInCluster decides a request in one call if its buckets live in one slot, and else
// in one for each slot.
func (b *Backend) takeInCluster(ctx context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	deadline := time.Now().Add(b.timeout)
	if !oneIdentity(buckets) {
		return b.takeSlots(ctx, deadline, split(buckets), buckets, decisions)
	}
	err := b.takeTogether(ctx, buckets, decisions)
	if len(buckets) > 1 && isTorn(err) {
		return b.takeSlots(ctx, deadline, split(buckets)[0].apart(), buckets, decisions)
	}
	return err
}

// takeSlots decides buckets in several calls: one for each group, in parallel, and
// back with what was taken if one refuses or fails.
func (b *Backend) takeSlots(ctx context.Context, deadline time.Time, groups []*group, buckets []policy.Bucket, decisions []policy.Decision) error {
	groups, err := b.takeGroups(ctx, deadline, groups)
	if err != nil {
		b.giveBack(groups)
		return err
	}
	for _, g := range groups {
		g.copyTo(decisions)
	}
	if policy.Allowed(buckets, decisions) {
		return nil
	}
	finished := b.giveBack(groups)
	timer := startTimer(time.Until(deadline))
	defer stopTimer(timer)
	select {
	case <-finished:
		for _, g := range groups {
			g.copyTo(decisions)
		}
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// takeGroups makes a call for each group, and once more one for each bucket of those
// groups whose slot is moving. It returns the groups that were asked in the end, and the
// first failure.
func (b *Backend) takeGroups(ctx context.Context, deadline time.Time, groups []*group) ([]*group, error) {
	if err := b.takeAll(ctx, deadline, groups); err != nil {
		return nil, err
	}
	whole, torn := mend(groups)
	if len(torn) > 0 {
		if err := b.takeAll(ctx, deadline, torn); err != nil {
			return whole, err
		}
	}
	asked := append(whole, torn...)
	for _, g := range asked {
		if g.err != nil {
			return asked, g.err
		}
	}
	return asked, nil
}

// isTorn reports whether a call has not run because its slot is moving and some of its
// keys are there already and some still here. A call for one key always finds it.
func isTorn(err error) bool { return redis.HasErrorPrefix(err, "TRYAGAIN") }

// mend makes a group of each bucket of the groups that are torn.
func mend(groups []*group) (whole, single []*group) {
	for _, g := range groups {
		if len(g.buckets) == 1 || !isTorn(g.err) {
			whole = append(whole, g)
			continue
		}
		single = append(single, g.apart()...)
	}
	return whole, single
}

// apart makes a group of each bucket.
func (g *group) apart() []*group {
	single := make([]*group, len(g.buckets))
	for i := range single {
		single[i] = &group{buckets: g.buckets[i : i+1], places: g.places[i : i+1]}
	}
	return single
}

// split groups buckets by identity, which is what decides the slot.
func split(buckets []policy.Bucket) []*group {
	var groups []*group
	for i := range buckets {
		var g *group
		for _, known := range groups {
			if known.buckets[0].Identity == buckets[i].Identity {
				g = known
			}
		}
		if g == nil {
			g = new(group)
			groups = append(groups, g)
		}
		g.buckets, g.places = append(g.buckets, buckets[i]), append(g.places, i)
	}
	return groups
}

// admitAll asks every server's breaker before anything is sent anywhere.
func (b *Backend) admitAll(groups []*group) error {
	for i, g := range groups {
		f, err := b.client.admit(b.takeCall(g.buckets))
		if err != nil {
			for _, admitted := range groups[:i] {
				admitted.flight.drop()
			}
			return err
		}
		g.flight = f
	}
	return nil
}

// takeAll makes a call for each group, in parallel. Those that fail say so themselves;
// an error means that nothing was sent at all.
func (b *Backend) takeAll(ctx context.Context, deadline time.Time, groups []*group) error {
	left := time.Until(deadline)
	if left <= 0 {
		return errTimeout
	}
	if err := b.admitAll(groups); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for _, g := range groups[1:] {
		wg.Go(func() { g.take(ctx, left) })
	}
	groups[0].take(ctx, left)
	wg.Wait()
	return nil
}

func (g *group) take(ctx context.Context, timeout time.Duration) {
	if err := g.flight.send(ctx, timeout); err != nil {
		g.err = nameScope(err, g.buckets)
		return
	}
	c := g.flight.call
	defer c.release()
	g.decisions = make([]policy.Decision, len(g.buckets))
	c.decode(g.buckets, g.decisions)
	g.taken = c.taken()
}

func (g *group) copyTo(decisions []policy.Decision) {
	for i, place := range g.places {
		decisions[place] = g.decisions[i]
	}
}

// giveBack returns what the groups took, in the background, since it must be
// done even if nobody waits any more. The channel is closed when it is done and
// the decisions of the groups say so.
func (b *Backend) giveBack(groups []*group) <-chan struct{} {
	finished := make(chan struct{})
	var wg sync.WaitGroup
	for _, g := range groups {
		if g.err == nil && policy.Allowed(g.buckets, g.decisions) {
			wg.Add(1)
			b.client.spawn(func() {
				defer wg.Done()
				b.giveBackGroup(g)
			})
		}
	}
	b.client.spawn(func() {
		wg.Wait()
		close(finished)
	})
	return finished
}

// giveBackGroup asks one slot to take back what the group took. If that fails,
// it stays taken, and the decisions say so already.
func (b *Backend) giveBackGroup(g *group) {
	var charged []int
	for i := range g.buckets {
		if g.decisions[i].Allowed && g.buckets[i].Cost > 0 {
			charged = append(charged, i)
		}
	}
	if len(charged) == 0 {
		return
	}
	if err := b.giveBackCharged(g, charged); len(charged) > 1 && isTorn(err) {
		for i := range charged {
			_ = b.giveBackCharged(g, charged[i:i+1]) // as above
		}
	}
}

func (b *Backend) giveBackCharged(g *group, charged []int) error {
	f, err := b.client.admit(b.giveBackCall(g, charged))
	if err != nil {
		return err
	}
	if err := f.send(context.Background(), b.timeout); err != nil {
		return err
	}
	defer f.call.release()
	g.decodeGivenBack(f.call, charged)
	return nil
}

// giveBackCall encodes a call of lua/give_back.lua.
func (b *Backend) giveBackCall(g *group, charged []int) *call {
	c := newCall(giveBackScript)
	for _, i := range charged {
		c.addKey(b.prefix, &g.buckets[i])
	}
	c.addTime(b.clock)
	c.bytes = strconv.AppendInt(c.bytes, g.taken, 10)
	c.endPart()
	for _, i := range charged {
		c.appendBucket(&g.buckets[i])
	}
	c.endPart()
	c.seal(len(charged))
	c.want = 2 * numberSize * len(charged)
	return c
}

// decodeGivenBack reads the reply of lua/give_back.lua, which has been checked.
func (g *group) decodeGivenBack(c *call, charged []int) {
	for n, i := range charged {
		g.decisions[i].Remaining, g.decisions[i].ResetAfter = c.number(2*n), c.micros(2*n+1)
	}
}
