package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// ListKeys lists the keys of a tier, or (empty) all, by id.
func (c *client) ListKeys(ctx context.Context, tier string, p policy.Page) ([]policy.KeyRecord, error) {
	if !storable(tier, p.After) {
		return nil, nil
	}
	return list(ctx, c, keyRow.record, keySelect+" WHERE k.id > $1 AND ($2 = '' OR k.tier = $2) ORDER BY k.id LIMIT $3", p.After, tier, p.PageLimit())
}

// GetKey returns one key.
func (c *client) GetKey(ctx context.Context, id string) (policy.KeyRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	r, err := one[keyRow](ctx, c.pool, "API key", id, keySelect+" WHERE k.id = $1")
	return r.record(), err
}

// CreateKey stores a key. Without an id it gets one. A second call with the same
// idempotency, within a day, changes nothing and returns what the first did.
func (c *client) CreateKey(ctx context.Context, by policy.Change, k policy.KeyRecord, idempotency string, replay []byte) (policy.KeyRecord, []byte, error) {
	if k.ID == "" {
		k.ID = policy.NewID("k")
	}
	kept := replay
	err := c.change(ctx, func(ctx context.Context, tx *transaction) error {
		first, answer, err := tx.replay(ctx, idempotency)
		if err != nil {
			return err
		}
		if first != nil {
			k, kept = *first, answer
			return errUnchanged
		}
		if err := policy.CheckNewKey(k, tx.now); err != nil {
			return err
		}
		if err := tx.checkNewKey(ctx, k); err != nil {
			return err
		}
		k.Version, k.CreatedAt, k.UpdatedAt, k.LastUsedAt = 1, tx.now, tx.now, time.Time{}
		_, err = tx.Exec(ctx, `INSERT INTO rate_limit_api_keys (id, prefix, client, tier, expires_at, revoked_at, version, created_at, updated_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			k.ID, k.Prefix, k.Client, k.Tier, orNull(k.ExpiresAt), orNull(k.RevokedAt), k.Version, k.CreatedAt, k.UpdatedAt)
		if err != nil {
			return err
		}
		if err := tx.writeHashes(ctx, k); err != nil {
			return err
		}
		if err := tx.keepReplay(ctx, idempotency, k, replay); err != nil {
			return err
		}
		return tx.keyChanged(ctx, by, k.ID, nil, k, k.Sums())
	})
	return k, kept, err
}

// UpdateKey replaces a key's record: its client, tier, expiry, revocation, and
// on a rotation its hashes. When it was made and last used stays.
func (c *client) UpdateKey(ctx context.Context, by policy.Change, k policy.KeyRecord) (policy.KeyRecord, error) {
	err := c.change(ctx, func(ctx context.Context, tx *transaction) error {
		before, err := tx.key(ctx, k.ID, k.Version)
		if err != nil {
			return err
		}
		if err := policy.CheckKeyRecord(k); err != nil {
			return err
		}
		if err := tx.checkKey(ctx, k); err != nil {
			return err
		}
		k.Version, k.CreatedAt, k.UpdatedAt, k.LastUsedAt = before.Version+1, before.CreatedAt, tx.now, before.LastUsedAt
		_, err = tx.Exec(ctx, `UPDATE rate_limit_api_keys SET prefix = $2, client = $3, tier = $4, expires_at = $5, revoked_at = $6, version = $7, updated_at = $8 WHERE id = $1`,
			k.ID, k.Prefix, k.Client, k.Tier, orNull(k.ExpiresAt), orNull(k.RevokedAt), k.Version, k.UpdatedAt)
		if err != nil {
			return err
		}
		if err := tx.writeHashes(ctx, k); err != nil {
			return err
		}
		return tx.keyChanged(ctx, by, k.ID, before, k, append(before.Sums(), k.Sums()...))
	})
	return k, err
}

// DeleteKey deletes a key and the policies that are its own.
func (c *client) DeleteKey(ctx context.Context, by policy.Change, id string, version int64) error {
	return c.change(ctx, func(ctx context.Context, tx *transaction) error {
		before, err := tx.key(ctx, id, version)
		if err != nil {
			return err
		}
		own, err := collect[policyRow](ctx, tx, "SELECT "+policyColumns+" FROM rate_limit_policies WHERE api_key_id = $1 ORDER BY id", id)
		if err != nil {
			return err
		}
		for _, p := range own {
			if err := tx.deletePolicy(ctx, by, p.record()); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, "DELETE FROM rate_limit_api_keys WHERE id = $1", id); err != nil {
			return err
		}
		return tx.keyChanged(ctx, by, id, before, nil, before.Sums())
	})
}

// key returns a key that is at a version.
func (tx *transaction) key(ctx context.Context, id string, version int64) (policy.KeyRecord, error) {
	r, err := one[keyRow](ctx, tx, "API key", id, keySelect+" WHERE k.id = $1")
	if err == nil {
		err = current("API key", id, r.Version, version)
	}
	return r.record(), err
}

func (tx *transaction) writeHashes(ctx context.Context, k policy.KeyRecord) error {
	if _, err := tx.Exec(ctx, "DELETE FROM rate_limit_api_key_hashes WHERE key_id = $1", k.ID); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO rate_limit_api_key_hashes (sha256, key_id) VALUES ($1, $2)", k.SHA256[:], k.ID); err != nil {
		return err
	}
	if k.PreviousSHA256 == [32]byte{} {
		return nil
	}
	_, err := tx.Exec(ctx, "INSERT INTO rate_limit_api_key_hashes (sha256, key_id, until) VALUES ($1, $2, $3)", k.PreviousSHA256[:], k.ID, k.PreviousUntil)
	return err
}

func (tx *transaction) keyChanged(ctx context.Context, by policy.Change, id string, before, after any, sums [][32]byte) error {
	if err := tx.keysChanged(ctx, sums...); err != nil {
		return err
	}
	return tx.audit(ctx, by, policy.KindKey, id, before, after)
}

func (tx *transaction) checkNewKey(ctx context.Context, k policy.KeyRecord) error {
	taken, err := tx.exists(ctx, "SELECT FROM rate_limit_api_keys WHERE id = $1", k.ID)
	if err != nil {
		return err
	}
	if taken {
		return fmt.Errorf("API key %s %w", k.ID, policy.ErrExists)
	}
	return tx.checkKey(ctx, k)
}

// checkKey judges a key beside the other records. Its error does not say whose
// key has the same hash.
func (tx *transaction) checkKey(ctx context.Context, k policy.KeyRecord) error {
	if err := tx.checkTier(ctx, k.Tier); err != nil {
		return err
	}
	taken, err := tx.exists(ctx, "SELECT FROM rate_limit_api_key_hashes WHERE sha256 = ANY ($1) AND key_id <> $2", slicesOf(k.Sums()), k.ID)
	if err == nil && taken {
		err = fmt.Errorf("an API key with this hash %w; make another key", policy.ErrExists)
	}
	return err
}

// replay is what is kept under idempotency; nil if nothing is.
func (tx *transaction) replay(ctx context.Context, idempotency string) (k *policy.KeyRecord, kept []byte, err error) {
	if idempotency == "" {
		return nil, nil, nil
	}
	var record, sum []byte
	err = tx.QueryRow(ctx, "SELECT key, sha256, kept FROM rate_limit_idempotency WHERE idempotency = $1 AND at > $2",
		idempotency, tx.now.Add(-policy.IdempotencyRetention)).Scan(&record, &sum, &kept)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	k = new(policy.KeyRecord)
	err = json.Unmarshal(record, k)
	copy(k.SHA256[:], sum)
	return k, kept, err
}

func (tx *transaction) keepReplay(ctx context.Context, idempotency string, k policy.KeyRecord, replay []byte) error {
	if idempotency == "" {
		return nil
	}
	record, err := json.Marshal(k)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO rate_limit_idempotency (idempotency, at, key, sha256, kept) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (idempotency) DO UPDATE SET at = excluded.at, key = excluded.key, sha256 = excluded.sha256, kept = excluded.kept`,
		idempotency, tx.now, json.RawMessage(record), k.SHA256[:], replay)
	return err
}
