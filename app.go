package ratelimit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
	"github.com/caddy-tollgate/ratelimit/memorybackend"
	"github.com/caddy-tollgate/ratelimit/policy"
)

func init() {
	caddy.RegisterModule(App{})
}

// Backend decides. Backends are Caddy modules in the namespace
// rate_limit.backends. They are trusted: what they answer is what happens. They
// are given identities, never secrets.
type Backend interface {
	// Take decides all buckets of one request, at one instant, and takes from
	// all of them or from none: nothing is taken if any bucket that is not a
	// shadow refuses. It fills decisions, which has the length of buckets, in
	// their order. An error means that nothing is known of the outcome, and that
	// decisions holds nothing of use; the call may have been charged.
	Take(ctx context.Context, buckets []policy.Bucket, decisions []policy.Decision) error
}

// Provider knows tiers, policies and API keys. Providers are Caddy modules in
// the namespace rate_limit.providers.
type Provider interface {
	// Snapshot returns the policies as they are now. It never blocks.
	Snapshot() *policy.Snapshot

	// APIKey looks an API key up by its SHA-256. It reports false for a key that
	// is unknown, expired or revoked, and when it cannot tell.
	APIKey(ctx context.Context, sum [32]byte) (policy.APIKey, bool)
}

// starter is what a backend or provider implements to learn that the
// configuration that it belongs to has been accepted and now runs.
type starter interface {
	Start() error
}

// App holds what all rate_limit handlers of a configuration share.
type App struct {
	// Where buckets live: "memory" (in this process) or "redis". Default: memory.
	BackendRaw json.RawMessage `json:"backend,omitempty" caddy:"namespace=rate_limit.backends inline_key=backend"`

	// Where tiers, policies and API keys live: "embedded" (Caddy's storage),
	// "postgres", or "static" (this configuration). Default: embedded, once anything
	// asks for tiers, API keys or the admin API.
	ProviderRaw json.RawMessage `json:"provider,omitempty" caddy:"namespace=rate_limit.providers inline_key=provider"`

	// Zones that several handlers refer to by name.
	Zones []*Zone `json:"zones,omitempty"`

	backend  Backend
	provider Provider
	failures *zap.Logger
	fallback *memorybackend.Store // counts for on_error local

	inProcess bool // the backend is the fallback's store, and never fails
	denials   *denials
	policies  *policyCache
	outages   *outages

	handlers []*Handler // of this configuration
	unexpect func()     // ends what metrics expect of it; nil before Start

	// where zones were defined; handlers are provisioned one after the other
	zones  map[string]definition
	places int
}

// definition is where and how a zone was first defined.
type definition struct {
	place string
	json  []byte
}

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "rate_limit",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision loads the backend and the provider. Nothing that runs already is
// changed by it: a configuration that fails to load leaves no trace.
func (a *App) Provision(ctx caddy.Context) error {
	a.failures = sampled(ctx.Logger(), failuresLogged, failuresPer)
	if err := metrics.Register(ctx.GetMetricsRegistry()); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	if a.BackendRaw == nil {
		a.BackendRaw = json.RawMessage(`{"backend":"memory"}`)
	}
	backend, err := ctx.LoadModule(a, "BackendRaw")
	if err != nil {
		return fmt.Errorf("backend: %w", err)
	}
	a.backend = backend.(Backend)
	if a.outages, err = newOutages(ctx); err != nil {
		return err
	}
	a.outages.watch(a.backend)

	if a.ProviderRaw != nil {
		if err := a.loadProvider(ctx); err != nil {
			return err
		}
	}

	a.fallback = memorybackend.Process()
	_, a.inProcess = backend.(*memorybackend.Backend)
	a.denials = newDenials()
	a.policies = new(policyCache)
	return a.defineZones()
}

// needProvider returns the provider, and loads the default one if the configuration
// names none.
func (a *App) needProvider(ctx caddy.Context) (Provider, error) {
	if a.provider == nil {
		a.ProviderRaw = json.RawMessage(`{"provider":"embedded"}`)
		if err := a.loadProvider(ctx); err != nil {
			return nil, err
		}
	}
	return a.provider, nil
}

func (a *App) loadProvider(ctx caddy.Context) error {
	provider, err := ctx.LoadModule(a, "ProviderRaw")
	if err != nil {
		return fmt.Errorf("provider: %w", err)
	}
	a.provider = provider.(Provider)
	return nil
}

