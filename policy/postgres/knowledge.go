package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// horizon is how long ago the database may have been read for the list of
// changed keys to be whole; it is kept twice as long.
const (
	horizon            = 12 * time.Hour
	keyChangeRetention = 24 * time.Hour
)

// knowledge is what was read of tiers and policies, and when. Nothing in it
// changes.
type knowledge struct {
	snapshot *policy.Snapshot
	tiers    []policy.TierRecord
	policies []policy.PolicyRecord // that apply
	refused  []policy.Refused      // rows that cannot be used
	state    epochRow
	at       time.Time // when it was last found to be current
}

// epochRow is the state of the store.
type epochRow struct {
	Store         string `db:"store"`
	Epoch         int64  `db:"epoch"`
	PoliciesEpoch int64  `db:"policies_epoch"`
}

const selectEpoch = "SELECT store, epoch, policies_epoch FROM rate_limit_epoch"

func readEpoch(ctx context.Context, q querier) (epochRow, error) {
	rows, err := q.Query(ctx, selectEpoch)
	if err != nil {
		return epochRow{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[epochRow])
}

// update compares the epoch and reads what changed since.
func (c *client) update(ctx context.Context, conn *pgx.Conn) error {
	state, err := readEpoch(ctx, conn)
	if err != nil {
		return explain(err)
	}
	if old := c.known.Load(); old != nil && old.state == state && c.keys.isAt(state) {
		c.confirm(old)
		return nil
	}
	c.learning.Lock()
	defer c.learning.Unlock()
	old := c.known.Load()
	// One instant for all that is read.
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if state, err = readEpoch(ctx, tx); err != nil {
			return err
		}
		next := old
		if old == nil || old.state.Store != state.Store || old.state.PoliciesEpoch != state.PoliciesEpoch {
			if next, err = readPolicies(ctx, tx, old); err != nil {
				return err
			}
		}
		// Policies first: a key may be in a tier that is new.
		c.learn(next, state)
		c.complain(c.logger(), next.refused)
		if err := c.keys.update(ctx, tx, state); err != nil {
			return err
		}
		c.tell()
		return nil
	})
}

// readPolicies reads all tiers and policies. In the place of those that cannot be
// used, what was known before applies, as far as it is known.
func readPolicies(ctx context.Context, q querier, before *knowledge) (*knowledge, error) {
	tiers, err := collect[tierRow](ctx, q, "SELECT "+tierColumns+" FROM rate_limit_tiers ORDER BY name")
	if err != nil {
		return nil, err
	}
	policies, err := collect[policyRow](ctx, q, "SELECT "+policyColumns+" FROM rate_limit_policies ORDER BY id")
	if err != nil {
		return nil, err
	}
	k := new(knowledge)
	for _, r := range tiers {
		k.tiers = append(k.tiers, r.record())
	}
	stored := make([]policy.PolicyRecord, len(policies))
	for i, r := range policies {
		stored[i] = r.record()
	}
	var used []policy.PolicyRecord
	if before != nil {
		used = before.policies
	}
	sound, err := policy.CompileSound(k.tiers, stored, used)
	if err != nil {
		return nil, fmt.Errorf("the stored policies are not usable: %w", err)
	}
	k.snapshot, k.policies, k.refused = sound.Snapshot, sound.Policies, sound.Refused
	return k, nil
}

// learn makes k what is known, as of now.
func (c *client) learn(k *knowledge, state epochRow) {
	next := *k
	next.state, next.at = state, time.Now()
	c.known.Store(&next)
	c.askToSave()
}

// confirm notes that what is known is current, if it is still that.
func (c *client) confirm(k *knowledge) {
	next := *k
	next.at = time.Now()
	c.known.CompareAndSwap(k, &next)
	c.askToSave()
}

func (c *client) askToSave() {
	select {
	case c.saves <- struct{}{}:
	default: // it is about to
	}
}

// tell wakes those that wait for news.
func (c *client) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.news)
	c.news = make(chan struct{})
}

// await waits until this instance decides by an epoch, for a short while. It
// reports false if it does not by then.
func (c *client) await(ctx context.Context, epoch int64) bool {
	c.mu.Lock()
	started := c.started
	c.mu.Unlock()
	if !started {
		return true // nothing is decided here yet
	}
	timeout := time.After(ownDelay)
	for {
		c.mu.Lock()
		news := c.news
		c.mu.Unlock()
		if c.keys.epochIs() >= epoch {
			return true
		}
		select {
		case <-news:
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// prepare sees to it that requests have policies before anything was started.
func (c *client) prepare(ctx context.Context, p *Provider) {
	if k := c.known.Load(); k != nil && !k.at.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err := c.readFirst(ctx, p)
	switch {
	case err == nil:
	case schemaMissing(err) && !p.SkipMigrations:
		c.known.CompareAndSwap(nil, newKnowledge()) // the start will store it
	default:
		c.recall(p, explain(err))
	}
}

// readFirst reads the policies on a connection of the pool. If some cannot be
// used, what applied before is what was saved.
func (c *client) readFirst(ctx context.Context, p *Provider) error {
	return pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		state, err := readEpoch(ctx, tx)
		if err != nil {
			return err
		}
		k, err := readPolicies(ctx, tx, nil)
		if err == nil && len(k.refused) > 0 {
			if before, _ := c.readSaved(ctx, p.storage); before != nil {
				k, err = readPolicies(ctx, tx, before)
			}
		}
		if err != nil {
			return err
		}
		c.learn(k, state)
		c.complain(p.logger, k.refused)
		return nil
	})
}

// newKnowledge is what a new store starts with.
func newKnowledge() *knowledge {
	k := &knowledge{snapshot: strictest}
	for _, p := range policy.SeedTiers() {
		k.tiers = append(k.tiers, policy.TierRecord{Name: p.Tier, Version: 1})
		k.policies = append(k.policies, p)
	}
	if snapshot, err := policy.Compile(k.tiers, k.policies); err == nil {
		k.snapshot = snapshot
	}
	return k
}
