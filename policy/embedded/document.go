package embedded

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// format is the version of the document that this code writes.
const format = 1

// document is all that is stored.
type document struct {
	Format int `json:"format"`

	// Store is random: a store that was deleted and made anew is another one,
	// whatever its epoch.
	Store string `json:"store"`

	// Epoch grows by one with every change.
	Epoch int64 `json:"epoch"`

	Tiers    []policy.TierRecord   `json:"tiers"`    // by name
	Policies []policy.PolicyRecord `json:"policies"` // by id
	Keys     []storedKey           `json:"keys"`     // by id
	Replays  []storedReplay        `json:"replays"`  // the oldest first
	Audit    []storedChange        `json:"audit"`    // the oldest first
	Segments []segment             `json:"segments"` // older audit, the oldest first

	LastAudit int64 `json:"last_audit"` // the ID of the newest audit record
}

// storedKey is a key's record with its hashes.
type storedKey struct {
	policy.KeyRecord
}

type storedKeyJSON struct {
	Record   policy.KeyRecord `json:"record"`
	SHA256   string           `json:"sha256"`
	Previous string           `json:"previous_sha256,omitempty"`
}

// MarshalJSON writes the record and its hashes.
func (k storedKey) MarshalJSON() ([]byte, error) {
	j := storedKeyJSON{Record: k.KeyRecord, SHA256: hex.EncodeToString(k.SHA256[:])}
	if k.PreviousSHA256 != [32]byte{} {
		j.Previous = hex.EncodeToString(k.PreviousSHA256[:])
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (k *storedKey) UnmarshalJSON(b []byte) error {
	var j storedKeyJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	k.KeyRecord = j.Record
	if err := decodeSum(&k.SHA256, j.SHA256); err != nil {
		return err
	}
	if j.Previous == "" {
		return nil
	}
	return decodeSum(&k.PreviousSHA256, j.Previous)
}

func decodeSum(sum *[32]byte, text string) error {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(sum) {
		return errors.New("the stored hash of an API key is not a SHA-256")
	}
	*sum = [32]byte(b)
	return nil
}

// storedReplay is what CreateKey answers when it is asked the same again.
type storedReplay struct {
	Idempotency string    `json:"idempotency"`
	At          time.Time `json:"at"`
	Key         storedKey `json:"key"`
	Kept        []byte    `json:"kept,omitempty"`
}

// newDocument is what a store starts with.
func newDocument(now time.Time) *document {
	d := &document{Format: format, Store: policy.NewID("s"), Epoch: 1}
	for _, p := range policy.SeedTiers() {
		p.CreatedAt, p.UpdatedAt = now, now
		d.Policies = append(d.Policies, p)
		d.Tiers = append(d.Tiers, policy.TierRecord{Name: p.Tier, Version: 1, CreatedAt: now, UpdatedAt: now})
	}
	d.sort()
	return d
}

func readDocument(b []byte) (*document, error) {
	d := new(document)
	if err := json.Unmarshal(b, d); err != nil {
		return nil, fmt.Errorf("the stored document %s cannot be read (%w); restore it from a backup, or delete it to start anew", documentKey, err)
	}
	if d.Format != format {
		return nil, fmt.Errorf("the stored document %s has the format %d, and this version reads %d; run the version that wrote it", documentKey, d.Format, format)
	}
	return d, nil
}

// sort puts the records in the order in which lists show them.
func (d *document) sort() {
	slices.SortFunc(d.Tiers, func(a, b policy.TierRecord) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(d.Policies, func(a, b policy.PolicyRecord) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(d.Keys, func(a, b storedKey) int { return strings.Compare(a.ID, b.ID) })
}

func (d *document) tierNames() []string {
	names := make([]string, len(d.Tiers))
	for i, t := range d.Tiers {
		names[i] = t.Name
	}
	return names
}

// The find functions return the index of a record, or an error that names it.

func (d *document) findTier(name string) (int, error) {
	i := slices.IndexFunc(d.Tiers, func(t policy.TierRecord) bool { return t.Name == name })
	return found(i, "tier", name)
}

func (d *document) findPolicy(id string) (int, error) {
	i := slices.IndexFunc(d.Policies, func(p policy.PolicyRecord) bool { return p.ID == id })
	return found(i, "policy", id)
}

func (d *document) findKey(id string) (int, error) {
	i := slices.IndexFunc(d.Keys, func(k storedKey) bool { return k.ID == id })
	return found(i, "API key", id)
}

func found(i int, kind, name string) (int, error) {
	if i < 0 {
		return i, fmt.Errorf("%s %q %w", kind, name, policy.ErrNotFound)
	}
	return i, nil
}

// current compares the version that a change is based on with the stored one.
func current(kind, name string, stored, based int64) error {
	if stored != based {
		return fmt.Errorf("%s %s %w: it is at version %d, and the change was made to %d; read it again", kind, name, policy.ErrConflict, stored, based)
	}
	return nil
}

// page returns the part of a sorted list that is asked for.
func page[T any](all []T, name func(T) string, p policy.Page) []T {
	var part []T
	for _, r := range all {
		if len(part) == p.PageLimit() {
			break
		}
		if p.After == "" || name(r) > p.After {
			part = append(part, r)
		}
	}
	return part
}
