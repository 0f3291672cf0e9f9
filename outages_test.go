package ratelimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

func init() { caddy.RegisterModule(new(subscriber)) }

// subscriber is an event handler as an operator may configure one. What it hears
// is kept by its name, over reloads.
type subscriber struct {
	Name string `json:"name"`

	// The name of what it does on each event before it keeps it: see onEvent.
	Does string `json:"does,omitempty"`
}

// heard is an event that a subscriber got.
type heard struct {
	name   string
	origin string
	data   map[string]any
}

var (
	heardMu   sync.Mutex
	heardBy   = make(map[string][]heard)
	onEventBy = make(map[string]func())
)

func (*subscriber) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.test_subscriber", New: func() caddy.Module { return new(subscriber) }}
}

func (s *subscriber) Handle(_ context.Context, e caddy.Event) error {
	heardMu.Lock()
	do := onEventBy[s.Does]
	heardMu.Unlock()
	if do != nil {
		do()
	}
	heardMu.Lock()
	defer heardMu.Unlock()
	heardBy[s.Name] = append(heardBy[s.Name], heard{e.Name(), string(e.Origin().CaddyModule().ID), e.Data})
	return nil
}

// eventsOf is what a subscriber has heard.
func eventsOf(name string) []heard {
	heardMu.Lock()
	defer heardMu.Unlock()
	return append([]heard(nil), heardBy[name]...)
}

// awaitEvents waits until a subscriber has heard a number of events, and names them.
func awaitEvents(t *testing.T, name string, n int) string {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for len(eventsOf(name)) < n {
		if time.Now().After(deadline) {
			t.Fatalf("%s has heard %v, not %d events", name, eventsOf(name), n)
		}
		time.Sleep(5 * time.Millisecond)
	}
	var names []string
	for _, e := range eventsOf(name) {
		names = append(names, strings.TrimPrefix(e.name, "rate_limit."))
	}
	return strings.Join(names, " ")
}

// runWithSubscriber runs Caddy in this process with the backend redis and a
// subscriber. Caddy is one per process, so these tests do not run in parallel.
func runWithSubscriber(t *testing.T, url, name, does string) {
	t.Helper()
	if err := load(url, name, does); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		heardMu.Lock()
		defer heardMu.Unlock()
		clear(heardBy)
		clear(onEventBy)
	})
}

func load(url, name, does string) error {
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	return caddy.Load([]byte(fmt.Sprintf(`{
		"admin": {"disabled": true, "config": {"persist": false}},
		"logging": {"logs": {"default": {"level": "FATAL"}}},
		"apps": {
			"events": {"subscriptions": [{
				"events": ["rate_limit.backend_down", "rate_limit.backend_up"],
				"handlers": [{"handler": "test_subscriber", "name": %s, "does": %s}]
			}]},
			"rate_limit": {"backend": {"backend": "redis", "urls": [%s], "timeout": "50ms"}}
		}
	}`, quote(name), quote(does), quote(url))), true)
}

func TestAnOutageIsOneEventAtItsBeginningAndOneAtItsEnd(t *testing.T) {
	server := testserver.NewRedis(t, "--requirepass", "s3cret")
	server.Kill()
	before := time.Now()
	runWithSubscriber(t, "redis://:s3cret@"+server.Addr(), "plain", "")
	awaitEvents(t, "plain", 1)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := awaitEvents(t, "plain", 2); got != "backend_down backend_up" {
		t.Fatalf("heard %s", got)
	}
	down, up := eventsOf("plain")[0], eventsOf("plain")[1]
	since := down.data["since"].(time.Time)
	if down.data["backend"] != "redis" || down.data["address"] != server.Addr() || down.data["reason"] != "connection" || since.Before(before) {
		t.Errorf("backend_down says %v", down.data)
	}
	if lasted, ok := up.data["down_for"].(time.Duration); !ok || lasted <= 0 || lasted > time.Since(before) || up.data["address"] != server.Addr() || !up.data["since"].(time.Time).Equal(since) {
		t.Errorf("backend_up says %v", up.data)
	}
	if down.origin != "rate_limit" {
		t.Errorf("the events come from %s", down.origin)
	}
	if text := fmt.Sprint(down, up); strings.Contains(text, "s3cret") {
		t.Errorf("the password is in %s", text)
	}
}

