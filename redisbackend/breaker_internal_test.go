package redisbackend

import (
	"errors"
	"testing"
	"time"

	"github.com/sony/gobreaker/v2"
)

// idleBreaker is a breaker of a client that asks nobody, since it has ended.
func idleBreaker() *breaker {
	c := &client{ended: true}
	c.breakers.init(c)
	return c.breakers.whole
}

// failLong reports failures in a row that have gone on long enough to trip.
func failLong(b *breaker, times int) {
	for range times {
		b.report("k", errors.New("broken"))
		b.failing.Store(time.Now().Add(-2 * minOutage).UnixNano())
	}
}

func TestOnlyFailuresInARowOpenTheBreaker(t *testing.T) {
	t.Parallel()
	b := idleBreaker()
	for range 3 {
		failLong(b, tripAfter-1)
		for range 100 {
			b.report("k", nil)
		}
	}
	if b.allow() != nil {
		t.Fatal("failures with answers between them opened the breaker")
	}
	failLong(b, tripAfter)
	if b.allow() == nil {
		t.Error("failures in a row did not")
	}
}

func TestCallsThatEndDuringAnOutageDoNotEndIt(t *testing.T) {
	t.Parallel()
	b := idleBreaker()
	failLong(b, tripAfter)
	for deadline := time.Now().Add(10 * time.Second); b.cb.State() != gobreaker.StateHalfOpen; {
		if time.Now().After(deadline) {
			t.Fatal("it is never time for a probe")
		}
		b.report("k", nil)
		b.failing.Store(1) // as of a call that failed meanwhile
		b.report("k", nil)
	}
	b.failing.Store(1)
	b.report("k", nil)
	if b.cb.State() != gobreaker.StateHalfOpen || b.allow() == nil {
		t.Error("an answer to a call from before closed the breaker")
	}
	done, err := b.cb.Allow()
	if err != nil {
		t.Fatalf("a straggler took the place of the probe: %v", err)
	}
	done(nil)
	if b.cb.State() != gobreaker.StateClosed {
		t.Error("a probe did not close it")
	}
}
