package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Policy is what a tier, or one API key, gets on a route, as the API shows it.
type Policy struct {
	ID        string     `json:"id"`
	Tier      string     `json:"tier,omitempty" doc:"The tier that it belongs to; or"`
	APIKeyID  string     `json:"api_key_id,omitempty" doc:"the API key that it belongs to, in place of its tier's policy for the same route."`
	Route     string     `json:"route" doc:"The paths that it is for: /login, /orders/*, or * for every request."`
	Methods   []string   `json:"methods" nullable:"false" doc:"The methods that it is for; none is all."`
	Limit     int64      `json:"limit" doc:"Units per window; 0 denies everything."`
	Window    string     `json:"window" doc:"The length of the window: 1s, 1m, 1h30m, 7d."`
	Burst     int64      `json:"burst,omitempty" doc:"The most units at once; absent, it is the limit."`
	MaxDelay  string     `json:"max_delay,omitempty" doc:"How long a request may wait for its turn: 500ms; of leaky_bucket alone. Absent, none waits."`
	Algorithm string     `json:"algorithm" doc:"How it is counted."`
	Cost      int64      `json:"cost" doc:"Units that one request takes; 0 only looks."`
	Mode      string     `json:"mode" doc:"enforce refuses, shadow only counts."`
	OnError   string     `json:"on_error,omitempty" doc:"What happens while the backend cannot decide; absent, what the handler says."`
	Version   int64      `json:"version" doc:"Grows with every change; the ETag holds it."`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	UpdatedAt *time.Time `json:"updated_at,omitempty"`
}

// NewPolicy is what a policy is created with.
type NewPolicy struct {
	Tier      string   `json:"tier,omitempty" doc:"The tier that it belongs to, or"`
	APIKeyID  string   `json:"api_key_id,omitempty" doc:"the API key that it belongs to. One of the two."`
	Route     string   `json:"route" doc:"The paths that it is for: /login, /orders/*, or * for every request."`
	Methods   []string `json:"methods,omitempty" nullable:"false" doc:"The methods that it is for, in capitals; none is all."`
	Limit     int64    `json:"limit" doc:"Units per window, 0 to 1000000000000; 0 denies everything."`
	Window    string   `json:"window" doc:"The length of the window, 1ms to 366d: 1s, 1m, 1h30m, 7d."`
	Burst     int64    `json:"burst,omitempty" doc:"The most units at once, 1 to 1000000000000. Absent or 0, it is the limit."`
	MaxDelay  string   `json:"max_delay,omitempty" doc:"How long a request may wait for its turn, up to 10m: 500ms; of leaky_bucket alone. Absent, none waits."`
	Algorithm string   `json:"algorithm,omitempty" doc:"token_bucket (the default), leaky_bucket, fixed_window, sliding_window or sliding_log."`
	Cost      *int64   `json:"cost,omitempty" doc:"Units that one request takes, 1 if absent; 0 only looks."`
	Mode      string   `json:"mode,omitempty" doc:"enforce (the default) or shadow."`
	OnError   string   `json:"on_error,omitempty" doc:"open, closed or local; absent, what the handler says."`
}

// PolicyChange is what of a policy is to change; what is absent stays.
type PolicyChange struct {
	Route     *string   `json:"route,omitempty" doc:"The paths that it is for."`
	Methods   *[]string `json:"methods,omitempty" nullable:"false" doc:"The methods that it is for; an empty list is all."`
	Limit     *int64    `json:"limit,omitempty" doc:"Units per window, 0 to 1000000000000; 0 denies everything."`
	Window    *string   `json:"window,omitempty" doc:"The length of the window, 1ms to 366d: 1s, 1m, 1h30m, 7d."`
	Burst     *int64    `json:"burst,omitempty" doc:"The most units at once; 0 is the limit."`
	MaxDelay  *string   `json:"max_delay,omitempty" doc:"How long a request may wait for its turn, up to 10m; of leaky_bucket alone. Empty: none waits."`
	Algorithm *string   `json:"algorithm,omitempty" doc:"token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log."`
	Cost      *int64    `json:"cost,omitempty" doc:"Units that one request takes; 0 only looks."`
	Mode      *string   `json:"mode,omitempty" doc:"enforce or shadow."`
	OnError   *string   `json:"on_error,omitempty" doc:"open, closed or local; empty for what the handler says."`
}

