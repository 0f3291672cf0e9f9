package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Peeker is what a backend implements to show buckets.
type Peeker interface {
	// Peek fills decisions as if each bucket were asked for nothing: Remaining and
	// ResetAfter are what is there now. Nothing is taken.
	Peek(ctx context.Context, buckets []policy.Bucket, decisions []policy.Decision) error
}

// Resetter is what a backend implements to forget buckets.
type Resetter interface {
	// Reset makes each bucket as if it were never seen.
	Reset(ctx context.Context, buckets []policy.Bucket) error
}

// Usage is what an API key has used, as the API shows it.
type Usage struct {
	APIKeyID string       `json:"api_key_id"`
	Tier     string       `json:"tier" doc:"The tier whose policies apply."`
	Items    []LimitUsage `json:"items" nullable:"false" doc:"Every policy that may apply to the key."`
}

// LimitUsage is what an API key has used of one policy.
type LimitUsage struct {
	Policy    string    `json:"policy" doc:"The policy's name, as response headers have it."`
	PolicyID  string    `json:"policy_id"`
	Mode      string    `json:"mode" doc:"enforce or shadow."`
	Limit     int64     `json:"limit" doc:"The most units at once."`
	Used      int64     `json:"used" doc:"Units that are used now."`
	Remaining int64     `json:"remaining" doc:"Whole units that are left now."`
	ResetAt   time.Time `json:"reset_at" doc:"When it is as if never used, if nothing more is."`
}

type usageAnswer struct{ Body Usage }

func (a *API) registerUsage() {
	const path = "/api-keys/{id}/usage"
	errs := []int{http.StatusNotFound, http.StatusNotImplemented}
	register(a, operation{
		id: "get-api-key-usage", method: http.MethodGet, path: path, access: reads, errors: errs,
		summary: "Show what an API key has used of each policy",
	}, a.getUsage)
	register(a, operation{
		id: "reset-api-key-usage", method: http.MethodDelete, path: path, access: resets, status: http.StatusNoContent, errors: errs,
		summary: "Forget what an API key has used",
	}, a.resetUsage)
}

func (a *API) getUsage(ctx context.Context, in *struct{ IDPath }) (*usageAnswer, error) {
	if a.peeker == nil {
		return nil, newProblem(http.StatusNotImplemented, "not_implemented", "this backend cannot show its buckets; use the backend memory or redis")
	}
	client, p := a.clientOf(ctx, in.ID)
	if p != nil {
		return nil, p
	}
	items, err := a.usageOf(ctx, client)
	if err != nil {
		return nil, a.backendFailed(err)
	}
	return &usageAnswer{Usage{APIKeyID: in.ID, Tier: client.Tier, Items: items}}, nil
}

// usageOf is what a client has used of each policy.
func (a *API) usageOf(ctx context.Context, client policy.Client) ([]LimitUsage, error) {
	applied, buckets := a.bucketsOf(client)
	decisions := make([]policy.Decision, len(buckets))
	if err := a.peek(ctx, buckets, decisions); err != nil {
		return nil, err
	}
	items := make([]LimitUsage, len(applied))
	now := time.Now()
	next := 0
	for i, p := range applied {
		d := policy.Decision{}
		if !p.Rule.DenyAll() {
			d = decisions[next]
			next++
		}
		items[i] = showUsage(p, d, now)
	}
	return items, nil
}

func showUsage(p *policy.Applied, d policy.Decision, now time.Time) LimitUsage {
	return LimitUsage{
		Policy: p.Name, PolicyID: p.ID, Mode: string(p.Mode),
		Limit:     p.Rule.AtOnce,
		Used:      max(p.Rule.AtOnce-d.Remaining, 0),
		Remaining: d.Remaining,
		ResetAt:   now.Add(d.ResetAfter).Round(time.Millisecond).UTC(),
	}
}

func (a *API) peek(ctx context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	if len(buckets) == 0 {
		return nil
	}
	return a.peeker.Peek(ctx, buckets, decisions)
}

func (a *API) resetUsage(ctx context.Context, in *struct{ IDPath }) (*struct{}, error) {
	if a.resetter == nil {
		return nil, newProblem(http.StatusNotImplemented, "not_implemented", "this backend cannot reset its buckets; use the backend memory or redis")
	}
	client, p := a.clientOf(ctx, in.ID)
	if p != nil {
		return nil, p
	}
	if p := a.recordReset(ctx, client); p != nil {
		return nil, p
	}
	if _, buckets := a.bucketsOf(client); len(buckets) > 0 {
		if err := a.resetter.Reset(ctx, buckets); err != nil {
			return nil, a.backendFailed(err)
		}
	}
	a.log.Info("the usage of an API key was reset", zap.String("api_key_id", in.ID), zap.String("actor", actorOf(ctx)))
	return nil, nil
}

// recordReset writes what an API key has used to the audit, before it is
// forgotten: a reset that leaves no trace is worse than a trace of one that failed.
func (a *API) recordReset(ctx context.Context, c policy.Client) *Problem {
	if a.store == nil { // it reads alone, and the log has to do
		return nil
	}
	var items []LimitUsage
	if a.peeker != nil {
		var err error
		if items, err = a.usageOf(ctx, c); err != nil {
			return a.backendFailed(err)
		}
	}
	before, err := json.Marshal(Usage{APIKeyID: c.APIKeyID, Tier: c.Tier, Items: items})
	if err == nil {
		err = a.store.Record(ctx, change(ctx, "reset_usage"), policy.KindKey, c.APIKeyID, before)
	}
	if err != nil {
		return a.failed("API key "+c.APIKeyID, err)
	}
	return nil
}

// clientOf is the client that an API key names, whether the key works or not.
func (a *API) clientOf(ctx context.Context, id string) (policy.Client, *Problem) {
	k, err := a.reader.GetKey(ctx, id)
	if err != nil {
		return policy.Client{}, a.failed("API key "+id, err)
	}
	tier := k.Tier
	if !a.reader.Snapshot().HasTier(tier) {
		tier = policy.Anonymous
	}
	return policy.Client{Identity: policy.KeyIdentity(k.ID), Tier: tier, APIKeyID: k.ID}, nil
}

// bucketsOf lists the policies of a client, and the buckets of those that have
// one: a policy that denies everything has none.
func (a *API) bucketsOf(c policy.Client) ([]*policy.Applied, []policy.Bucket) {
	applied := a.reader.Snapshot().AppendPolicies(nil, c)
	var buckets []policy.Bucket
	for _, p := range applied {
		if p.Rule.DenyAll() {
			continue
		}
		buckets = append(buckets, policy.Bucket{
			Identity: c.Identity, Scope: p.Scope, Rule: p.Rule, Shadow: p.Mode == policy.Shadow,
		})
	}
	return applied, buckets
}

func (a *API) backendFailed(err error) *Problem {
	a.log.Error("the backend did not answer the admin API", zap.Error(err))
	return unavailable("the backend that counts does not answer now; try again later")
}
