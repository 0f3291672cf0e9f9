package admin

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"
)

// Settings are what an API is made of.
type Settings struct {
	// Where tiers, policies and keys are. One that is a Store can be changed; for
	// another, changes are answered with 409. Required.
	Provider Reader

	// The provider's name in the configuration, which answers tell: "static".
	ProviderName string

	// What shows buckets, forgets them, and knows whether they can be reached. Any
	// may be nil: then it cannot be asked for, and health is taken for good.
	Peeker   Peeker
	Resetter Resetter
	Backend  HealthChecker

	// What knows which clients call most. It may be nil: then it cannot be asked for.
	Ranker Ranker

	// Who may ask. Required: there is no API that is open to all.
	Authenticator Authenticator

	// Where failures are logged that are not the client's. Required.
	Logger *zap.Logger
}

// API answers the requests of admins. It is an http.Handler for the paths below
// the one that it is mounted under, which must have been stripped.
type API struct {
	reader   Reader
	store    Store // nil if the provider only reads
	provider string
	peeker   Peeker        // may be nil
	resetter Resetter      // may be nil
	backend  HealthChecker // may be nil
	ranker   Ranker        // may be nil
	auth     Authenticator
	log      *zap.Logger
	seen     seenHealth
	names    names

	mux     *http.ServeMux
	huma    huma.API
	access  map[string]access // by the pattern of the mux
	openapi []byte
}

// New makes the API.
func New(s Settings) *API {
	a := &API{
		reader:   s.Provider,
		provider: s.ProviderName,
		peeker:   s.Peeker,
		resetter: s.Resetter,
		backend:  s.Backend,
		ranker:   s.Ranker,
		auth:     s.Authenticator,
		log:      s.Logger,
		mux:      http.NewServeMux(),
		access:   make(map[string]access),
	}
	a.store, _ = s.Provider.(Store)
	a.huma = humago.New(a.mux, description())
	a.registerTiers()
	a.registerPolicies()
	a.registerKeys()
	a.registerKeyLife()
	a.registerUsage()
	a.registerTop()
	a.registerExplain()
	a.registerAudit()
	a.registerHealth()
	a.registerDocument()
	return a
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store") // answers may hold keys
	w.Header().Set("X-Content-Type-Options", "nosniff")
	pattern, p := a.route(w, r)
	if p == nil && pattern != "" {
		r, p = a.admit(r, a.access[pattern])
	}
	if p == nil && pattern != "" {
		p = checkQuery(r)
	}
	if p == nil && pattern != "" {
		p = readBody(r)
	}
	switch {
	case p != nil:
		p.write(w)
	case pattern != "":
		a.mux.ServeHTTP(w, r)
	}
}

// methods are those that some operation has.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPatch, http.MethodDelete}

// route returns the pattern that takes the request. It answers OPTIONS itself, and
// then returns none. The mux's own answers, a redirect to a cleaned path and plain
// text, would be wrong under a stripped prefix and no problems.
func (a *API) route(w http.ResponseWriter, r *http.Request) (pattern string, p *Problem) {
	var allowed []string
	if clean := r.URL.EscapedPath(); path.Clean(clean) == clean {
		if pattern := a.pattern(r, r.Method); pattern != "" {
			return pattern, nil
		}
		for _, m := range methods {
			if a.pattern(r, m) != "" {
				allowed = append(allowed, m)
			}
		}
	}
	if len(allowed) == 0 {
		return "", newProblem(http.StatusNotFound, "not_found", "there is nothing under this path; openapi.json lists what there is")
	}
	allow := strings.Join(append(allowed, http.MethodOptions), ", ")
	if r.Method == http.MethodOptions {
		w.Header().Set("Allow", allow)
		w.WriteHeader(http.StatusNoContent)
		return "", nil
	}
	p = newProblem(http.StatusMethodNotAllowed, "method_not_allowed", r.Method+" is not possible here; use one of "+allow)
	p.header("Allow", allow)
	return "", p
}

// pattern is the mux's pattern for the request with a method; empty if none.
func (a *API) pattern(r *http.Request, method string) string {
	if !slices.Contains(methods, method) {
		return ""
	}
	asked := &http.Request{Method: method, URL: r.URL, Host: r.Host}
	_, pattern := a.mux.Handler(asked)
	return pattern
}

func (a *API) readOnlyReason() string {
	return "the provider " + a.provider + " only reads: its tiers, policies and keys are written in Caddy's configuration; change them there and reload"
}

// Interface guards
var _ http.Handler = (*API)(nil)
