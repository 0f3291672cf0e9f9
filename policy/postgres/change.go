package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const (
	channel      = "rate_limit_changed"
	adminTimeout = 10 * time.Second // of a change or read for the admin API

	// ownDelay is how long a change waits until this instance hears of it, as the
	// others do, before it looks by itself. It nearly always takes a millisecond.
	ownDelay = 250 * time.Millisecond
)

// transaction is a change while it is made. Changes are made one after the
// other, in all instances, so what it reads stays true until it ends.
type transaction struct {
	pgx.Tx
	epoch int64
	now   time.Time
}

// beginChange waits for all other changes, and tells the triggers of the tables
// that this one announces itself.
const beginChange = "UPDATE rate_limit_epoch SET epoch = epoch + 1 RETURNING epoch, clock_timestamp(), set_config('rate_limit.own_change', 'on', true)"

// errUnchanged ends a transaction that found nothing to do; it is no failure.
var errUnchanged = errors.New("unchanged")

// change runs f in a transaction that all instances hear of.
func (c *client) change(ctx context.Context, f func(ctx context.Context, tx *transaction) error) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	var epoch int64
	err := pgx.BeginFunc(ctx, c.pool, func(t pgx.Tx) error {
		tx := &transaction{Tx: t}
		err := tx.QueryRow(ctx, beginChange).Scan(&tx.epoch, &tx.now, nil)
		if err != nil {
			return err
		}
		tx.now, epoch = tx.now.UTC(), tx.epoch
		if err := f(ctx, tx); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT pg_notify($1, '')", channel)
		return err
	})
	switch {
	case errors.Is(err, errUnchanged):
		return nil
	case err != nil:
		return err
	}
	if !c.await(ctx, epoch) {
		c.compare(lookTimeout) // whoever made the change shall see it
	}
	return nil
}

// policiesChanged marks that tiers or policies are other ones now.
func (tx *transaction) policiesChanged(ctx context.Context) error {
	_, err := tx.Exec(ctx, "UPDATE rate_limit_epoch SET policies_epoch = epoch")
	return err
}

// keysChanged marks that these hashes mean something else now.
func (tx *transaction) keysChanged(ctx context.Context, sums ...[32]byte) error {
	_, err := tx.Exec(ctx, "INSERT INTO rate_limit_key_changes (epoch, sha256) SELECT $1, unnest($2::bytea[])", tx.epoch, slicesOf(sums))
	return err
}

// allKeysChanged marks that any hash may mean something else now.
func (tx *transaction) allKeysChanged(ctx context.Context) error {
	_, err := tx.Exec(ctx, "INSERT INTO rate_limit_key_changes (epoch) VALUES ($1)", tx.epoch)
	return err
}

func slicesOf(sums [][32]byte) [][]byte {
	all := make([][]byte, len(sums))
	for i := range sums {
		all[i] = sums[i][:]
	}
	return all
}

// audit records the change of a record; before or after is nil.
func (tx *transaction) audit(ctx context.Context, c policy.Change, kind, key string, before, after any) error {
	old, errOld := auditJSON(before)
	now, errNow := auditJSON(after)
	if err := errors.Join(errOld, errNow); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "INSERT INTO rate_limit_audit (at, actor, action, kind, key, before, after) VALUES ($1, $2, $3, $4, $5, $6, $7)",
		tx.now, storableForm(c.Actor), storableForm(c.Action), kind, key, old, now)
	return err
}

func auditJSON(record any) (json.RawMessage, error) {
	if record == nil {
		return nil, nil
	}
	return json.Marshal(record)
}

// Record adds a record to the audit of what is no change of what is stored.
func (c *client) Record(ctx context.Context, by policy.Change, kind, key string, before json.RawMessage) error {
	return c.change(ctx, func(ctx context.Context, tx *transaction) error { return tx.audit(ctx, by, kind, key, before, nil) })
}

// ListAudit lists changes, the newest first.
func (c *client) ListAudit(ctx context.Context, p policy.Page) ([]policy.AuditRecord, error) {
	before := int64(1<<63 - 1)
	if p.After != "" {
		var err error
		if before, err = strconv.ParseInt(p.After, 10, 64); err != nil {
			return nil, &policy.FieldError{Field: "after", Detail: fmt.Sprintf("%q is not the id of an audit record; take it from the page before", p.After)}
		}
	}
	return list(ctx, c, auditRow.record,
		"SELECT "+auditColumns+" FROM rate_limit_audit WHERE id < $1 ORDER BY id DESC LIMIT $2", before, p.PageLimit())
}

// list runs a query and returns its rows as records.
func list[Row, Record any](ctx context.Context, c *client, record func(Row) Record, sql string, args ...any) ([]Record, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	rows, err := collect[Row](ctx, c.pool, sql, args...)
	records := make([]Record, len(rows))
	for i, r := range rows {
		records[i] = record(r)
	}
	return records, err
}

// querier is a connection, a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func collect[Row any](ctx context.Context, q querier, sql string, args ...any) ([]Row, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[Row])
}

// one runs a query for one row; none is an error that names it.
func one[Row any](ctx context.Context, q querier, kind, name, sql string) (r Row, err error) {
	if !storable(name) {
		return r, notFound(kind, name)
	}
	rows, err := q.Query(ctx, sql, name)
	if err != nil {
		return r, err
	}
	r, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Row])
	if errors.Is(err, pgx.ErrNoRows) {
		return r, notFound(kind, name)
	}
	return r, err
}

func notFound(kind, name string) error {
	return fmt.Errorf("%s %q %w", kind, name, policy.ErrNotFound)
}

// current compares the version that a change is based on with the stored one.
func current(kind, name string, stored, based int64) error {
	if stored != based {
		return fmt.Errorf("%s %s %w: it is at version %d, and the change was made to %d; read it again", kind, name, policy.ErrConflict, stored, based)
	}
	return nil
}

// exists asks whether a query has rows.
func (tx *transaction) exists(ctx context.Context, sql string, args ...any) (found bool, err error) {
	err = tx.QueryRow(ctx, "SELECT EXISTS ("+sql+")", args...).Scan(&found)
	return found, err
}

// checkTier reports a tier that is not stored.
func (tx *transaction) checkTier(ctx context.Context, name string) error {
	rows, err := tx.Query(ctx, "SELECT name FROM rate_limit_tiers ORDER BY name")
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if !slices.Contains(names, name) {
		return policy.UnknownTier(name, names)
	}
	return nil
}

// storable reports whether Postgres can hold a text at all.
func storable(texts ...string) bool {
	for _, s := range texts {
		if !utf8.ValidString(s) || strings.Contains(s, "\x00") {
			return false
		}
	}
	return true
}

// storableForm replaces what Postgres cannot hold.
func storableForm(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
