package redisbackend

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// A call that comes while no other is on its way is sent by its own goroutine, which
// spares two handovers. If its time is over before the answer comes, its connection is
// lost, and so is the notice of a client that hung up. So it is only done while Redis
// answers, and with short timeouts; after a failure, calls queue until there is an
// answer again.
const (
	// directWithin is how lately Redis must have answered.
	directWithin = time.Second

	// longestDirect is the longest timeout of such a call, and of one that waits in the
	// queue without an eye on whether its client hangs up.
	longestDirect = 100 * time.Millisecond
)

// answersAtOnce reports whether a call with a timeout may be sent without a queue. In a
// Cluster it may not: an answer of one master says nothing about the others. Nor while
// senders stand aside: the connections that there are may all be in use.
func (c *client) answersAtOnce(timeout time.Duration) bool {
	return c.cluster == nil && timeout <= longestDirect && !c.doubtful.Load() && c.working.Load() == c.senders && c.silentFor() < directWithin
}

// ask sends a call and waits for its answer, at most for timeout. After an error the
// call is released.
func (c *client) ask(call *call, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout) // the end of the client closes the connection
	defer cancel()
	reply, err := c.run(ctx, call.script, call.command())
	if err == nil {
		err = call.answer(reply)
	}
	if err == nil {
		c.answered()
		return nil
	}
	call.release()
	if reply := redis.Error(nil); !errors.As(err, &reply) {
		c.doubtful.Store(true)
	}
	u := failed(err)
	switch {
	case c.ctx.Err() != nil:
		return errClosed
	case u.timeout:
		return errTimeout
	default:
		return u
	}
}
