package admin

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Tier is a service level, as the API shows it. What its clients get is in the
// policies of the tier.
type Tier struct {
	Name      string     `json:"name" doc:"Its name, like FREE. The tier anonymous is that of clients without a valid key."`
	Version   int64      `json:"version" doc:"Grows with every change; the ETag holds it."`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	UpdatedAt *time.Time `json:"updated_at,omitempty"`
}

// TierName is what a tier is created with or renamed to.
type TierName struct {
	Name string `json:"name" doc:"1 to 64 printable ASCII characters without spaces, quotes and backslashes."`
}

func showTier(t policy.TierRecord) Tier {
	return Tier{Name: t.Name, Version: t.Version, CreatedAt: moment(t.CreatedAt), UpdatedAt: moment(t.UpdatedAt)}
}

// moment is a time as JSON has it: null if there is none.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// TierPath is the part of a path that names a tier.
type TierPath struct {
	Name string `path:"name" doc:"The tier's name."`
}

// what names the tier in problems.
func (p TierPath) what() string { return "tier " + p.Name }

type tierAnswer struct {
	ETag     string `header:"ETag" doc:"The version, for If-Match."`
	Location string `header:"Location" doc:"Where the new tier stands, relative to the request."`
	Body     Tier
}

func answerTier(t policy.TierRecord) *tierAnswer {
	return &tierAnswer{ETag: etag(t.Version), Body: showTier(t)}
}

func (a *API) registerTiers() {
	const list, one = "/tiers", "/tiers/{name}"
	register(a, operation{
		id: "list-tiers", method: http.MethodGet, path: list, access: reads,
		summary: "List the tiers, by name",
	}, a.listTiers)
	register(a, operation{
		id: "create-tier", method: http.MethodPost, path: list, access: changes, status: http.StatusCreated,
		summary: "Create a tier, without policies yet",
	}, a.createTier)
	register(a, operation{
		id: "get-tier", method: http.MethodGet, path: one, access: reads, errors: []int{http.StatusNotFound},
		summary: "Get a tier",
	}, a.getTier)
	register(a, operation{
		id: "change-tier", method: http.MethodPatch, path: one, access: changes, errors: changeErrors,
		summary: "Rename a tier; its policies and keys go with it",
	}, a.changeTier)
	register(a, operation{
		id: "delete-tier", method: http.MethodDelete, path: one, access: changes, status: http.StatusNoContent, errors: changeErrors,
		summary: "Delete a tier that no key and no policy uses",
	}, a.deleteTier)
}

// changeErrors are the statuses of changes of one record.
var changeErrors = []int{http.StatusNotFound, http.StatusPreconditionFailed, http.StatusPreconditionRequired}

func (a *API) listTiers(ctx context.Context, in *struct{ Paged }) (*listed[Tier], error) {
	page, p := in.page("tiers")
	if p != nil {
		return nil, p
	}
	tiers, err := a.reader.ListTiers(ctx, page)
	if err != nil {
		return nil, a.failed("the list of tiers", err)
	}
	return list(in.Paged, "tiers", tiers, func(t policy.TierRecord) string { return t.Name }, showTier, url.Values{}), nil
}

func (a *API) createTier(ctx context.Context, in *struct{ Body TierName }) (*tierAnswer, error) {
	t, err := a.store.CreateTier(ctx, change(ctx, "create"), policy.TierRecord{Name: in.Body.Name})
	if err != nil {
		return nil, a.failed("tier "+in.Body.Name, err)
	}
	answer := answerTier(t)
	answer.Location = "tiers/" + segment(t.Name)
	return answer, nil
}

// change says who does what, for the audit.
func change(ctx context.Context, action string) policy.Change {
	return policy.Change{Actor: actorOf(ctx), Action: action}
}

func (a *API) getTier(ctx context.Context, in *struct{ TierPath }) (*tierAnswer, error) {
	t, err := a.reader.GetTier(ctx, in.Name)
	if err != nil {
		return nil, a.failed(in.what(), err)
	}
	return answerTier(t), nil
}

func (a *API) changeTier(ctx context.Context, in *struct {
	TierPath
	Versioned
	Body TierName
},
) (*tierAnswer, error) {
	t, err := a.currentTier(ctx, in.TierPath, in.Versioned)
	if err != nil {
		return nil, err
	}
	if in.Body.Name == t.Name {
		return answerTier(t), nil
	}
	t.Name = in.Body.Name
	if t, err = a.store.UpdateTier(ctx, change(ctx, "update"), in.Name, t); err != nil {
		return nil, a.failed(in.what(), err)
	}
	return answerTier(t), nil
}

func (a *API) deleteTier(ctx context.Context, in *struct {
	TierPath
	Versioned
},
) (*struct{}, error) {
	t, err := a.currentTier(ctx, in.TierPath, in.Versioned)
	if err != nil {
		return nil, err
	}
	if err := a.store.DeleteTier(ctx, change(ctx, "delete"), in.Name, t.Version); err != nil {
		return nil, a.failed(in.what(), err)
	}
	return nil, nil
}

// currentTier is the tier that a change is based on.
func (a *API) currentTier(ctx context.Context, path TierPath, v Versioned) (policy.TierRecord, error) {
	t, err := a.reader.GetTier(ctx, path.Name)
	if err != nil {
		return t, a.failed(path.what(), err)
	}
	if p := v.check(path.what(), t.Version); p != nil {
		return t, p
	}
	return t, nil
}