func showPolicy(r policy.PolicyRecord) Policy {
	algorithm, mode := r.Algorithm, r.Mode
	if algorithm == "" {
		algorithm = policy.TokenBucket
	}
	if mode == "" {
		mode = policy.Enforce
	}
	return Policy{
		ID: r.ID, Tier: r.Tier, APIKeyID: r.APIKeyID,
		Route: r.Route, Methods: append([]string{}, r.Methods...),
		Limit: r.Limit.Count, Window: window(r.Limit), Burst: r.Limit.Burst, MaxDelay: delay(r.Limit),
		Algorithm: string(algorithm), Cost: r.Cost, Mode: string(mode), OnError: string(r.OnError),
		Version: r.Version, CreatedAt: moment(r.CreatedAt), UpdatedAt: moment(r.UpdatedAt),
	}
}

// window is a limit's window as it is written: the part behind the slash.
func window(l policy.Limit) string {
	_, text, _ := strings.Cut(policy.Limit{Count: 1, Window: l.Window}.String(), "/")
	return text
}

// delay is a limit's longest delay as it is written; empty if none waits.
func delay(l policy.Limit) string {
	if l.MaxDelay == 0 {
		return ""
	}
	return window(policy.Limit{Window: l.MaxDelay})
}

func parseDelay(text string) (time.Duration, *Problem) {
	if text == "" {
		return 0, nil
	}
	d, err := policy.ParseWindow(text)
	if err != nil {
		return 0, wrongField("body", "max_delay", fmt.Sprintf("%q is not a duration; write one up to 10m, like 500ms", text))
	}
	return d, nil
}

func parseWindow(text string) (time.Duration, *Problem) {
	d, err := policy.ParseWindow(text)
	if err != nil {
		return 0, wrongField("body", "window", err.Error())
	}
	return d, nil
}

func (n NewPolicy) record() (policy.PolicyRecord, *Problem) {
	window, p := parseWindow(n.Window)
	if p != nil {
		return policy.PolicyRecord{}, p
	}
	delay, p := parseDelay(n.MaxDelay)
	if p != nil {
		return policy.PolicyRecord{}, p
	}
	cost := int64(1)
	if n.Cost != nil {
		cost = *n.Cost
	}
	return policy.PolicyRecord{Policy: policy.Policy{
		Tier: n.Tier, APIKeyID: n.APIKeyID,
		Route: n.Route, Methods: n.Methods,
		Limit:     policy.Limit{Count: n.Limit, Window: window, Burst: n.Burst, MaxDelay: delay},
		Algorithm: policy.Algorithm(n.Algorithm), Cost: cost,
		Mode: policy.Mode(n.Mode), OnError: policy.OnError(n.OnError),
	}}, nil
}

