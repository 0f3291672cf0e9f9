package admin

import (
	"context"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// HealthChecker is what a provider or a backend implements to say whether it
// works.
type HealthChecker interface {
	// Health reports whether its server answers, since when that is so, and the
	// last failure. It does not wait.
	Health() (up bool, since time.Time, lastErr error)
}

// Health is what /healthz shows. It names no cause, since everybody may ask.
type Health struct {
	Status   string `json:"status" enum:"ok,degraded" doc:"degraded: requests are decided, but not by all that should be known."`
	Provider string `json:"provider" enum:"ok,unavailable"`
	Backend  string `json:"backend" enum:"ok,unavailable"`

	RefusedPolicies int `json:"refused_policies,omitempty" doc:"How many stored policies cannot be used; the log says which, and why."`
}

// Refuser is what a provider implements that may hold policies that cannot be
// used.
type Refuser interface {
	// Refused lists them. It does not wait.
	Refused() []policy.Refused
}

type healthAnswer struct {
	Status int
	Body   Health
}

func (a *API) registerHealth() {
	register(a, operation{
		id: "get-health", method: http.MethodGet, path: "/healthz", access: public,
		summary: "Say whether the provider and the backend work (200, else 503), and how many policies cannot be used",
	}, a.health)
	responses := a.huma.OpenAPI().Paths["/healthz"].Get.Responses
	down := *responses["200"]
	down.Description = http.StatusText(http.StatusServiceUnavailable)
	responses["503"] = &down
}

func (a *API) health(_ context.Context, _ *struct{}) (*healthAnswer, error) {
	provider, _ := a.reader.(HealthChecker)
	h := Health{Status: "ok", Provider: a.check("provider", provider), Backend: a.check("backend", a.backend)}
	if r, ok := a.reader.(Refuser); ok {
		h.RefusedPolicies = len(r.Refused())
	}
	if h.RefusedPolicies > 0 {
		h.Status = "degraded"
	}
	if h.Provider == "ok" && h.Backend == "ok" { // another instance would not do better
		return &healthAnswer{http.StatusOK, h}, nil
	}
	h.Status = "degraded"
	return &healthAnswer{http.StatusServiceUnavailable, h}, nil
}

// check asks a guest, if it can tell, and logs what has changed since it was asked last.
func (a *API) check(what string, guest HealthChecker) string {
	if guest == nil {
		return "ok"
	}
	up, since, err := guest.Health()
	switch changed := a.seen.change(what, up); {
	case changed && up:
		a.log.Info("the "+what+" is healthy again", zap.Time("since", since))
	case changed:
		a.log.Warn("the "+what+" is not healthy", zap.Time("since", since), zap.Error(err))
	}
	if up {
		return "ok"
	}
	return "unavailable"
}

// seenHealth is how the guests were when they were last asked.
type seenHealth struct {
	mu   sync.Mutex
	down map[string]bool
}

// change notes how a guest is, and reports whether that is new. A guest that was never
// asked is taken for a healthy one.
func (s *seenHealth) change(what string, up bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down[what] != up {
		return false
	}
	if s.down == nil {
		s.down = make(map[string]bool)
	}
	s.down[what] = !up
	return true
}