func (a *App) defineZones() error {
	a.zones = make(map[string]definition)
	for _, z := range a.Zones {
		if _, ok := a.zones[z.Name]; ok {
			return errDuplicateZone(z.Name)
		}
		if z.reference() {
			return fmt.Errorf("zone %s: the global option defines zones, so this one needs a limit, like limit 100/1m", z.Name)
		}
		if err := z.Validate(); err != nil {
			return err
		}
		a.zones[z.Name] = definition{place: globalPlace, json: z.definition()}
	}
	return nil
}

// globalPlace names the global option in errors about zones.
const globalPlace = "the global option rate_limit"

// nextPlace names a handler in errors about zones; JSON has no lines.
func (a *App) nextPlace() string {
	a.places++
	return fmt.Sprintf("rate_limit handler %d", a.places)
}

// resolve returns the zone that a handler means by z: z itself, or for a mere
// name a copy of the zone that the global option defines. Zones of one name share
// one counter, so two that differ are an error that names both places.
func (a *App) resolve(z *Zone, place string) (*Zone, error) {
	known, ok := a.zones[z.Name]
	if z.reference() {
		if !ok || known.place != globalPlace {
			return nil, errUndefinedZone(z.Name)
		}
		shared := new(Zone)
		return shared, json.Unmarshal(known.json, shared)
	}
	if err := z.Validate(); err != nil {
		return nil, err
	}
	if ok && !bytes.Equal(known.json, z.definition()) {
		return nil, errZonesDiffer(z.Name, known, definition{place: place, json: z.definition()})
	}
	if !ok {
		a.zones[z.Name] = definition{place: place, json: z.definition()}
	}
	return z, nil
}

// remember tells the fallback what the backend said, so that on_error local goes on
// from what is known.
func (a *App) remember(buckets []policy.Bucket, decisions []policy.Decision) {
	if !a.inProcess {
		a.fallback.Tell(memorybackend.Now(), buckets, decisions)
	}
}

// Start tells the backend and the provider that the configuration runs.
func (a *App) Start() error {
	for _, guest := range []any{a.backend, a.provider} {
		if s, ok := guest.(starter); ok {
			if err := s.Start(); err != nil {
				return err
			}
		}
	}
	a.unexpect = metrics.Expect(a.listExpected)
	return nil
}

// Stop ends the events of outages and what metrics expect; guests are cleaned up by
// Caddy.
func (a *App) Stop() error {
	a.outages.stop()
	if a.unexpect != nil {
		a.unexpect()
	}
	return nil
}

func errDuplicateZone(name string) error {
	return fmt.Errorf("zone %s stands here twice; write it once, or give one of them another name", name)
}

func errUndefinedZone(name string) error {
	return fmt.Errorf("zone %s has no limit here, and the global option rate_limit defines no zone of that name; write zone %s { limit 100/1m } here or there", name, name)
}

func errZonesDiffer(name string, first, second definition) error {
	return fmt.Errorf("zone %s is defined differently in two places (%s; %s): they have %s. A name is one counter; "+
		"define both alike, give one of them another name, or define it once in the global option rate_limit and write only zone %s here",
		name, first.place, second.place, first.differences(second), name)
}

// differences lists what two definitions of a zone have that is not alike, so that both can be
// found where no place has a line, as in JSON.
func (d definition) differences(other definition) string {
	var mine, theirs map[string]json.RawMessage
	if json.Unmarshal(d.json, &mine) != nil || json.Unmarshal(other.json, &theirs) != nil {
		return "different settings" // raw JSON that is malformed, of which the matchers' loader says more
	}
	names := maps.Clone(mine)
	maps.Copy(names, theirs)
	var all []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if a, b := mine[name], theirs[name]; !bytes.Equal(a, b) {
			all = append(all, fmt.Sprintf("%s %s and %s", name, cmp.Or(string(a), "none"), cmp.Or(string(b), "none")))
		}
	}
	return strings.Join(all, ", ")
}

// Interface guards
var (
	_ caddy.App         = (*App)(nil)
	_ caddy.Provisioner = (*App)(nil)

	_ Backend = (*memorybackend.Backend)(nil)
)
