// Package ratelimit is Tollgate: rate limiting for the Caddy web server.
//
// It registers the HTTP handler rate_limit and the app rate_limit, with the
// directive and the global option of the same name. The life of a request:
//
//  1. exempt? Then the next handler, and nothing is counted (Handler.ServeHTTP).
//  2. Is it known here that its address is over a limit? Then it is refused, and
//     nothing that it sent is looked at (evaluation.refuseKnown).
//  3. Who is it? An API key, a JWT or a placeholder names the client; what names
//     nobody counts as anonymous, by address (Identify).
//  4. The zones that match and the policies of the client's tier become buckets
//     (evaluation.gather).
//  5. The backend takes from all of them or from none, in one call; while it
//     cannot, each limit does what its on_error says (evaluation.take).
//  6. Headers and placeholders describe the outcome (report); then the next
//     handler, or a refusal (Handler.refuse).
package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"

	// the backends and providers that come with Tollgate
	_ "github.com/caddy-tollgate/ratelimit/memorybackend"
	_ "github.com/caddy-tollgate/ratelimit/policy/embedded"
	_ "github.com/caddy-tollgate/ratelimit/policy/postgres"
	_ "github.com/caddy-tollgate/ratelimit/policy/static"
	_ "github.com/caddy-tollgate/ratelimit/redisbackend"
)

func init() {
	caddy.RegisterModule(Handler{})
	httpcaddyfile.RegisterHandlerDirective("rate_limit", parseHandler)
	httpcaddyfile.RegisterDirectiveOrder("rate_limit", httpcaddyfile.Before, "basic_auth")
}

var errNoLimits = errors.New("rate_limit limits nothing; write a limit like rate_limit 100/1m, a zone, or tiers")

// Handler limits requests: those over a limit are refused with status 429, and
// take nothing from any limit. It sets the response headers X-RateLimit-*,
// RateLimit-Policy and RateLimit, on a refusal also Retry-After, and the
// placeholders
//
//	{http.rate_limit.decision}       allowed, blocked, shadow_blocked, invalid or unavailable
//	{http.rate_limit.zone}           the zone or policy nearest its end; on a refusal the one that refused
//	{http.rate_limit.shadow_zone}    the first zone or policy in shadow mode that would have refused; empty if none would
//	{http.rate_limit.limit}          its capacity, in units
//	{http.rate_limit.remaining}      whole units left in it
//	{http.rate_limit.reset}          when it will be untouched again, in Unix seconds
//	{http.rate_limit.retry_after}    on a refusal, seconds until the request would pass
//	{http.rate_limit.identity}       who the client is; never a secret
//	{http.rate_limit.tier}           the client's tier
//	{http.rate_limit.exceeded.name}  the zone or policy that refused; empty otherwise
//
// identity and tier are set before the zones are evaluated, so that a zone may
// be keyed by them.
type Handler struct {
	// Limits, in the order in which they are listed to clients. All that match a
	// request apply.
	Zones []*Zone `json:"zones,omitempty"`

	// How clients are identified. Default: if Tiers is on, an API key in the
	// header X-API-Key; else not at all.
	Identify *Identify `json:"identify,omitempty"`

	// Whether the policies of the client's tier apply. Default: false.
	Tiers bool `json:"tiers,omitempty"`

	// Requests that match are not limited and not counted.
	ExemptRaw caddyhttp.RawMatcherSets `json:"exempt,omitempty" caddy:"namespace=http.matchers"`

	// What happens while the backend cannot decide: "open" lets the request
	// pass, "closed" answers 503, "local" counts in this process. Default: local.
	// Zones and policies may say otherwise for themselves.
	OnError policy.OnError `json:"on_error,omitempty"`

	// The families of response headers to send: "x" (X-RateLimit-*), "draft"
	// (RateLimit-Policy, RateLimit) or "off" (none; Retry-After is always sent).
	// Default: x and draft.
	Headers []string `json:"headers,omitempty"`

	// Whether keys of zones may stand in logs. Default: false, since they may be
	// secrets.
	LogKey bool `json:"log_key,omitempty"`

	// Lengthens each Retry-After by a random part, up to this fraction of it, so
	// that clients do not come back all at once: 0 to 1. Default: 0.
	Jitter float64 `json:"jitter,omitempty"`

	compatibility

	app        *App
	events     *caddyevents.App
	ctx        caddy.Context
	refusals   *zap.Logger
	identifier *identifier
	exempt     caddyhttp.MatcherSets
	families   headerFamilies
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.rate_limit",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision sets up the handler. It fails on any setting that is wrong.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.ctx = ctx
	h.refusals = sampled(ctx.Logger(), refusalsLogged, refusalsPer)
	if err := h.loadApps(ctx); err != nil {
		return err
	}
	if err := h.settings(); err != nil {
		return err
	}
	h.warnReplaced(ctx.Logger())
	if err := h.loadMatchers(ctx); err != nil {
		return err
	}
	if err := h.provisionZones(ctx); err != nil {
		return err
	}
	if err := h.provisionIdentity(ctx); err != nil {
		return err
	}
	h.app.handlers = append(h.app.handlers, h)
	return nil
}

