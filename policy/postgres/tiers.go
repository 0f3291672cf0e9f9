package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const selectTier = "SELECT " + tierColumns + " FROM rate_limit_tiers WHERE name = $1"

// ListTiers lists tiers by name.
func (c *client) ListTiers(ctx context.Context, p policy.Page) ([]policy.TierRecord, error) {
	if !storable(p.After) {
		return nil, nil
	}
	return list(ctx, c, tierRow.record,
		"SELECT "+tierColumns+" FROM rate_limit_tiers WHERE name > $1 ORDER BY name LIMIT $2", p.After, p.PageLimit())
}

// GetTier returns one tier.
func (c *client) GetTier(ctx context.Context, name string) (policy.TierRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	r, err := one[tierRow](ctx, c.pool, "tier", name, selectTier)
	return r.record(), err
}

// CreateTier stores a tier without policies. Clients of it have no limit until
// it has one.
func (c *client) CreateTier(ctx context.Context, by policy.Change, t policy.TierRecord) (policy.TierRecord, error) {
	if err := policy.CheckTier(t); err != nil {
		return t, err
	}
	err := c.change(ctx, func(ctx context.Context, tx *transaction) error {
		if err := tx.freeTier(ctx, t.Name); err != nil {
			return err
		}
		t.Version, t.CreatedAt, t.UpdatedAt = 1, tx.now, tx.now
		_, err := tx.Exec(ctx, "INSERT INTO rate_limit_tiers ("+tierColumns+") VALUES ($1, $2, $3, $4)", t.Name, t.Version, t.CreatedAt, t.UpdatedAt)
		if err != nil {
			return err
		}
		return tx.tierChanged(ctx, by, t.Name, nil, t)
	})
	return t, err
}

// UpdateTier renames a tier; its policies and API keys go with it.
func (c *client) UpdateTier(ctx context.Context, by policy.Change, name string, t policy.TierRecord) (policy.TierRecord, error) {
	err := c.change(ctx, func(ctx context.Context, tx *transaction) error {
		before, err := tx.tier(ctx, name, t.Version)
		if err != nil {
			return err
		}
		if err := policy.CheckTierChange(before, t); err != nil {
			return err
		}
		if t.Name != name {
			if err := tx.freeTier(ctx, t.Name); err != nil {
				return err
			}
		}
		t.Version, t.CreatedAt, t.UpdatedAt = before.Version+1, before.CreatedAt, tx.now
		if err := tx.renameTier(ctx, name, t); err != nil {
			return err
		}
		return tx.tierChanged(ctx, by, t.Name, before, t)
	})
	return t, err
}

// renameTier writes a tier, and takes its members along. The schema judges them anew then; if it
// refuses one, which only one that was written by hand can be, the error names it.
func (tx *transaction) renameTier(ctx context.Context, name string, t policy.TierRecord) error {
	err := pgx.BeginFunc(ctx, tx, func(step pgx.Tx) error {
		_, err := step.Exec(ctx, "UPDATE rate_limit_tiers SET name = $2, version = $3, updated_at = $4 WHERE name = $1", name, t.Name, t.Version, t.UpdatedAt)
		if err != nil {
			return err
		}
		return tx.membersMoved(ctx, name, t.Name)
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == checkViolation {
		return tx.unmovable(ctx, name, refused.ConstraintName)
	}
	return err
}

// checkViolation is what Postgres calls a row that a CHECK of its table refuses.
const checkViolation = "23514"

// unmovable names the policies of a tier that cannot be used.
func (tx *transaction) unmovable(ctx context.Context, tier, constraint string) error {
	rows, err := collect[policyRow](ctx, tx, "SELECT "+policyColumns+" FROM rate_limit_policies WHERE tier = $1 ORDER BY id", tier)
	if err != nil {
		return err
	}
	var ids []string
	for _, r := range rows {
		if _, err := policy.CheckPolicy(r.record().Policy); err != nil {
			ids = append(ids, r.ID)
		}
	}
	return fmt.Errorf("tier %s %w by policies that were written by hand and cannot be used (%s; the schema's %s); change or delete them, then rename the tier",
		tier, policy.ErrInUse, strings.Join(ids, ", "), constraint)
}

// membersMoved gives the records that went along with a tier's name a new
// version.
func (tx *transaction) membersMoved(ctx context.Context, from, to string) error {
	if from == to {
		return nil
	}
	for _, table := range []string{"rate_limit_policies", "rate_limit_api_keys"} {
		if _, err := tx.Exec(ctx, "UPDATE "+table+" SET version = version + 1, updated_at = $2 WHERE tier = $1", to, tx.now); err != nil {
			return err
		}
	}
	return tx.allKeysChanged(ctx)
}

// DeleteTier deletes a tier that no policy and no API key is in.
func (c *client) DeleteTier(ctx context.Context, by policy.Change, name string, version int64) error {
	return c.change(ctx, func(ctx context.Context, tx *transaction) error {
		before, err := tx.tier(ctx, name, version)
		if err != nil {
			return err
		}
		var policies, keys int64
		err = tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM rate_limit_policies WHERE tier = $1), (SELECT count(*) FROM rate_limit_api_keys WHERE tier = $1)`, name).
			Scan(&policies, &keys)
		if err != nil {
			return err
		}
		if err := policy.TierUse(name, policies, keys); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "DELETE FROM rate_limit_tiers WHERE name = $1", name); err != nil {
			return err
		}
		return tx.tierChanged(ctx, by, name, before, nil)
	})
}

// tier returns a tier that is at a version.
func (tx *transaction) tier(ctx context.Context, name string, version int64) (policy.TierRecord, error) {
	r, err := one[tierRow](ctx, tx, "tier", name, selectTier)
	if err == nil {
		err = current("tier", name, r.Version, version)
	}
	return r.record(), err
}

func (tx *transaction) freeTier(ctx context.Context, name string) error {
	taken, err := tx.exists(ctx, "SELECT FROM rate_limit_tiers WHERE name = $1", name)
	if err == nil && taken {
		err = fmt.Errorf("tier %s %w", name, policy.ErrExists)
	}
	return err
}

func (tx *transaction) tierChanged(ctx context.Context, by policy.Change, name string, before, after any) error {
	if err := tx.policiesChanged(ctx); err != nil {
		return err
	}
	return tx.audit(ctx, by, policy.KindTier, name, before, after)
}
