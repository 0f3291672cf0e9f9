package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// AuditEntry is one change: who, when, what, before and after.
type AuditEntry struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Actor  string    `json:"actor" doc:"The subject of the admin's token."`
	Action string    `json:"action" doc:"create, update, delete, rotate, revoke or reset_usage."`
	Kind   string    `json:"kind" doc:"tier, policy or api_key."`
	Key    string    `json:"key" doc:"The record's name or id."`
	Before Snippet   `json:"before" doc:"The record before the change, without secrets; null if it was created."`
	After  Snippet   `json:"after" doc:"The record after the change, without secrets; null if it was deleted. Of reset_usage, null: what was used stands in before."`
}

// Snippet is a record as JSON, or null.
type Snippet json.RawMessage

// MarshalJSON writes the record.
func (s Snippet) MarshalJSON() ([]byte, error) {
	if len(s) == 0 {
		return []byte("null"), nil
	}
	return s, nil
}

// Schema describes the record in the document.
func (Snippet) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, Nullable: true, AdditionalProperties: true}
}

func showAudit(r policy.AuditRecord) AuditEntry {
	return AuditEntry{
		ID: r.ID, At: r.At.UTC(), Actor: r.Actor, Action: r.Action,
		Kind: r.Kind, Key: r.Key, Before: r.Before, After: r.After,
	}
}

func (a *API) registerAudit() {
	register(a, operation{
		id: "list-audit", method: http.MethodGet, path: "/audit", access: reads,
		summary: "List changes, the newest first",
	}, a.listAudit)
}

func (a *API) listAudit(ctx context.Context, in *struct{ Paged }) (*listed[AuditEntry], error) {
	page, p := in.page("audit")
	if p != nil {
		return nil, p
	}
	entries, err := a.reader.ListAudit(ctx, page)
	if err != nil {
		return nil, a.failed("the audit", err)
	}
	id := func(r policy.AuditRecord) string { return strconv.FormatInt(r.ID, 10) }
	return list(in.Paged, "audit", entries, id, showAudit, url.Values{}), nil
}

// Interface guards
var (
	_ json.Marshaler      = Snippet{}
	_ huma.SchemaProvider = Snippet{}
)
