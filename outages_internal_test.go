package ratelimit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// Until every app has started, subscribers may not be bound yet, and an event would
// be lost.
func TestOutagesWaitUntilTheConfigurationRunsAndAreBounded(t *testing.T) {
	t.Parallel()
	o := new(outages)
	for i := range maxOutageEvents + 3 {
		o.add(redisbackend.StateChange{Address: fmt.Sprint(i), Err: errors.New("gone")})
	}
	o.add(redisbackend.StateChange{Address: "told before", Repeated: true})
	if o.emitting || len(o.pending) != maxOutageEvents || o.pending[0].Address != "3" {
		t.Errorf("emitting is %t with %d pending, the first of %s", o.emitting, len(o.pending), o.pending[0].Address)
	}
	o.stop()
	if _, ok := o.next(); ok {
		t.Error("an event is left after the end")
	}
	o.add(redisbackend.StateChange{Up: true})
	if err := o.Handle(t.Context(), caddy.Event{}); err != nil || o.emitting {
		t.Errorf("the end is taken back: %v", err)
	}
}
