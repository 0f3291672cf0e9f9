package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tollgate/ratelimit/admin"
	"github.com/caddy-tollgate/ratelimit/internal/jwtauth"
	"github.com/caddy-tollgate/ratelimit/policy"
)

func init() {
	caddy.RegisterModule(AdminHandler{})
	httpcaddyfile.RegisterHandlerDirective("rate_limit_admin", parseAdmin)
	httpcaddyfile.RegisterDirectiveOrder("rate_limit_admin", httpcaddyfile.Before, "respond")
}

// AdminHandler is the admin API: the HTTP interface by which tiers, policies and
// API keys of the app rate_limit are managed. It answers every request that
// reaches it. It can be mounted under any path that is stripped before it, as
// handle_path does.
type AdminHandler struct {
	// How admins are told apart: by bearer tokens. Roles are ADMIN (or ROLE_ADMIN),
	// which may do everything, and VIEWER, which reads. Default: tokens signed by
	// HS256 with a secret that is made on first start and kept in Caddy's storage;
	// caddy rate-limit token makes such tokens.
	JWT *jwtauth.Config `json:"jwt,omitempty"`

	api *admin.API
}

// CaddyModule returns the Caddy module information.
func (AdminHandler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.rate_limit_admin",
		New: func() caddy.Module { return new(AdminHandler) },
	}
}

// Provision sets up the API over the provider and the backend of the app.
func (h *AdminHandler) Provision(ctx caddy.Context) error {
	loaded, err := ctx.App("rate_limit")
	if err != nil {
		return err
	}
	app := loaded.(*App)
	provider, err := app.needProvider(ctx)
	if err != nil {
		return err
	}
	reader, ok := provider.(admin.Reader)
	if !ok {
		return fmt.Errorf("the provider %s cannot be managed by rate_limit_admin; use the provider embedded or postgres", moduleName(app.provider))
	}
	verifier, err := h.verifier(ctx)
	if err != nil {
		return fmt.Errorf("rate_limit_admin: %w", err)
	}
	health, _ := app.backend.(admin.HealthChecker)
	h.api = admin.New(admin.Settings{
		Provider:      reader,
		ProviderName:  moduleName(app.provider),
		Peeker:        peeker(app.backend),
		Resetter:      app.resetter(),
		Backend:       health,
		Ranker:        processActivity(),
		Authenticator: authenticator{verifier},
		Logger:        ctx.Logger(),
	})
	return nil
}

func moduleName(guest any) string {
	if m, ok := guest.(caddy.Module); ok {
		return m.CaddyModule().ID.Name()
	}
	return fmt.Sprintf("%T", guest)
}

// verifier verifies tokens by the configured key, or by the secret that is made
// when none is configured: the API is never open to all.
func (h *AdminHandler) verifier(ctx caddy.Context) (*jwtauth.Verifier, error) {
	var config jwtauth.Config
	if h.JWT != nil {
		config = *h.JWT
	}
	if !config.HasKey() {
		secret, err := jwtauth.GeneratedSecret(ctx, ctx.Storage())
		if err != nil {
			return nil, err
		}
		config.Secret = secret
	}
	return jwtauth.New(ctx, &config)
}

// ServeHTTP answers the request.
func (h *AdminHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	h.api.ServeHTTP(w, r)
	return nil
}

// authenticator is a verifier in the words of the admin API.
type authenticator struct{ verifier *jwtauth.Verifier }

// Authenticate returns who sends the request and their roles.
func (a authenticator) Authenticate(r *http.Request) (string, []string, error) {
	subject, roles, err := a.verifier.Authenticate(r)
	switch {
	case errors.Is(err, jwtauth.ErrMissing):
		err = admin.ErrNoToken
	case errors.Is(err, jwtauth.ErrUnavailable):
		err = fmt.Errorf("%w: %w", admin.ErrAuthUnavailable, err)
	}
	return subject, roles, err
}

// peeker shows the buckets of a backend. One that cannot by itself is asked for no
// units, which takes none.
func peeker(b Backend) admin.Peeker {
	if p, ok := b.(admin.Peeker); ok {
		return p
	}
	return looking{b}
}

// looking looks into buckets by taking nothing.
type looking struct{ Backend }

// Peek fills decisions with what is there.
func (l looking) Peek(ctx context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	looks := make([]policy.Bucket, len(buckets))
	for i, b := range buckets {
		b.Cost = 0
		looks[i] = b
	}
	return l.Take(ctx, looks, decisions)
}

// resetter forgets buckets of the app; nil if its backend cannot.
func (a *App) resetter() admin.Resetter {
	r, ok := a.backend.(admin.Resetter)
	if !ok {
		return nil
	}
	return forgetting{r, a.denials}
}

// forgetting forgets buckets, and which of them are known to refuse.
type forgetting struct {
	backend admin.Resetter
	denials *denials
}

// Reset makes the buckets as if they were never seen.
func (f forgetting) Reset(ctx context.Context, buckets []policy.Bucket) error {
	err := f.backend.Reset(ctx, buckets)
	f.denials.forget() // after a failure too: it may have been done
	return err
}

// Interface guards
var (
	_ caddy.Provisioner           = (*AdminHandler)(nil)
	_ caddyhttp.MiddlewareHandler = (*AdminHandler)(nil)
	_ admin.Authenticator         = authenticator{}
	_ admin.Peeker                = looking{}
	_ admin.Resetter              = forgetting{}
)
