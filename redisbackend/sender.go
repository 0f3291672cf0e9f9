package redisbackend

import (
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"
)

// sender sends calls until the client ends: one that comes alone at once, and
// those that have queued up meanwhile together, which costs Redis and this process
// a fraction. In a Cluster only equal ones travel together: others may have another
// master.
func (c *client) sender() {
	b := newBatch()
	for {
		b.calls = c.queue.collect(c.ctx, b.calls, c.cluster != nil)
		if len(b.calls) == 0 {
			return
		}
		b.begin()
		refused := len(b.calls) > 0 && c.send(b)
		if refused && c.stepAside() {
			c.queue.putBack(b.takeOut())
			c.waitForRoom()
			continue
		}
		b.end()
	}
}

// send is where queued calls leave for Redis. It reports whether they did not, since
// there was no connection and Redis takes no more.
func (c *client) send(b *batch) (refused bool) {
	reply, err := c.run(c.ctx, b.calls[0].script, b.command())
	b.answer(reply, err)
	if slices.ContainsFunc(b.calls, func(call *call) bool { return call.err == nil }) {
		c.answered()
	}
	return errors.Is(err, errNoRoom)
}

// asideFor is how long a sender stands aside that got no connection.
const asideFor = time.Second

// stepAside is for a sender that got no connection because Redis takes no more: its
// calls, which were not sent, are left to the senders that may have one. It reports false
// if there is no other; then nobody has one, and the calls have failed. In a Cluster it
// does, too, since the others may have connections to other masters only.
func (c *client) stepAside() bool {
	if c.cluster == nil && c.working.Add(-1) > 0 {
		c.warnCrowded()
		return true
	}
	if c.cluster == nil {
		c.working.Add(1)
	}
	return false
}

// crowdedEvery is how often it is said at most that Redis takes no more connections.
const crowdedEvery = time.Minute

// warnCrowded says that Redis takes fewer connections than the configuration allows:
// no call fails for that, but they wait for each other.
func (c *client) warnCrowded() {
	now, last := time.Since(c.created), c.crowded.Load()
	if last != 0 && now-time.Duration(last) < crowdedEvery || !c.crowded.CompareAndSwap(last, int64(now)) {
		return
	}
	if b := c.tenancy.current(); b != nil && b.client == c {
		b.logger.Warn("redis takes no more connections, so calls share those that there are: raise its maxclients, or lower max_connections",
			zap.String("address", c.address), zap.Int("connections", c.guard.count()))
	}
}

// waitForRoom ends what stepAside began, after a while.
func (c *client) waitForRoom() {
	timer := startTimer(asideFor)
	defer stopTimer(timer)
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	}
	c.working.Add(1)
}
