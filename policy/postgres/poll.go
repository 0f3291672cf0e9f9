package postgres

import (
	"context"
	"time"
)

const (
	minPollInterval = 50 * time.Millisecond
	minPollTimeout  = time.Second
)

// poll compares the epoch twice per cache_ttl until the client ends. It has a
// clock and connections of its own, so however the connection is that listens,
// nothing is older than cache_ttl once the database answers.
func (c *client) poll() {
	for {
		interval := max(c.cacheTTL()/2, minPollInterval)
		select {
		case <-time.After(interval):
			c.compare(interval)
		case <-c.ctx.Done():
			return
		}
	}
}

// compare makes what is known current, on a connection of the pool. One that does
// not answer within the time given, of a second at least, may have been cut off
// without a sign; it is closed then.
func (c *client) compare(timeout time.Duration) {
	began := time.Now()
	if c.compareOn(min(max(timeout, minPollTimeout), lookTimeout)) != nil {
		return // the one who listens says so
	}
	wasUp := c.up()
	c.note(began, nil)
	if !wasUp {
		c.kick() // who listens need not wait any longer
	}
}

func (c *client) compareOn(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := readEpoch(ctx, conn); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(c.ctx, lookTimeout) // to read much may take longer
	defer cancel()
	return c.update(ctx, conn.Conn())
}
