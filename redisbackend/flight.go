package redisbackend

import (
	"context"
	"sync"
	"time"
)

// flight is a call that its breaker let pass. It is either sent or dropped.
type flight struct {
	client  *client
	call    *call
	breaker *breaker
	done    func(error)
}

// admit asks the breaker of the server that a call is for.
func (c *client) admit(call *call) (flight, error) {
	b := c.breakers.forKey(call.key())
	done, err := b.allow()
	if err != nil {
		call.release()
		return flight{}, err
	}
	return flight{client: c, call: call, breaker: b, done: done}, nil
}

// drop gives up a call that was not sent.
func (f flight) drop() {
	f.done(errDropped)
	f.call.release()
}

// send queues the call and waits for its answer, at most for timeout. After an
// error the call is gone; otherwise the caller reads the reply and releases it.
func (f flight) send(ctx context.Context, timeout time.Duration) error {
	key := f.call.key() // the call may be gone when it is needed
	if err := f.client.enqueue(f.call); err != nil {
		f.drop()
		return err
	}
	answered, err := f.client.await(ctx, f.call, timeout)
	if answered && f.call.err != nil {
		err = failed(f.call.err)
		f.call.release()
	}
	f.breaker.report(f.done, key, err)
	return err
}

func (c *client) enqueue(call *call) error {
	select {
	case c.queue <- call:
		return nil
	default:
		return errBusy
	}
}

// await waits until the call is answered, or gives it up and says why.
func (c *client) await(ctx context.Context, call *call, timeout time.Duration) (answered bool, err error) {
	timer := startTimer(timeout)
	defer stopTimer(timer)
	select {
	case <-call.done:
		return true, nil
	case <-timer.C:
		err = errTimeout
	case <-ctx.Done():
		err = &unavailable{reason: ctx.Err(), uncounted: true}
	case <-c.ctx.Done():
		err = errClosed
	}
	sent, ok := call.abandon() // from here on the call may be another's
	if !ok {                   // the answer has come at the last moment
		<-call.done
		return true, nil
	}
	if err == error(errTimeout) && !sent && c.silentFor() < timeout {
		err = errQueued // Redis answers others: this process asks too much
	}
	return false, err
}

// timers are apart from the calls, since a call that was given up is not its
// caller's any more when the caller stops its timer.
var timers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

func startTimer(d time.Duration) *time.Timer {
	t := timers.Get().(*time.Timer)
	t.Reset(d)
	return t
}

// stopTimer stops a timer and keeps it for others. Since Go 1.23 nothing of its
// past can arrive on its channel after that.
func stopTimer(t *time.Timer) {
	t.Stop()
	timers.Put(t)
}
