package admin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Explanation says which policies apply to a request, and why.
type Explanation struct {
	APIKeyID string            `json:"api_key_id,omitempty"`
	Tier     string            `json:"tier" doc:"The tier whose policies apply."`
	Client   string            `json:"client" doc:"How the client is counted, and why."`
	Method   string            `json:"method"`
	Path     string            `json:"path" doc:"The path in the form in which routes are matched."`
	Limited  bool              `json:"limited" doc:"Whether a policy in mode enforce applies. If not, only zones of the Caddyfile limit the request."`
	Policies []ExplainedPolicy `json:"policies" nullable:"false" doc:"The client's policies: those that apply first."`
}

// ExplainedPolicy says whether a policy applies to a request, and why.
type ExplainedPolicy struct {
	ID      string   `json:"id"`
	Name    string   `json:"name" doc:"The policy's name, as response headers have it."`
	Route   string   `json:"route"`
	Methods []string `json:"methods" nullable:"false"`
	Limit   string   `json:"limit" doc:"The limit, like 100/1m burst 200."`
	Delay   string   `json:"max_delay,omitempty" doc:"How long a request may wait for its turn."`
	Mode    string   `json:"mode"`
	Applies bool     `json:"applies"`
	Why     string   `json:"why"`
}

type explainAnswer struct{ Body Explanation }

func (a *API) registerExplain() {
	register(a, operation{
		id: "explain", method: http.MethodGet, path: "/explain", access: reads, errors: []int{http.StatusNotFound},
		summary: "Say which policies apply to a request, and why; decided by the same code as requests are",
	}, a.explain)
}

func (a *API) explain(ctx context.Context, in *struct {
	APIKeyID string `query:"api_key_id" maxLength:"64" doc:"The id of the API key that the request brings; absent for a request without one."`
	Method   string `query:"method" default:"GET" pattern:"^[A-Z-]+$" maxLength:"32" doc:"The request's method, in capitals."`
	Path     string `query:"path" default:"/" maxLength:"4096" doc:"The request's path, decoded."`
},
) (*explainAnswer, error) {
	client, counted, p := a.explainClient(ctx, in.APIKeyID, time.Now())
	if p != nil {
		return nil, p
	}
	path := policy.CleanPath(in.Path)
	answer := Explanation{
		APIKeyID: in.APIKeyID, Tier: client.Tier, Client: counted,
		Method: in.Method, Path: path, Policies: []ExplainedPolicy{},
	}
	for _, m := range a.reader.Snapshot().Explain(client, in.Method, path) {
		answer.Policies = append(answer.Policies, showMatch(m))
		answer.Limited = answer.Limited || m.Applies && m.Mode == policy.Enforce
	}
	return &explainAnswer{answer}, nil
}

func showMatch(m policy.Match) ExplainedPolicy {
	return ExplainedPolicy{
		ID: m.ID, Name: m.Name, Route: m.Route, Methods: append([]string{}, m.Methods...),
		Limit: m.Limit.String(), Delay: delay(m.Limit), Mode: string(m.Mode), Applies: m.Applies, Why: m.Why,
	}
}

// explainClient says whom a request with the API key comes from.
func (a *API) explainClient(ctx context.Context, id string, now time.Time) (c policy.Client, counted string, p *Problem) {
	const byAddress = "counted by its address, in the tier anonymous"
	anonymous := policy.Client{Tier: policy.Anonymous}
	if id == "" {
		return anonymous, "no API key: " + byAddress, nil
	}
	k, err := a.reader.GetKey(ctx, id)
	switch {
	case err != nil:
		return c, "", a.failed("API key "+id, err)
	case !k.RevokedAt.IsZero() && !k.RevokedAt.After(now):
		return anonymous, "the API key is revoked: " + byAddress, nil
	case !k.ExpiresAt.IsZero() && !k.ExpiresAt.After(now):
		return anonymous, "the API key has expired: " + byAddress, nil
	}
	c = policy.Client{Identity: policy.KeyIdentity(k.ID), Tier: k.Tier, APIKeyID: k.ID}
	if !a.reader.Snapshot().HasTier(k.Tier) {
		c.Tier = policy.Anonymous
		return c, fmt.Sprintf("counted by its API key; its tier %s is not known here, so it has the policies of the tier anonymous", k.Tier), nil
	}
	return c, "counted by its API key", nil
}
