package ratelimit

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-tollgate/ratelimit/memorybackend"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// site is the first rate_limit handler of a Caddyfile, in this process.
type site struct {
	t testing.TB
	h *Handler
}

// newSite provisions the Caddyfile, takes its handler out, and gives it a backend of
// its own that counts calls.
func newSite(t testing.TB, text string) *site {
	t.Helper()
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	var config caddy.Config
	if err := json.Unmarshal(adapted, &config); err != nil {
		t.Fatal(err)
	}
	var servers struct {
		Servers map[string]struct {
			Routes []struct {
				Handle []json.RawMessage `json:"handle"`
			} `json:"routes"`
		} `json:"servers"`
	}
	if err := json.Unmarshal(config.AppsRaw["http"], &servers); err != nil {
		t.Fatal(err)
	}
	delete(config.AppsRaw, "http")
	ctx, err := caddy.ProvisionContext(&config)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(servers.Servers["srv0"].Routes[0].Handle[0], &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields, "handler")
	module, err := ctx.LoadModuleByID("http.handlers.rate_limit", caddyconfig.JSON(fields, nil))
	if err != nil {
		t.Fatal(err)
	}
	h := module.(*Handler)
	h.app.backend = &countingBackend{store: memorybackend.NewStore(1000)}
	return &site{t, h}
}

// request sends a GET from an address, with header fields in pairs.
func (s *site) request(address string, fields ...string) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = address + ":1234"
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil)
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, address)
	err := s.h.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		w.Header().Set("Seen-Identity", repl.ReplaceAll("{http.rate_limit.identity}", ""))
		w.Header().Set("Seen-Tier", repl.ReplaceAll("{http.rate_limit.tier}", ""))
		return nil
	}))
	if err != nil {
		s.t.Fatal(err)
	}
	return w
}

// countingBackend is the memory backend, and counts how often it is asked.
type countingBackend struct {
	store *memorybackend.Store
	calls atomic.Int32
}

func (b *countingBackend) Take(_ context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	b.calls.Add(1)
	b.store.Take(memorybackend.Now(), buckets, decisions)
	return nil
}

// calls is how often the site's backend was asked.
func (s *site) calls() int32 { return s.h.app.backend.(*countingBackend).calls.Load() }