func (h *Handler) loadApps(ctx caddy.Context) error {
	app, err := ctx.App("rate_limit")
	if err != nil {
		return err
	}
	h.app = app.(*App)
	events, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting the events app: %w", err)
	}
	h.events = events.(*caddyevents.App)
	return nil
}

// settings checks the handler's own words and fills their defaults in.
func (h *Handler) settings() (err error) {
	if h.OnError, err = policy.ParseOnError(string(h.OnError)); err != nil {
		return err
	}
	if h.families, err = parseFamilies(h.Headers); err != nil {
		return err
	}
	if h.Jitter < 0 || h.Jitter > 1 {
		return fmt.Errorf("jitter %v is out of range; write a fraction from 0 to 1, like 0.2", h.Jitter)
	}
	zones, err := h.compatibility.zones()
	if err != nil {
		return err
	}
	h.Zones = append(h.Zones, zones...)
	if len(h.Zones) == 0 && !h.Tiers {
		return errNoLimits
	}
	return nil
}

func (h *Handler) loadMatchers(ctx caddy.Context) error {
	if len(h.ExemptRaw) == 0 {
		return nil
	}
	matchers, err := ctx.LoadModule(h, "ExemptRaw")
	if err != nil {
		return fmt.Errorf("loading the matchers of exempt: %w", err)
	}
	return h.exempt.FromInterface(matchers)
}

func (h *Handler) provisionZones(ctx caddy.Context) error {
	place := h.app.nextPlace()
	seen := make(map[string]bool)
	for i, z := range h.Zones {
		if seen[z.Name] {
			return errDuplicateZone(z.Name)
		}
		seen[z.Name] = true
		z, err := h.app.resolve(z, place)
		if err != nil {
			return err
		}
		if err := z.provision(ctx); err != nil {
			return err
		}
		h.Zones[i] = z
	}
	return nil
}

// provisionIdentity sets up who clients are, which tiers or identify ask for.
func (h *Handler) provisionIdentity(ctx caddy.Context) (err error) {
	how := h.Identify
	if how == nil {
		if !h.Tiers {
			return nil
		}
		how = defaultIdentify
	}
	if h.Tiers || how.needsProvider() {
		if _, err := h.app.needProvider(ctx); err != nil {
			return err
		}
	}
	h.identifier, err = newIdentifier(ctx, how, h.app.provider)
	return err
}

// ServeHTTP decides whether the request may pass.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if len(h.exempt) > 0 {
		exempt, err := h.exempt.AnyMatchWithError(r)
		if err != nil {
			return err
		}
		if exempt {
			return next.ServeHTTP(w, r)
		}
	}

	e := newEvaluation(h, r)
	defer e.report.noteClient()
	turn, passed, err := h.decide(w, r, e)
	if !passed {
		return err
	}
	if turn > 0 && !wait(r.Context(), turn) {
		return caddyhttp.Error(statusClientGone, context.Cause(r.Context()))
	}
	return next.ServeHTTP(w, r)
}

// decide counts the request and says so in the headers, or refuses it, and releases
// the evaluation. A request that passes may have to wait for its turn.
func (h *Handler) decide(w http.ResponseWriter, r *http.Request, e *evaluation) (turn time.Duration, passed bool, err error) {
	defer e.release()
	ctx := e.observe(r.Context())
	refusal := e.decide(ctx)
	e.observed(refusal)
	if refusal != nil {
		return 0, false, h.refuse(w, r, e, refusal)
	}
	e.report.writeHeaders(w.Header(), h.families)
	return e.delay(), true, nil
}

// statusClientGone is what Caddy, too, logs for a client that did not wait for its
// answer.
const statusClientGone = 499

// wait waits until a request's turn has come, and reports false if its client has
// gone before.
func wait(ctx context.Context, turn time.Duration) bool {
	timer := time.NewTimer(turn)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
