package admin

import (
	"context"
	"encoding/json"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Store keeps tiers, policies and API keys, and an audit of their changes.
// Providers that store implement it; the one that does not (static) is read
// through Reader alone.
//
// Every change is one transaction with its audit record, and reaches every
// instance. A record whose Version is not the stored one is refused with
// policy.ErrConflict, a record that breaks a rule with a *policy.FieldError; then
// nothing is changed. Lists are ordered by name or id.
type Store interface {
	Reader

	CreateTier(ctx context.Context, c policy.Change, t policy.TierRecord) (policy.TierRecord, error)
	DeleteTier(ctx context.Context, c policy.Change, name string, version int64) error
	UpdateTier(ctx context.Context, c policy.Change, name string, t policy.TierRecord) (policy.TierRecord, error)

	CreatePolicy(ctx context.Context, c policy.Change, p policy.PolicyRecord) (policy.PolicyRecord, error)
	UpdatePolicy(ctx context.Context, c policy.Change, p policy.PolicyRecord) (policy.PolicyRecord, error)
	DeletePolicy(ctx context.Context, c policy.Change, id string, version int64) error

	// CreateKey stores a key. A replay that is not empty is kept with it for a
	// day, under idempotency (a hash; empty if the client sent no Idempotency-Key):
	// a second call with the same idempotency changes nothing and returns what
	// was stored and kept the first time.
	CreateKey(ctx context.Context, c policy.Change, k policy.KeyRecord, idempotency string, replay []byte) (stored policy.KeyRecord, kept []byte, err error)
	UpdateKey(ctx context.Context, c policy.Change, k policy.KeyRecord) (policy.KeyRecord, error)
	DeleteKey(ctx context.Context, c policy.Change, id string, version int64) error

	// Record adds a record to the audit of what is no change of what is stored. Key
	// names a record of the kind, before is JSON.
	Record(ctx context.Context, c policy.Change, kind, key string, before json.RawMessage) error
}

// Reader is what every provider can answer.
type Reader interface {
	ListTiers(ctx context.Context, p policy.Page) ([]policy.TierRecord, error)
	GetTier(ctx context.Context, name string) (policy.TierRecord, error)

	// ListPolicies lists the policies of a tier, of an API key, or (both empty) all.
	ListPolicies(ctx context.Context, tier, apiKeyID string, p policy.Page) ([]policy.PolicyRecord, error)
	GetPolicy(ctx context.Context, id string) (policy.PolicyRecord, error)

	// ListKeys lists the keys of a tier, or (empty) all.
	ListKeys(ctx context.Context, tier string, p policy.Page) ([]policy.KeyRecord, error)
	GetKey(ctx context.Context, id string) (policy.KeyRecord, error)

	// ListAudit lists changes, the newest first; Page.After is an AuditRecord's ID.
	ListAudit(ctx context.Context, p policy.Page) ([]policy.AuditRecord, error)

	// Snapshot is what requests are decided by now.
	Snapshot() *policy.Snapshot
}