// apply changes what is given.
func (c PolicyChange) apply(r *policy.PolicyRecord) *Problem {
	if c.Window != nil {
		window, p := parseWindow(*c.Window)
		if p != nil {
			return p
		}
		r.Limit.Window = window
	}
	if c.MaxDelay != nil {
		delay, p := parseDelay(*c.MaxDelay)
		if p != nil {
			return p
		}
		r.Limit.MaxDelay = delay
	}
	set(&r.Route, c.Route)
	set(&r.Methods, c.Methods)
	set(&r.Limit.Count, c.Limit)
	set(&r.Limit.Burst, c.Burst)
	set(&r.Algorithm, (*policy.Algorithm)(c.Algorithm))
	set(&r.Cost, c.Cost)
	set(&r.Mode, (*policy.Mode)(c.Mode))
	set(&r.OnError, (*policy.OnError)(c.OnError))
	return nil
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

// IDPath is the part of a path that names a policy or a key.
type IDPath struct {
	ID string `path:"id" doc:"The id."`
}

type policyAnswer struct {
	ETag     string `header:"ETag" doc:"The version, for If-Match."`
	Location string `header:"Location" doc:"Where the new policy stands, relative to the request."`
	Body     Policy
}

func answerPolicy(r policy.PolicyRecord) *policyAnswer {
	return &policyAnswer{ETag: etag(r.Version), Body: showPolicy(r)}
}

func (a *API) registerPolicies() {
	const list, one = "/policies", "/policies/{id}"
	register(a, operation{
		id: "list-policies", method: http.MethodGet, path: list, access: reads,
		summary: "List policies, by id: all, those of a tier, or those of an API key",
	}, a.listPolicies)
	register(a, operation{
		id: "create-policy", method: http.MethodPost, path: list, access: changes, status: http.StatusCreated,
		summary: "Create a policy of a tier or of an API key",
	}, a.createPolicy)
	register(a, operation{
		id: "get-policy", method: http.MethodGet, path: one, access: reads, errors: []int{http.StatusNotFound},
		summary: "Get a policy",
	}, a.getPolicy)
	register(a, operation{
		id: "change-policy", method: http.MethodPatch, path: one, access: changes, errors: changeErrors,
		summary: "Change a policy; what was used stays used",
	}, a.changePolicy)
	register(a, operation{
		id: "delete-policy", method: http.MethodDelete, path: one, access: changes, status: http.StatusNoContent, errors: changeErrors,
		summary: "Delete a policy, but not the ceiling of anonymous clients",
	}, a.deletePolicy)
}

func (a *API) listPolicies(ctx context.Context, in *struct {
	Paged
	Tier     string `query:"tier" doc:"Only those of this tier."`
	APIKeyID string `query:"api_key_id" doc:"Only those of this API key."`
},
) (*listed[Policy], error) {
	page, p := in.page("policies")
	if p == nil && in.Tier != "" && in.APIKeyID != "" {
		p = wrongField("query", "api_key_id", "a policy belongs to a tier or to an API key; write one of the two")
	}
	if p != nil {
		return nil, p
	}
	records, err := a.reader.ListPolicies(ctx, in.Tier, in.APIKeyID, page)
	if err != nil {
		return nil, a.failed("the list of policies", err)
	}
	filters := url.Values{"tier": {in.Tier}, "api_key_id": {in.APIKeyID}}
	return list(in.Paged, "policies", records, func(r policy.PolicyRecord) string { return r.ID }, showPolicy, filters), nil
}

func (a *API) createPolicy(ctx context.Context, in *struct{ Body NewPolicy }) (*policyAnswer, error) {
	r, p := in.Body.record()
	if p != nil {
		return nil, p
	}
	r, err := a.store.CreatePolicy(ctx, change(ctx, "create"), r)
	if err != nil {
		return nil, a.failed("the policy", err)
	}
	answer := answerPolicy(r)
	answer.Location = "policies/" + segment(r.ID)
	return answer, nil
}

func (a *API) getPolicy(ctx context.Context, in *struct{ IDPath }) (*policyAnswer, error) {
	r, err := a.reader.GetPolicy(ctx, in.ID)
	if err != nil {
		return nil, a.failed("policy "+in.ID, err)
	}
	return answerPolicy(r), nil
}

func (a *API) changePolicy(ctx context.Context, in *struct {
	IDPath
	Versioned
	Body PolicyChange
},
) (*policyAnswer, error) {
	r, err := a.currentPolicy(ctx, in.ID, in.Versioned)
	if err != nil {
		return nil, err
	}
	before := r
	if p := in.Body.apply(&r); p != nil {
		return nil, p
	}
	if reflect.DeepEqual(showPolicy(r), showPolicy(before)) { // a version that says nothing new would only outdate others
		return answerPolicy(r), nil
	}
	if r, err = a.store.UpdatePolicy(ctx, change(ctx, "update"), r); err != nil {
		return nil, a.failed("policy "+in.ID, err)
	}
	return answerPolicy(r), nil
}

func (a *API) deletePolicy(ctx context.Context, in *struct {
	IDPath
	Versioned
},
) (*struct{}, error) {
	r, err := a.currentPolicy(ctx, in.ID, in.Versioned)
	if err != nil {
		return nil, err
	}
	if err := a.store.DeletePolicy(ctx, change(ctx, "delete"), in.ID, r.Version); err != nil {
		return nil, a.failed("policy "+in.ID, err)
	}
	return nil, nil
}

// currentPolicy is the policy that a change is based on.
func (a *API) currentPolicy(ctx context.Context, id string, v Versioned) (policy.PolicyRecord, error) {
	r, err := a.reader.GetPolicy(ctx, id)
	if err != nil {
		return r, a.failed("policy "+id, err)
	}
	if p := v.check("policy "+id, r.Version); p != nil {
		return r, p
	}
	return r, nil
}
