package redisbackend

import (
	"context"
	"strconv"
	"sync"
	"time"

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

// takeSlots decides buckets of several slots: a call for each, in parallel, and
// back with what was taken if one refuses or fails.
func (b *Backend) takeSlots(ctx context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	deadline := time.Now().Add(b.timeout)
	groups := split(buckets)
	if err := b.admitAll(groups); err != nil {
		return err
	}
	b.takeAll(ctx, groups)
	for _, g := range groups {
		if g.err != nil {
			b.giveBack(groups)
			return g.err
		}
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

func (b *Backend) takeAll(ctx context.Context, groups []*group) {
	var wg sync.WaitGroup
	for _, g := range groups[1:] {
		wg.Go(func() { g.take(ctx, b.timeout) })
	}
	groups[0].take(ctx, b.timeout)
	wg.Wait()
}

func (g *group) take(ctx context.Context, timeout time.Duration) {
	if err := g.flight.send(ctx, timeout); err != nil {
		g.err = nameScope(err, g.buckets)
		return
	}
	c := g.flight.call
	defer c.release()
	g.decisions = make([]policy.Decision, len(g.buckets))
	if g.err = c.decode(g.buckets, g.decisions); g.err == nil {
		g.taken = c.number(0)
	}
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
	f, err := b.client.admit(b.giveBackCall(g, charged))
	if err != nil {
		return
	}
	if err := f.send(context.Background(), b.timeout); err != nil {
		return
	}
	defer f.call.release()
	g.decodeGivenBack(f.call, charged)
}

// giveBackCall encodes a call of lua/give_back.lua.
func (b *Backend) giveBackCall(g *group, charged []int) *call {
	c := newCall(giveBackScript)
	for _, i := range charged {
		c.addKey(b.prefix, &g.buckets[i])
	}
	c.addTime(b.clock)
	c.text = strconv.AppendInt(c.text, g.taken, 10)
	c.endPart()
	for _, i := range charged {
		c.appendBucket(&g.buckets[i])
	}
	c.endPart()
	c.seal(len(charged))
	return c
}

// decodeGivenBack reads the reply of lua/give_back.lua.
func (g *group) decodeGivenBack(c *call, charged []int) {
	if len(c.reply) != 2*numberSize*len(charged) {
		return
	}
	for n, i := range charged {
		g.decisions[i].Remaining, g.decisions[i].ResetAfter = c.number(2*n), c.micros(2*n+1)
	}
}
