package embedded

import (
	"context"
	"fmt"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// ListTiers lists tiers by name.
func (s *store) ListTiers(ctx context.Context, p policy.Page) ([]policy.TierRecord, error) {
	d, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	return page(d.Tiers, func(t policy.TierRecord) string { return t.Name }, p), nil
}

// GetTier returns one tier.
func (s *store) GetTier(ctx context.Context, name string) (policy.TierRecord, error) {
	d, err := s.read(ctx)
	if err != nil {
		return policy.TierRecord{}, err
	}
	i, err := d.findTier(name)
	if err != nil {
		return policy.TierRecord{}, err
	}
	return d.Tiers[i], nil
}

// CreateTier stores a tier without policies. Clients of it have no limit until
// it has one.
func (s *store) CreateTier(ctx context.Context, c policy.Change, t policy.TierRecord) (policy.TierRecord, error) {
	err := s.change(ctx, func(tx *transaction) error {
		if err := policy.CheckTier(t); err != nil {
			return err
		}
		if err := tx.freeTier(t.Name); err != nil {
			return err
		}
		t.Version, t.CreatedAt, t.UpdatedAt = 1, tx.now, tx.now
		tx.doc.Tiers = append(tx.doc.Tiers, t)
		return tx.audit(c, policy.KindTier, t.Name, nil, t)
	})
	return t, err
}

// UpdateTier renames a tier; its policies and API keys go with it.
func (s *store) UpdateTier(ctx context.Context, c policy.Change, name string, t policy.TierRecord) (policy.TierRecord, error) {
	err := s.change(ctx, func(tx *transaction) error {
		i, err := tx.doc.findTier(name)
		if err != nil {
			return err
		}
		before := tx.doc.Tiers[i]
		if err := current("tier", name, before.Version, t.Version); err != nil {
			return err
		}
		if err := policy.CheckTierChange(before, t); err != nil {
			return err
		}
		if t.Name != name {
			if err := tx.freeTier(t.Name); err != nil {
				return err
			}
			tx.moveTier(name, t.Name)
		}
		t.Version, t.CreatedAt, t.UpdatedAt = before.Version+1, before.CreatedAt, tx.now
		tx.doc.Tiers[i] = t
		return tx.audit(c, policy.KindTier, t.Name, before, t)
	})
	return t, err
}

// DeleteTier deletes a tier that no policy and no API key is in.
func (s *store) DeleteTier(ctx context.Context, c policy.Change, name string, version int64) error {
	return s.change(ctx, func(tx *transaction) error {
		i, err := tx.doc.findTier(name)
		if err != nil {
			return err
		}
		before := tx.doc.Tiers[i]
		if err := current("tier", name, before.Version, version); err != nil {
			return err
		}
		if err := tx.tierUse(name); err != nil {
			return err
		}
		tx.doc.Tiers = append(tx.doc.Tiers[:i], tx.doc.Tiers[i+1:]...)
		return tx.audit(c, policy.KindTier, name, before, nil)
	})
}

func (tx *transaction) freeTier(name string) error {
	if _, err := tx.doc.findTier(name); err == nil {
		return fmt.Errorf("tier %s %w", name, policy.ErrExists)
	}
	return nil
}

func (tx *transaction) tierUse(name string) error {
	var policies, keys int64
	for _, p := range tx.doc.Policies {
		if p.Tier == name {
			policies++
		}
	}
	for _, k := range tx.doc.Keys {
		if k.Tier == name {
			keys++
		}
	}
	return policy.TierUse(name, policies, keys)
}

// moveTier gives the records of a tier its new name.
func (tx *transaction) moveTier(from, to string) {
	for i := range tx.doc.Policies {
		if p := &tx.doc.Policies[i]; p.Tier == from {
			p.Tier, p.UpdatedAt = to, tx.now
			p.Version++
		}
	}
	for i := range tx.doc.Keys {
		if k := &tx.doc.Keys[i]; k.Tier == from {
			k.Tier, k.UpdatedAt = to, tx.now
			k.Version++
		}
	}
}
