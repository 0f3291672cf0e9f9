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
}

// admit asks the breaker of the server that a call is for.
func (c *client) admit(call *call) (flight, error) {
	b := c.breakers.forKey(call.key())
	if err := b.allow(); err != nil {
		call.release()
		return flight{}, err
	}
	return flight{client: c, call: call, breaker: b}, nil
}

// drop gives up a call that was not sent.
func (f flight) drop() { f.call.release() }

// send asks Redis and waits for the answer, at most for timeout. After an error the
// call is gone; otherwise the caller reads the reply and releases it.
func (f flight) send(ctx context.Context, timeout time.Duration) error {
	key := f.call.key() // the call may be gone when it is needed
	began := time.Now()
	alone := f.client.pending.Add(1) == 1
	defer f.client.pending.Add(-1)
	var err error
	if alone && f.client.answersAtOnce(timeout) {
		err = f.client.ask(f.call, timeout)
	} else if err = f.queue(ctx, timeout); err == errBusy {
		f.drop()
		countError(err)
		return err
	}
	if err == nil {
		if wrong := f.call.check(); wrong != nil {
			err = failed(wrong)
			f.call.release()
		}
	}
	f.breaker.report(key, err)
	observe(began, err)
	return err
}

// queue has a sender ask Redis.
func (f flight) queue(ctx context.Context, timeout time.Duration) error {
	if !f.client.queue.add(f.call) {
		return errBusy
	}
	answered, err := f.client.await(ctx, f.call, timeout)
	if answered && f.call.err != nil {
		err = failed(f.call.err)
		f.call.release()
	}
	return err
}

// await waits until the call is answered, or gives it up and says why.
func (c *client) await(ctx context.Context, call *call, timeout time.Duration) (answered bool, err error) {
	timer := startTimer(timeout)
	defer stopTimer(timer)
	if timeout <= longestDirect {
		answered, err = c.awaitBriefly(call, timer)
	} else {
		answered, err = c.awaitAny(ctx, call, timer)
	}
	if answered {
		return true, nil
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

// awaitBriefly does not look whether the client hangs up: it would wait on for a
// moment at most, and to listen for that costs every request more than a lock.
func (c *client) awaitBriefly(call *call, timer *time.Timer) (answered bool, err error) {
	select {
	case <-call.done:
		return true, nil
	case <-timer.C:
	}
	if c.ctx.Err() != nil {
		return false, errClosed
	}
	return false, errTimeout
}

func (c *client) awaitAny(ctx context.Context, call *call, timer *time.Timer) (answered bool, err error) {
	select {
	case <-call.done:
		return true, nil
	case <-timer.C:
		return false, errTimeout
	case <-ctx.Done():
		return false, &unavailable{reason: ctx.Err(), uncounted: true}
	case <-c.ctx.Done():
		return false, errClosed
	}
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
