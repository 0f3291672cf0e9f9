package ratelimit

import (
	"context"
	"fmt"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// Each outage of the backend is two events, with the data
//
//	backend   which kind of backend it is: redis
//	address   of the server, without secrets
//	since     when the outage began
//	reason    in one word what it comes from (see redisbackend.StateChange); only of backend_down
//	error     the same in the server's or the system's words; only of backend_down
//	down_for  how long the outage lasted; only of backend_up
const (
	eventBackendDown = "rate_limit.backend_down"
	eventBackendUp   = "rate_limit.backend_up"
)

// maxOutageEvents bounds the events that wait for slow subscribers. Of more, the
// oldest are dropped: what counts is how it stands now.
const maxOutageEvents = 64

// outages turns the outages of a backend into events of one configuration, in
// their order and each once. A subscriber may take its time, or reload Caddy:
// nothing of the backend waits for it. What happens while a configuration starts
// is emitted when all of it has started, and nothing is emitted after its end. An
// outage that goes on over a reload is not told again, and its end is told to the
// configuration that runs then, also if that asks the same server in another way.
type outages struct {
	ctx    caddy.Context
	events *caddyevents.App

	mu       sync.Mutex
	state    outagesState
	pending  []redisbackend.StateChange
	emitting bool
}

type outagesState int

const (
	outagesStarting outagesState = iota
	outagesRunning
	outagesStopped
)

// newOutages prepares the events of a configuration that is being provisioned.
func newOutages(ctx caddy.Context) (*outages, error) {
	app, err := ctx.App("events")
	if err != nil {
		return nil, fmt.Errorf("getting the events app: %w", err)
	}
	o := &outages{ctx: ctx, events: app.(*caddyevents.App)}
	// Caddy starts apps in any order, and says when the last one has started.
	return o, o.events.On("started", o)
}

// watch makes the backend tell of its outages, if it can.
func (o *outages) watch(b Backend) {
	if teller, ok := b.(interface {
		SetObserver(func(redisbackend.StateChange))
	}); ok {
		teller.SetObserver(o.add)
	}
}

// Handle hears that the configuration runs.
func (o *outages) Handle(context.Context, caddy.Event) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == outagesStarting {
		o.state = outagesRunning
	}
	o.emitLocked()
	return nil
}

// stop ends the events of the configuration. It does not wait for a subscriber,
// which may be what ends the configuration.
func (o *outages) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state, o.pending = outagesStopped, nil
}

// add takes a change to be emitted. It does not wait.
func (o *outages) add(change redisbackend.StateChange) {
	if change.Repeated {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pending) == maxOutageEvents {
		o.pending = o.pending[1:]
	}
	o.pending = append(o.pending, change)
	o.emitLocked()
}

// emitLocked emits what is pending in the background, one after the other.
func (o *outages) emitLocked() {
	if o.state == outagesRunning && !o.emitting && len(o.pending) > 0 {
		o.emitting = true
		go o.emitAll()
	}
}

func (o *outages) emitAll() {
	for {
		change, ok := o.next()
		if !ok {
			return
		}
		name, data := outageEvent(change)
		o.events.Emit(o.ctx, name, data)
	}
}

// next is the next change to emit, if there is one.
func (o *outages) next() (change redisbackend.StateChange, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != outagesRunning || len(o.pending) == 0 {
		o.emitting = false
		return change, false
	}
	change, o.pending = o.pending[0], o.pending[1:]
	return change, true
}

// outageEvent is the event of a change.
func outageEvent(change redisbackend.StateChange) (name string, data map[string]any) {
	data = map[string]any{"backend": "redis", "address": change.Address}
	if change.Up {
		data["since"] = change.Since.Add(-change.DownFor)
		data["down_for"] = change.DownFor
		return eventBackendUp, data
	}
	data["since"] = change.Since
	data["reason"] = change.Kind
	data["error"] = change.Err.Error()
	return eventBackendDown, data
}

// Interface guards
var (
	_ caddyevents.Handler = (*outages)(nil)
)
