package static

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// What the configuration spells out, as records: version 1, without times, since
// nothing changes while it runs. Lists are ordered by name or id.

// ListTiers lists the tiers of the configuration.
func (p *Provider) ListTiers(_ context.Context, page policy.Page) ([]policy.TierRecord, error) {
	var all []policy.TierRecord
	for _, t := range p.Tiers {
		all = append(all, policy.TierRecord{Name: t.Name, Version: 1})
	}
	return pageOf(all, func(t policy.TierRecord) string { return t.Name }, page), nil
}

// GetTier finds a tier by its name.
func (p *Provider) GetTier(_ context.Context, name string) (policy.TierRecord, error) {
	if !slices.ContainsFunc(p.Tiers, func(t Tier) bool { return t.Name == name }) {
		return policy.TierRecord{}, fmt.Errorf("tier %s: %w", name, policy.ErrNotFound)
	}
	return policy.TierRecord{Name: name, Version: 1}, nil
}

// ListPolicies lists the policies of a tier, or (empty) all. API keys of a
// configuration have none of their own.
func (p *Provider) ListPolicies(_ context.Context, tier, apiKeyID string, page policy.Page) ([]policy.PolicyRecord, error) {
	all := p.policies()
	all = slices.DeleteFunc(all, func(r policy.PolicyRecord) bool {
		return apiKeyID != "" || tier != "" && r.Tier != tier
	})
	return pageOf(all, func(r policy.PolicyRecord) string { return r.ID }, page), nil
}

// GetPolicy finds a policy by its id.
func (p *Provider) GetPolicy(_ context.Context, id string) (policy.PolicyRecord, error) {
	for _, r := range p.policies() {
		if r.ID == id {
			return r, nil
		}
	}
	return policy.PolicyRecord{}, fmt.Errorf("policy %s: %w", id, policy.ErrNotFound)
}

func (p *Provider) policies() (all []policy.PolicyRecord) {
	for _, t := range p.Tiers {
		for _, written := range t.Policies {
			all = append(all, policy.PolicyRecord{Policy: written.policy(t.Name), Version: 1})
		}
	}
	return all
}

// ListKeys lists the API keys of a tier, or (empty) all.
func (p *Provider) ListKeys(_ context.Context, tier string, page policy.Page) ([]policy.KeyRecord, error) {
	var all []policy.KeyRecord
	for _, k := range p.APIKeys {
		if tier == "" || k.Tier == tier {
			all = append(all, k.record())
		}
	}
	return pageOf(all, func(k policy.KeyRecord) string { return k.ID }, page), nil
}

// GetKey finds an API key by its name, which is its id.
func (p *Provider) GetKey(_ context.Context, id string) (policy.KeyRecord, error) {
	for _, k := range p.APIKeys {
		if k.Name == id {
			return k.record(), nil
		}
	}
	return policy.KeyRecord{}, fmt.Errorf("API key %s: %w", id, policy.ErrNotFound)
}

func (k APIKey) record() policy.KeyRecord {
	sum, _ := k.sum() // Provision has checked it
	return policy.KeyRecord{ID: k.Name, Client: k.Name, Tier: k.Tier, SHA256: sum, Version: 1}
}

// ListAudit lists nothing: a configuration's history is kept where it is written.
func (p *Provider) ListAudit(context.Context, policy.Page) ([]policy.AuditRecord, error) {
	return nil, nil
}

// pageOf sorts by name and returns the part that a page asks for.
func pageOf[T any](all []T, name func(T) string, page policy.Page) []T {
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(name(a), name(b)) })
	start := 0
	for page.After != "" && start < len(all) && name(all[start]) <= page.After {
		start++
	}
	return all[start:min(start+page.PageLimit(), len(all))]
}
