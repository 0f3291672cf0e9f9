package policy

import (
	"encoding/json"
	"fmt"
	"time"
)

// Records as JSON: in the audit, in stores, and with the names of the admin API.
// An API key's record as JSON leaves its hashes out.

type tierJSON struct {
	Name      string    `json:"name"`
	Version   int64     `json:"version"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	UpdatedAt time.Time `json:"updated_at,omitzero"`
}

// MarshalJSON writes the tier with the names of the admin API.
func (t TierRecord) MarshalJSON() ([]byte, error) { return json.Marshal(tierJSON(t)) }

// UnmarshalJSON reads what MarshalJSON writes.
func (t *TierRecord) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, (*tierJSON)(t)) }

type policyJSON struct {
	ID        string    `json:"id"`
	Tier      string    `json:"tier,omitempty"`
	APIKeyID  string    `json:"api_key_id,omitempty"`
	Route     string    `json:"route"`
	Methods   []string  `json:"methods,omitempty"`
	Limit     int64     `json:"limit"`
	Window    string    `json:"window"`
	Burst     int64     `json:"burst,omitempty"`
	MaxDelay  string    `json:"max_delay,omitempty"`
	Algorithm Algorithm `json:"algorithm"`
	Cost      int64     `json:"cost"`
	Mode      Mode      `json:"mode"`
	OnError   OnError   `json:"on_error,omitempty"`
	Version   int64     `json:"version"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	UpdatedAt time.Time `json:"updated_at,omitzero"`
}

// MarshalJSON writes the policy with the names of the admin API; the window and
// the longest delay are text that ParseWindow reads.
func (p PolicyRecord) MarshalJSON() ([]byte, error) {
	return json.Marshal(policyJSON{
		ID: p.ID, Tier: p.Tier, APIKeyID: p.APIKeyID, Route: p.Route, Methods: p.Methods,
		Limit: p.Limit.Count, Window: formatWindow(p.Limit.Window), Burst: p.Limit.Burst, MaxDelay: formatDelay(p.Limit.MaxDelay),
		Algorithm: p.Algorithm, Cost: p.Cost, Mode: p.Mode, OnError: p.OnError,
		Version: p.Version, CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt,
	})
}

// formatDelay writes a delay; empty is none.
func formatDelay(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return formatWindow(d)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *PolicyRecord) UnmarshalJSON(b []byte) error {
	var j policyJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	window, err := ParseWindow(j.Window)
	if err != nil {
		return fmt.Errorf("policy %s: %w", j.ID, err)
	}
	var delay time.Duration
	if j.MaxDelay != "" {
		if delay, err = ParseWindow(j.MaxDelay); err != nil {
			return fmt.Errorf("policy %s: max_delay: %w", j.ID, err)
		}
	}
	*p = PolicyRecord{Version: j.Version, CreatedAt: j.CreatedAt, UpdatedAt: j.UpdatedAt, Policy: Policy{
		ID: j.ID, Tier: j.Tier, APIKeyID: j.APIKeyID, Route: j.Route, Methods: j.Methods,
		Limit:     Limit{Count: j.Limit, Window: window, Burst: j.Burst, MaxDelay: delay},
		Algorithm: j.Algorithm, Cost: j.Cost, Mode: j.Mode, OnError: j.OnError,
	}}
	return nil
}

type keyJSON struct {
	ID            string    `json:"id"`
	Prefix        string    `json:"prefix,omitempty"`
	Client        string    `json:"client,omitempty"`
	Tier          string    `json:"tier"`
	PreviousUntil time.Time `json:"previous_until,omitzero"`
	ExpiresAt     time.Time `json:"expires_at,omitzero"`
	RevokedAt     time.Time `json:"revoked_at,omitzero"`
	LastUsedAt    time.Time `json:"last_used_at,omitzero"`
	Version       int64     `json:"version"`
	CreatedAt     time.Time `json:"created_at,omitzero"`
	UpdatedAt     time.Time `json:"updated_at,omitzero"`
}

// MarshalJSON writes the key's record with the names of the admin API, without
// its hashes.
func (k KeyRecord) MarshalJSON() ([]byte, error) {
	return json.Marshal(keyJSON{
		ID: k.ID, Prefix: k.Prefix, Client: k.Client, Tier: k.Tier, PreviousUntil: k.PreviousUntil,
		ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt, LastUsedAt: k.LastUsedAt,
		Version: k.Version, CreatedAt: k.CreatedAt, UpdatedAt: k.UpdatedAt,
	})
}

// UnmarshalJSON reads what MarshalJSON writes; the record has no hashes then.
func (k *KeyRecord) UnmarshalJSON(b []byte) error {
	var j keyJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*k = KeyRecord{
		ID: j.ID, Prefix: j.Prefix, Client: j.Client, Tier: j.Tier, PreviousUntil: j.PreviousUntil,
		ExpiresAt: j.ExpiresAt, RevokedAt: j.RevokedAt, LastUsedAt: j.LastUsedAt,
		Version: j.Version, CreatedAt: j.CreatedAt, UpdatedAt: j.UpdatedAt,
	}
	return nil
}

// Interface guards
var (
	_ json.Marshaler   = TierRecord{}
	_ json.Unmarshaler = (*TierRecord)(nil)
	_ json.Marshaler   = PolicyRecord{}
	_ json.Unmarshaler = (*PolicyRecord)(nil)
	_ json.Marshaler   = KeyRecord{}
	_ json.Unmarshaler = (*KeyRecord)(nil)
)
