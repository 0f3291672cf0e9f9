package embedded

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// ListKeys lists the keys of a tier, or (empty) all, by id.
func (s *store) ListKeys(ctx context.Context, tier string, p policy.Page) ([]policy.KeyRecord, error) {
	d, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	var chosen []policy.KeyRecord
	for _, k := range d.Keys {
		if tier == "" || k.Tier == tier {
			chosen = append(chosen, k.KeyRecord)
		}
	}
	chosen = page(chosen, func(k policy.KeyRecord) string { return k.ID }, p)
	for i := range chosen {
		chosen[i].LastUsedAt = s.shared.usage.lastUsed(chosen[i].ID)
	}
	return chosen, nil
}

// GetKey returns one key.
func (s *store) GetKey(ctx context.Context, id string) (policy.KeyRecord, error) {
	d, err := s.read(ctx)
	if err != nil {
		return policy.KeyRecord{}, err
	}
	i, err := d.findKey(id)
	if err != nil {
		return policy.KeyRecord{}, err
	}
	k := d.Keys[i].KeyRecord
	k.LastUsedAt = s.shared.usage.lastUsed(id)
	return k, nil
}

// CreateKey stores a key. Without an id it gets one. A second call with the same
// idempotency, within a day, changes nothing and returns what the first did.
func (s *store) CreateKey(ctx context.Context, c policy.Change, k policy.KeyRecord, idempotency string, replay []byte) (policy.KeyRecord, []byte, error) {
	if k.ID == "" {
		k.ID = policy.NewID("k")
	}
	kept := replay
	err := s.change(ctx, func(tx *transaction) error {
		if r := tx.doc.replay(idempotency, tx.now); r != nil {
			k, kept = r.Key.KeyRecord, r.Kept
			return errUnchanged
		}
		if err := policy.CheckNewKey(k, tx.now); err != nil {
			return err
		}
		if _, err := tx.doc.findKey(k.ID); err == nil {
			return fmt.Errorf("API key %s %w", k.ID, policy.ErrExists)
		}
		if err := tx.checkKey(k); err != nil {
			return err
		}
		k.Version, k.CreatedAt, k.UpdatedAt, k.LastUsedAt = 1, tx.now, tx.now, time.Time{}
		tx.doc.Keys = append(tx.doc.Keys, storedKey{k})
		if idempotency != "" {
			tx.doc.Replays = append(tx.doc.Replays, storedReplay{Idempotency: idempotency, At: tx.now, Key: storedKey{k}, Kept: replay})
		}
		return tx.audit(c, policy.KindKey, k.ID, nil, k)
	})
	return k, kept, err
}

// UpdateKey replaces a key's record: its client, tier, expiry, revocation, and
// on a rotation its hashes. When it was made and last used stays.
func (s *store) UpdateKey(ctx context.Context, c policy.Change, k policy.KeyRecord) (policy.KeyRecord, error) {
	err := s.change(ctx, func(tx *transaction) error {
		i, err := tx.doc.findKey(k.ID)
		if err != nil {
			return err
		}
		before := tx.doc.Keys[i].KeyRecord
		if err := current("API key", k.ID, before.Version, k.Version); err != nil {
			return err
		}
		if err := policy.CheckKeyRecord(k); err != nil {
			return err
		}
		if err := tx.checkKey(k); err != nil {
			return err
		}
		k.Version, k.CreatedAt, k.UpdatedAt, k.LastUsedAt = before.Version+1, before.CreatedAt, tx.now, time.Time{}
		tx.doc.Keys[i] = storedKey{k}
		return tx.audit(c, policy.KindKey, k.ID, before, k)
	})
	k.LastUsedAt = s.shared.usage.lastUsed(k.ID)
	return k, err
}

// DeleteKey deletes a key and the policies that are its own.
func (s *store) DeleteKey(ctx context.Context, c policy.Change, id string, version int64) error {
	return s.change(ctx, func(tx *transaction) error {
		i, err := tx.doc.findKey(id)
		if err != nil {
			return err
		}
		before := tx.doc.Keys[i].KeyRecord
		if err := current("API key", id, before.Version, version); err != nil {
			return err
		}
		if err := tx.deletePoliciesOf(c, id); err != nil {
			return err
		}
		tx.doc.Keys = slices.Delete(tx.doc.Keys, i, i+1)
		return tx.audit(c, policy.KindKey, id, before, nil)
	})
}

func (tx *transaction) deletePoliciesOf(c policy.Change, key string) error {
	var rest []policy.PolicyRecord
	for _, p := range tx.doc.Policies {
		if p.APIKeyID != key {
			rest = append(rest, p)
			continue
		}
		if err := tx.audit(c, policy.KindPolicy, p.ID, p, nil); err != nil {
			return err
		}
	}
	tx.doc.Policies = rest
	return nil
}

// checkKey judges a key beside the other records. Its error does not say whose
// key has the same hash.
func (tx *transaction) checkKey(k policy.KeyRecord) error {
	if _, err := tx.doc.findTier(k.Tier); err != nil {
		return policy.UnknownTier(k.Tier, tx.doc.tierNames())
	}
	own := k.Sums()
	for _, o := range tx.doc.Keys {
		if o.ID == k.ID {
			continue
		}
		for _, sum := range o.Sums() {
			if slices.Contains(own, sum) {
				return fmt.Errorf("an API key with this hash %w; make another key", policy.ErrExists)
			}
		}
	}
	return nil
}

// replay is what is kept under idempotency; nil if nothing is.
func (d *document) replay(idempotency string, now time.Time) *storedReplay {
	for i := range d.Replays {
		r := &d.Replays[i]
		if idempotency != "" && r.Idempotency == idempotency && now.Sub(r.At) < policy.IdempotencyRetention {
			return r
		}
	}
	return nil
}
