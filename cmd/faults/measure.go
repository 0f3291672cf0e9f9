package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// modes are the failure modes, and the paths that have them.
var modes = []string{"open", "closed", "local"}

// site is what Caddy serves: the defaults, but for what happens on failure.
const site = `{
	admin off
	auto_https off
	persist_config off
	rate_limit {
		backend redis %s
	}
}
http://:{$PORT} {
	rate_limit /open {
		zone open {
			limit 10000000/1h
			on_error open
		}
	}
	rate_limit /closed {
		zone closed {
			limit 10000000/1h
			on_error closed
		}
	}
	rate_limit /local {
		zone local {
			limit 10000000/1h
			on_error local
		}
	}
	respond "welcome"
}
`

// Bounds of the load, which is to find latencies and not limits, and of waiting.
const (
	clients  = 8
	pause    = 2 * time.Millisecond
	healthy  = 500 * time.Millisecond // of measuring before the fault
	patience = 30 * time.Second
	poll     = time.Millisecond
)

// sample is one request.
type sample struct {
	mode   string
	begun  time.Time
	took   time.Duration
	status int // 0 if there was no answer
}

// outcome is what was seen of a fault.
type outcome struct {
	fault    testserver.Fault
	normal   []sample // before it
	samples  []sample // that ended after it began, until its end
	opened   time.Time
	log      string // the line of the trip
	recovery time.Duration
}

// measure watches one fault from before its beginning to after its end.
func (o options) measure(ctx context.Context, fault testserver.Fault, dir string) (*outcome, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	patient, err := testserver.StartPatient(dir)
	if err != nil {
		return nil, err
	}
	defer patient.Stop()
	caddy, err := testserver.StartCaddy(o.caddy, dir, fmt.Sprintf(site, patient.URL()))
	if err != nil {
		return nil, err
	}
	defer caddy.Stop()

	out := &outcome{fault: fault}
	l := &load{url: caddy.URL()}
	l.start(ctx)
	defer l.stop()
	if err := waitFor(ctx, "a decision by Redis", func() bool { return l.answered("closed", http.StatusOK) }); err != nil {
		return nil, err
	}
	l.take()
	wait(ctx, healthy)
	out.normal = l.take()
	return out, out.watch(ctx, o.duration, patient, caddy, l)
}

// watch lets the fault happen and end.
func (out *outcome) watch(ctx context.Context, duration time.Duration, patient *testserver.Patient, caddy *testserver.Caddy, l *load) error {
	opened, closed := lines(caddy, tripText), lines(caddy, backText)
	if err := out.fault.Begin(patient); err != nil {
		return err
	}
	begun := time.Now()
	if err := waitFor(ctx, "the breaker to open", func() bool { return lines(caddy, tripText) > opened }); err != nil {
		return err
	}
	out.opened, out.log = time.Now(), caddy.Log()
	defer func() {
		out.samples = slices.DeleteFunc(out.samples, func(s sample) bool { return s.begun.Add(s.took).Before(begun) })
	}()
	if !out.fault.Passing {
		wait(ctx, duration)
		out.samples, closed = l.take(), lines(caddy, backText)
	}
	if err := out.fault.End(patient); err != nil {
		return err
	}
	end := time.Now()
	err := waitFor(ctx, "the recovery", func() bool { return lines(caddy, backText) > closed })
	out.recovery = time.Since(end)
	if out.fault.Passing {
		out.samples = l.take()
	}
	return err
}

// What the log says of a trip and of a recovery.
const (
	tripText = "redis is unavailable"
	backText = "redis is back"
)

func lines(caddy *testserver.Caddy, text string) int { return strings.Count(caddy.Log(), text) }

// waitFor waits until something holds.
func waitFor(ctx context.Context, what string, holds func() bool) error {
	for deadline := time.Now().Add(patience); !holds(); wait(ctx, poll) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s in vain for %s", patience, what)
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// load sends requests of all modes until it is stopped.
type load struct {
	url    string
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	samples []sample
}

func (l *load) start(ctx context.Context) {
	ctx, l.cancel = context.WithCancel(ctx)
	for i := range clients {
		l.wg.Go(func() { l.client(ctx, i) })
	}
}

func (l *load) client(ctx context.Context, i int) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	for ; ctx.Err() == nil; i++ {
		s := sample{mode: modes[i%len(modes)], begun: time.Now()}
		if resp, err := client.Get(l.url + "/" + s.mode); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			s.status = resp.StatusCode
		}
		s.took = time.Since(s.begun)
		l.mu.Lock()
		l.samples = append(l.samples, s)
		l.mu.Unlock()
		wait(ctx, pause)
	}
}

// take returns the requests since it was last called.
func (l *load) take() []sample {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.samples
	l.samples = nil
	return taken
}

// answered reports whether a request of a mode got a status.
func (l *load) answered(mode string, status int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.samples {
		if s.mode == mode && s.status == status {
			return true
		}
	}
	return false
}

func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}
