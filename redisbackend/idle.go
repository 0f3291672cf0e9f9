package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server that nobody asks is pinged, so that health, metrics, the log and events tell
// of an outage before a request has to find out.
const (
	// idleInterval is how long a server has answered no call until it is pinged, and how
	// often.
	idleInterval = time.Second

	// maxProbes bounds the search for a key that a master of a Cluster has.
	maxProbes = 1024
)

// watchIdle pings, as long as the client lives and a configuration runs, the servers
// that have answered no call for an interval, and examines those that are unknown.
func (c *client) watchIdle() {
	tick := time.NewTicker(idleInterval)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		prefix, running := c.prefix()
		if !running {
			continue
		}
		var wg sync.WaitGroup
		for _, b := range c.breakers.servers() {
			idle, unknown := b.idle(), !b.examined.Load() && b.outage.Load() == nil
			if idle || unknown {
				wg.Go(func() { b.lookAfter(prefix, idle, unknown) })
			}
		}
		wg.Wait()
		c.rounds.Add(1)
	}
}

// lookAfter examines a server that is unknown and pings one that is idle.
func (b *breaker) lookAfter(prefix string, idle, unknown bool) {
	if unknown {
		b.catchUp(prefix)
	}
	if idle {
		b.lookAlive(prefix)
	}
}

// servers lists the breakers of what can be pinged.
func (bs *breakers) servers() []*breaker {
	if all := bs.all(); len(all) > 1 {
		return all[1:] // of a Cluster, the masters
	}
	return []*breaker{bs.whole}
}

// idle reports whether nothing was answered since it was last called. While the breaker
// is open, probes look after the server.
func (b *breaker) idle() bool {
	return !b.answered.Swap(false) && b.outage.Load() == nil
}

// lookAlive asks for a sign of life, and once more if that failed: one lost connection
// is no outage. If there was none, nor any answer to a call meanwhile, the breaker opens.
func (b *breaker) lookAlive(prefix string) {
	key, rdb := b.client.at(b, prefix)
	if rdb == nil {
		return
	}
	begun := time.Now()
	err := b.sign(key, rdb)
	if err == nil {
		return
	}
	select {
	case <-b.client.ctx.Done():
		return
	case <-time.After(time.Until(begun.Add(probeInterval))):
	}
	if err = b.sign(key, rdb); err != nil && b.client.ctx.Err() == nil && b.idle() {
		b.trip(key, err)
	}
}

// sign is nil if the server gives a sign of life. If the last calls have failed, only
// one that is like them is believed: they were too few to open the breaker, and what
// they met may be no matter of life and death.
func (b *breaker) sign(key string, rdb redis.Cmdable) error {
	if b.failing.Load() == 0 {
		return b.client.ping(rdb)
	}
	err := b.client.probe(b, key)
	if err == nil {
		b.report(key, nil)
	}
	return err
}

// at is how to reach the server of a breaker, and a key that it has: nothing if it has
// none any more.
func (c *client) at(b *breaker, prefix string) (key string, rdb redis.Cmdable) {
	if c.cluster == nil || b == c.breakers.whole {
		return prefix + "probe}", c.rdb
	}
	for range maxProbes {
		key = prefix + strconv.Itoa(b.probed) + "}"
		node, err := c.cluster.MasterForKey(c.ctx, key)
		if err == nil && node.Options().Addr == b.address {
			return key, node
		}
		b.probed = (b.probed + 1) % maxProbes
	}
	return "", nil
}

// ping asks for a sign of life. That the user may not ping is one, too.
func (c *client) ping(rdb redis.Cmdable) error {
	limit := c.patience()
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	pong, err := rdb.Ping(ctx).Result()
	err = notNil(err)
	switch {
	case isUncounted(err), redis.IsPermissionError(err), redis.HasErrorPrefix(err, "unknown command"):
		return nil
	case err == nil && pong != "PONG":
		return notRedis(fmt.Sprintf("%.80q to PING", pong))
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer to PING within %s: %w", limit, err)
	}
	return err
}
