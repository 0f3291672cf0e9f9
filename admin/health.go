package admin

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"
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
}

type healthAnswer struct {
	Status int
	Body   Health
}

func (a *API) registerHealth() {
	register(a, operation{
		id: "get-health", method: http.MethodGet, path: "/healthz", access: public,
		summary: "Say whether the provider and the backend work: 200, else 503",
	}, a.health)
	responses := a.huma.OpenAPI().Paths["/healthz"].Get.Responses
	down := *responses["200"]
	down.Description = http.StatusText(http.StatusServiceUnavailable)
	responses["503"] = &down
}

func (a *API) health(_ context.Context, _ *struct{}) (*healthAnswer, error) {
	provider, _ := a.reader.(HealthChecker)
	h := Health{Status: "ok", Provider: a.check("provider", provider), Backend: a.check("backend", a.backend)}
	if h.Provider == "ok" && h.Backend == "ok" {
		return &healthAnswer{http.StatusOK, h}, nil
	}
	h.Status = "degraded"
	return &healthAnswer{http.StatusServiceUnavailable, h}, nil
}

// check asks a guest, if it can tell.
func (a *API) check(what string, guest HealthChecker) string {
	if guest == nil {
		return "ok"
	}
	up, since, err := guest.Health()
	if up {
		return "ok"
	}
	a.log.Warn("the "+what+" is not healthy", zap.Time("since", since), zap.Error(err))
	return "unavailable"
}