// Both configurations use the same client of Redis, which lives on.
func TestAnOutageOverAReloadIsToldToWhoeverRunsThenAndNeverTwice(t *testing.T) {
	server := testserver.NewRedis(t)
	runWithSubscriber(t, server.URL(), "first", "")
	awaitLook(t, server)
	server.Kill()
	if err := load(server.URL(), "second", ""); err != nil { // its look at the server finds the outage
		t.Fatal(err)
	}
	awaitEvents(t, "second", 1)
	if err := load(server.URL(), "third", ""); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := awaitEvents(t, "third", 1); got != "backend_up" {
		t.Errorf("the last configuration heard %s", got)
	}
	if second, first := awaitEvents(t, "second", 1), eventsOf("first"); second != "backend_down" || len(first) > 0 {
		t.Errorf("the second configuration heard %s, the first %v", second, first)
	}
}

// The second configuration has another client for the same server.
func TestAnOutageGoesOnOverAReloadThatChangesHowTheServerIsAsked(t *testing.T) {
	server := testserver.NewRedis(t, "--requirepass", "s3cret")
	server.Kill()
	runWithSubscriber(t, "redis://:s3cret@"+server.Addr(), "first", "")
	awaitEvents(t, "first", 1)
	if err := load("redis://default:s3cret@"+server.Addr(), "second", ""); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := awaitEvents(t, "second", 1); got != "backend_up" {
		t.Errorf("the second configuration heard %s", got)
	}
	if got := awaitEvents(t, "first", 1); got != "backend_down" {
		t.Errorf("the first configuration heard %s", got)
	}
	down, up := eventsOf("first")[0], eventsOf("second")[0]
	if !up.data["since"].(time.Time).Equal(down.data["since"].(time.Time)) {
		t.Errorf("the outage began %v, and the one that ended began %v", down.data, up.data)
	}
}

// awaitLook waits until the configuration that has started has looked at the server.
func awaitLook(t *testing.T, server *testserver.Redis) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer c.Close()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if info, err := c.Info(t.Context(), "memory").Result(); err == nil && strings.Contains(info, "number_of_cached_scripts:2") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the scripts are not loaded")
		}
	}
}

// A configuration that fails to start leaves the events to the one that goes on.
func TestAFailedReloadTakesNoEvents(t *testing.T) {
	server := testserver.NewRedis(t)
	runWithSubscriber(t, server.URL(), "going on", "")
	if err := load("http://nonsense", "refused", ""); err == nil {
		t.Fatal("the configuration was taken")
	}
	server.Kill()
	if err := load(server.URL(), "going on", "look again"); err != nil {
		t.Fatal(err)
	}
	awaitEvents(t, "going on", 1)
	if list := eventsOf("refused"); len(list) > 0 {
		t.Errorf("the configuration that was refused heard %v", list)
	}
}

// A subscriber that does not return keeps neither the backend from recovering nor
// Caddy from reloading, even if it is what reloads.
func TestASubscriberMayTakeItsTimeAndReloadCaddy(t *testing.T) {
	server := testserver.NewRedis(t)
	server.Kill()
	reloaded := make(chan error, 1)
	heardMu.Lock()
	onEventBy["reload"] = sync.OnceFunc(func() { reloaded <- load(server.URL(), "after", "") })
	heardMu.Unlock()
	runWithSubscriber(t, server.URL(), "reloading", "reload")
	select {
	case err := <-reloaded:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the reload waits for the subscriber that asked for it")
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := awaitEvents(t, "after", 1); got != "backend_up" {
		t.Errorf("the next configuration heard %s", got)
	}
}
