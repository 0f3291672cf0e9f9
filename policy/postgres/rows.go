package postgres

import (
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// The rows of the tables, by column. Every query names its columns.

const tierColumns = "name, version, created_at, updated_at"

type tierRow struct {
	Name      string    `db:"name"`
	Version   int64     `db:"version"`
	CreatedAt time.Time `db:"created_at"`
	UpdatedAt time.Time `db:"updated_at"`
}

func (r tierRow) record() policy.TierRecord {
	return policy.TierRecord{Name: r.Name, Version: r.Version, CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC()}
}

const policyColumns = "id, tier, api_key_id, route, methods, limit_count, window_us, burst, max_delay_us, algorithm, cost, mode, on_error, version, created_at, updated_at"

type policyRow struct {
	ID        string    `db:"id"`
	Tier      *string   `db:"tier"`
	APIKeyID  *string   `db:"api_key_id"`
	Route     string    `db:"route"`
	Methods   []string  `db:"methods"`
	Count     int64     `db:"limit_count"`
	Window    int64     `db:"window_us"`
	Burst     int64     `db:"burst"`
	MaxDelay  int64     `db:"max_delay_us"`
	Algorithm string    `db:"algorithm"`
	Cost      int64     `db:"cost"`
	Mode      string    `db:"mode"`
	OnError   string    `db:"on_error"`
	Version   int64     `db:"version"`
	CreatedAt time.Time `db:"created_at"`
	UpdatedAt time.Time `db:"updated_at"`
}

func (r policyRow) record() policy.PolicyRecord {
	if len(r.Methods) == 0 {
		r.Methods = nil
	}
	return policy.PolicyRecord{
		Version: r.Version, CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC(),
		Policy: policy.Policy{
			ID: r.ID, Tier: text(r.Tier), APIKeyID: text(r.APIKeyID), Route: r.Route, Methods: r.Methods,
			Limit: policy.Limit{
				Count: r.Count, Window: time.Duration(r.Window) * time.Microsecond,
				Burst: r.Burst, MaxDelay: time.Duration(r.MaxDelay) * time.Microsecond,
			},
			Algorithm: policy.Algorithm(r.Algorithm), Cost: r.Cost, Mode: policy.Mode(r.Mode), OnError: policy.OnError(r.OnError),
		},
	}
}

// keySelect reads keys with their hashes; a condition follows it.
const keySelect = `SELECT k.id, k.prefix, k.client, k.tier, k.expires_at, k.revoked_at, k.last_used_at, k.version, k.created_at, k.updated_at,
	c.sha256, b.sha256 AS previous_sha256, b.until AS previous_until
	FROM rate_limit_api_keys k
	JOIN rate_limit_api_key_hashes c ON c.key_id = k.id AND c.until IS NULL
	LEFT JOIN rate_limit_api_key_hashes b ON b.key_id = k.id AND b.until IS NOT NULL`

type keyRow struct {
	ID             string     `db:"id"`
	Prefix         string     `db:"prefix"`
	Client         string     `db:"client"`
	Tier           string     `db:"tier"`
	ExpiresAt      *time.Time `db:"expires_at"`
	RevokedAt      *time.Time `db:"revoked_at"`
	LastUsedAt     *time.Time `db:"last_used_at"`
	Version        int64      `db:"version"`
	CreatedAt      time.Time  `db:"created_at"`
	UpdatedAt      time.Time  `db:"updated_at"`
	SHA256         []byte     `db:"sha256"`
	PreviousSHA256 []byte     `db:"previous_sha256"`
	PreviousUntil  *time.Time `db:"previous_until"`
}

func (r keyRow) record() policy.KeyRecord {
	k := policy.KeyRecord{
		ID: r.ID, Prefix: r.Prefix, Client: r.Client, Tier: r.Tier,
		ExpiresAt: instant(r.ExpiresAt), RevokedAt: instant(r.RevokedAt), LastUsedAt: instant(r.LastUsedAt), PreviousUntil: instant(r.PreviousUntil),
		Version: r.Version, CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC(),
	}
	copy(k.SHA256[:], r.SHA256)
	copy(k.PreviousSHA256[:], r.PreviousSHA256)
	return k
}

const auditColumns = "id, at, actor, action, kind, key, before, after"

type auditRow struct {
	ID     int64     `db:"id"`
	At     time.Time `db:"at"`
	Actor  string    `db:"actor"`
	Action string    `db:"action"`
	Kind   string    `db:"kind"`
	Key    string    `db:"key"`
	Before []byte    `db:"before"`
	After  []byte    `db:"after"`
}

func (r auditRow) record() policy.AuditRecord {
	return policy.AuditRecord{
		ID: r.ID, At: r.At.UTC(), Change: policy.Change{Actor: r.Actor, Action: r.Action},
		Kind: r.Kind, Key: r.Key, Before: r.Before, After: r.After,
	}
}

// text and instant read what may be null; orNull writes it.

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func instant(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

func orNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}
