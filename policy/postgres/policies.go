package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const selectPolicy = "SELECT " + policyColumns + " FROM rate_limit_policies WHERE id = $1"

// ListPolicies lists the policies of a tier, of an API key, or (both empty) all,
// by id.
func (c *client) ListPolicies(ctx context.Context, tier, apiKeyID string, p policy.Page) ([]policy.PolicyRecord, error) {
	if !storable(tier, apiKeyID, p.After) {
		return nil, nil
	}
	return list(ctx, c, policyRow.record, "SELECT "+policyColumns+` FROM rate_limit_policies
		WHERE id > $1 AND ($2 = '' OR tier = $2) AND ($3 = '' OR api_key_id = $3) ORDER BY id LIMIT $4`, p.After, tier, apiKeyID, p.PageLimit())
}

// GetPolicy returns one policy.
func (c *client) GetPolicy(ctx context.Context, id string) (policy.PolicyRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	r, err := one[policyRow](ctx, c.pool, "policy", id, selectPolicy)
	return r.record(), err
}

// CreatePolicy stores a policy. Without an id it gets one.
func (c *client) CreatePolicy(ctx context.Context, by policy.Change, p policy.PolicyRecord) (policy.PolicyRecord, error) {
	if p.ID == "" {
		p.ID = policy.NewID("p")
	}
	err := c.change(ctx, func(ctx context.Context, tx *transaction) (err error) {
		if p.Policy, err = tx.checkPolicy(ctx, p.Policy); err != nil {
			return err
		}
		taken, err := tx.exists(ctx, "SELECT FROM rate_limit_policies WHERE id = $1", p.ID)
		if err != nil {
			return err
		}
		if taken {
			return fmt.Errorf("policy %s %w", p.ID, policy.ErrExists)
		}
		p.Version, p.CreatedAt, p.UpdatedAt = 1, tx.now, tx.now
		if err := tx.writePolicy(ctx, insertPolicy, p); err != nil {
			return err
		}
		return tx.policyChanged(ctx, by, p.ID, nil, p)
	})
	return p.Clone(), err
}

// UpdatePolicy replaces a policy.
func (c *client) UpdatePolicy(ctx context.Context, by policy.Change, p policy.PolicyRecord) (policy.PolicyRecord, error) {
	err := c.change(ctx, func(ctx context.Context, tx *transaction) error {
		before, err := tx.policy(ctx, p.ID, p.Version)
		if err != nil {
			return err
		}
		if p.Policy, err = tx.checkPolicy(ctx, p.Policy); err != nil {
			return err
		}
		if err := policy.CheckPolicyChange(before.Policy, p.Policy); err != nil {
			return err
		}
		p.Version, p.CreatedAt, p.UpdatedAt = before.Version+1, before.CreatedAt, tx.now
		if err := tx.writePolicy(ctx, updatePolicy, p); err != nil {
			return err
		}
		return tx.policyChanged(ctx, by, p.ID, before, p)
	})
	return p.Clone(), err
}

// DeletePolicy deletes a policy, unless it is the ceiling of anonymous clients.
func (c *client) DeletePolicy(ctx context.Context, by policy.Change, id string, version int64) error {
	return c.change(ctx, func(ctx context.Context, tx *transaction) error {
		before, err := tx.policy(ctx, id, version)
		if err != nil {
			return err
		}
		if before.Protected() {
			return policy.ErrProtected
		}
		return tx.deletePolicy(ctx, by, before)
	})
}

func (tx *transaction) deletePolicy(ctx context.Context, by policy.Change, p policy.PolicyRecord) error {
	if _, err := tx.Exec(ctx, "DELETE FROM rate_limit_policies WHERE id = $1", p.ID); err != nil {
		return err
	}
	return tx.policyChanged(ctx, by, p.ID, p, nil)
}

// policy returns a policy that is at a version.
func (tx *transaction) policy(ctx context.Context, id string, version int64) (policy.PolicyRecord, error) {
	r, err := one[policyRow](ctx, tx, "policy", id, selectPolicy)
	if err == nil {
		err = current("policy", id, r.Version, version)
	}
	return r.record(), err
}

const (
	insertPolicy = `INSERT INTO rate_limit_policies (` + policyColumns + `, scope)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`
	updatePolicy = `UPDATE rate_limit_policies SET (` + policyColumns + `, scope)
		= ROW ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) WHERE id = $1`
)

func (tx *transaction) writePolicy(ctx context.Context, sql string, p policy.PolicyRecord) error {
	methods := p.Methods
	if methods == nil {
		methods = []string{}
	}
	_, err := tx.Exec(ctx, sql, p.ID, orNull(p.Tier), orNull(p.APIKeyID), p.Route, methods,
		p.Limit.Count, p.Limit.Window.Microseconds(), p.Limit.Burst, p.Limit.MaxDelay.Microseconds(), string(p.Algorithm), p.Cost, string(p.Mode), string(p.OnError),
		p.Version, p.CreatedAt, p.UpdatedAt, p.Scope())
	return err
}

func (tx *transaction) policyChanged(ctx context.Context, by policy.Change, id string, before, after any) error {
	if err := tx.policiesChanged(ctx); err != nil {
		return err
	}
	return tx.audit(ctx, by, policy.KindPolicy, id, before, after)
}

// checkPolicy judges a policy by itself and beside the other records.
func (tx *transaction) checkPolicy(ctx context.Context, p policy.Policy) (policy.Policy, error) {
	p, err := policy.CheckPolicy(p)
	if err != nil {
		return p, err
	}
	if err := tx.checkOwner(ctx, p); err != nil {
		return p, err
	}
	var other string
	err = tx.QueryRow(ctx, `SELECT id FROM rate_limit_policies
		WHERE id <> $1 AND scope = $2 AND tier IS NOT DISTINCT FROM $3 AND api_key_id IS NOT DISTINCT FROM $4`,
		p.ID, p.Scope(), orNull(p.Tier), orNull(p.APIKeyID)).Scan(&other)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return p, nil
	case err != nil:
		return p, err
	}
	return p, policy.RouteTaken(p, other)
}

func (tx *transaction) checkOwner(ctx context.Context, p policy.Policy) error {
	if p.Tier != "" {
		return tx.checkTier(ctx, p.Tier)
	}
	if !storable(p.APIKeyID) {
		return policy.UnknownKey(p.APIKeyID)
	}
	known, err := tx.exists(ctx, "SELECT FROM rate_limit_api_keys WHERE id = $1", p.APIKeyID)
	if err == nil && !known {
		err = policy.UnknownKey(p.APIKeyID)
	}
	return err
}
