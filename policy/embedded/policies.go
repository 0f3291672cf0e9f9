package embedded

import (
	"context"
	"fmt"
	"slices"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// ListPolicies lists the policies of a tier, of an API key, or (both empty) all,
// by id.
func (s *store) ListPolicies(ctx context.Context, tier, apiKeyID string, p policy.Page) ([]policy.PolicyRecord, error) {
	d, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	var chosen []policy.PolicyRecord
	for _, r := range d.Policies {
		if (tier == "" || r.Tier == tier) && (apiKeyID == "" || r.APIKeyID == apiKeyID) {
			chosen = append(chosen, r.Clone())
		}
	}
	return page(chosen, func(r policy.PolicyRecord) string { return r.ID }, p), nil
}

// GetPolicy returns one policy.
func (s *store) GetPolicy(ctx context.Context, id string) (policy.PolicyRecord, error) {
	d, err := s.read(ctx)
	if err != nil {
		return policy.PolicyRecord{}, err
	}
	i, err := d.findPolicy(id)
	if err != nil {
		return policy.PolicyRecord{}, err
	}
	return d.Policies[i].Clone(), nil
}

// CreatePolicy stores a policy. Without an id it gets one.
func (s *store) CreatePolicy(ctx context.Context, c policy.Change, p policy.PolicyRecord) (policy.PolicyRecord, error) {
	if p.ID == "" {
		p.ID = policy.NewID("p")
	}
	err := s.change(ctx, func(tx *transaction) (err error) {
		if p.Policy, err = tx.checkPolicy(p.Policy); err != nil {
			return err
		}
		if _, err := tx.doc.findPolicy(p.ID); err == nil {
			return fmt.Errorf("policy %s %w", p.ID, policy.ErrExists)
		}
		p.Version, p.CreatedAt, p.UpdatedAt = 1, tx.now, tx.now
		tx.doc.Policies = append(tx.doc.Policies, p)
		return tx.audit(c, policy.KindPolicy, p.ID, nil, p)
	})
	return p.Clone(), err
}

// UpdatePolicy replaces a policy.
func (s *store) UpdatePolicy(ctx context.Context, c policy.Change, p policy.PolicyRecord) (policy.PolicyRecord, error) {
	err := s.change(ctx, func(tx *transaction) error {
		i, err := tx.doc.findPolicy(p.ID)
		if err != nil {
			return err
		}
		before := tx.doc.Policies[i]
		if err := current("policy", p.ID, before.Version, p.Version); err != nil {
			return err
		}
		if p.Policy, err = tx.checkPolicy(p.Policy); err != nil {
			return err
		}
		if err := policy.CheckPolicyChange(before.Policy, p.Policy); err != nil {
			return err
		}
		p.Version, p.CreatedAt, p.UpdatedAt = before.Version+1, before.CreatedAt, tx.now
		tx.doc.Policies[i] = p
		return tx.audit(c, policy.KindPolicy, p.ID, before, p)
	})
	return p.Clone(), err
}

// DeletePolicy deletes a policy, unless it is the ceiling of anonymous clients.
func (s *store) DeletePolicy(ctx context.Context, c policy.Change, id string, version int64) error {
	return s.change(ctx, func(tx *transaction) error {
		i, err := tx.doc.findPolicy(id)
		if err != nil {
			return err
		}
		before := tx.doc.Policies[i]
		if err := current("policy", id, before.Version, version); err != nil {
			return err
		}
		if before.Protected() {
			return policy.ErrProtected
		}
		tx.doc.Policies = slices.Delete(tx.doc.Policies, i, i+1)
		return tx.audit(c, policy.KindPolicy, id, before, nil)
	})
}

// checkPolicy judges a policy by itself and beside the other records.
func (tx *transaction) checkPolicy(p policy.Policy) (policy.Policy, error) {
	p, err := policy.CheckPolicy(p)
	if err != nil {
		return p, err
	}
	if p.Tier != "" {
		if _, err := tx.doc.findTier(p.Tier); err != nil {
			return p, policy.UnknownTier(p.Tier, tx.doc.tierNames())
		}
	} else if _, err := tx.doc.findKey(p.APIKeyID); err != nil {
		return p, policy.UnknownKey(p.APIKeyID)
	}
	for _, o := range tx.doc.Policies {
		if o.ID != p.ID && o.Tier == p.Tier && o.APIKeyID == p.APIKeyID && o.Scope() == p.Scope() {
			return p, policy.RouteTaken(p, o.ID)
		}
	}
	return p, nil
}
