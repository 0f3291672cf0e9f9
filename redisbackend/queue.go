package redisbackend

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// queue holds the calls that wait to be sent, oldest first. It is bounded.
type queue struct {
	filled chan struct{} // holds a value while there are calls and nobody collects them

	mu        sync.Mutex
	calls     []*call
	collected int // how many calls were, so far
}

func newQueue() *queue { return &queue{filled: make(chan struct{}, 1)} }

// add puts a call last; false means that the queue is full.
func (q *queue) add(c *call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.calls) == maxWaiting {
		return false
	}
	q.calls = append(q.calls, c)
	if len(q.calls) == 1 {
		q.filled <- struct{}{} // never blocks: it was empty, or the one who emptied it took the value
	}
	return true
}

// putBack puts calls first that were collected and not sent.
func (q *queue) putBack(calls []*call) {
	if len(calls) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls = slices.Insert(q.calls, 0, calls...)
	q.collected -= len(calls)
	if len(q.calls) == len(calls) {
		q.filled <- struct{}{} // as in add
	}
}

// collect waits for calls and appends to batch those that travel together; all that
// do so may, or only equal ones. It returns nothing when ctx has ended.
func (q *queue) collect(ctx context.Context, batch []*call, equalOnly bool) []*call {
	select {
	case <-q.filled:
	case <-ctx.Done():
		return nil
	}
	q.gather()
	q.mu.Lock()
	defer q.mu.Unlock()
	first := q.calls[0]
	seen := q.calls[:min(len(q.calls), maxBatch)]
	kept := 0
	for _, c := range seen {
		if c == first || c.fits(first, equalOnly) {
			batch = append(batch, c)
		} else {
			seen[kept] = c
			kept++
		}
	}
	q.collected += len(seen) - kept
	q.calls = slices.Delete(q.calls, kept, len(seen))
	if len(q.calls) > 0 {
		q.filled <- struct{}{}
	}
	return batch
}

// longestGather is when gather waits no more: a call must not wait long because others
// keep coming, or because requests are busy with something else.
const longestGather = time.Millisecond

// gather lets everything run that can, as long as that brings more calls: on a busy
// machine those are requests about to ask, and the calls of all of them then travel as
// one. On a machine that is idle there is nothing to run, and it returns at once.
func (q *queue) gather() {
	waiting := 0
	for began := time.Now(); time.Since(began) < longestGather; {
		runtime.Gosched()
		q.mu.Lock()
		n := len(q.calls)
		q.mu.Unlock()
		if n == waiting || n >= maxBatch {
			return
		}
		waiting = n
	}
}

// fits reports whether a call may travel with the first one: it runs the same script
// at the same time.
func (c *call) fits(first *call, equalOnly bool) bool {
	if c.script != takeScript || first.script != takeScript {
		return false
	}
	if equalOnly {
		return c.text == first.text
	}
	return c.time() == first.time()
}
