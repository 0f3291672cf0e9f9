package admin_test

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tollgate/ratelimit/admin"
)

// A load balancer asks every second.
func TestHealthIsLoggedWhenItChangesAndNotWhenItIsAsked(t *testing.T) {
	t.Parallel()
	s := setup(t)
	core, logs := observer.New(zap.InfoLevel)
	s.handler = admin.New(admin.Settings{
		Provider: s.provider, ProviderName: "embedded", Backend: s.backend, Authenticator: tokens{}, Logger: zap.New(core),
	})
	for _, change := range []struct {
		down   bool
		status int
		lines  int // so far
	}{
		{false, 200, 0},
		{true, 503, 1},
		{false, 200, 2},
		{true, 503, 3},
	} {
		s.backend.mu.Lock()
		s.backend.down = change.down
		s.backend.mu.Unlock()
		for range 5 {
			if got := s.do("GET", "/healthz", "").status; got != change.status {
				t.Errorf("answered %d, want %d", got, change.status)
			}
		}
		if logs.Len() != change.lines {
			t.Fatalf("%d lines, want %d: %v", logs.Len(), change.lines, logs.All())
		}
	}
	if warnings := logs.FilterLevelExact(zap.WarnLevel).FilterMessageSnippet("the backend is not healthy").Len(); warnings != 2 {
		t.Errorf("%d warnings, want two: %v", warnings, logs.All())
	}
}
