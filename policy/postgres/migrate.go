package postgres

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/caddy-tollgate/ratelimit/policy"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	migrationsTable = "rate_limit_migrations"

	// migrationLock is the first half of the advisory lock under which schemas
	// are migrated; the second is of the schema.
	migrationLock = 0x746f6c6c // "toll"
)

// Migrate brings the schema in the database up to date, and stores the first
// tiers in a new one. Any number of instances may call it at once: one does the
// work, the others wait for it. It returns the versions that it applied. Placeholders
// in the connection string are replaced.
//
// The tables are created in the first schema of the connection's search_path.
func Migrate(ctx context.Context, dsn string) (applied []int64, err error) {
	dsn, err = fillIn(dsn)
	if err != nil {
		return nil, err
	}
	config, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	return migrate(ctx, config.ConnConfig)
}

func migrate(ctx context.Context, config *pgx.ConnConfig) (applied []int64, err error) {
	db := stdlib.OpenDB(*config)
	defer db.Close()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	seed := goose.NewGoMigration(2, &goose.GoFunc{RunTx: seedTiers}, &goose.GoFunc{RunTx: keepTiers})
	p, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(migrationsTable), goose.WithSessionLocker(schemaLock{}), goose.WithGoMigrations(seed),
		goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return nil, err
	}
	results, err := p.Up(ctx)
	for _, r := range results {
		if r.Error == nil {
			applied = append(applied, r.Source.Version)
		}
	}
	if err != nil {
		return applied, fmt.Errorf("migrate the schema of the rate limits: %w", err)
	}
	return applied, nil
}

// schemaLock waits in the server for the lock, so that whoever comes second goes
// on as soon as the first is done.
type schemaLock struct{}

// SessionLock takes the lock.
func (schemaLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1, hashtext(current_schema()))", migrationLock)
	return err
}

// SessionUnlock releases the lock.
func (schemaLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1, hashtext(current_schema()))", migrationLock)
	return err
}

// seedTiers stores what a new store starts with.
func seedTiers(ctx context.Context, tx *sql.Tx) error {
	for _, p := range policy.SeedTiers() {
		if _, err := tx.ExecContext(ctx, "INSERT INTO rate_limit_tiers (name) VALUES ($1)", p.Tier); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO rate_limit_policies (id, tier, route, scope, limit_count, window_us, algorithm, cost, mode)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			p.ID, p.Tier, p.Route, p.Scope(), p.Limit.Count, p.Limit.Window.Microseconds(), string(p.Algorithm), p.Cost, string(p.Mode))
		if err != nil {
			return err
		}
	}
	return nil
}

// keepTiers undoes nothing: tiers may be in use by now.
func keepTiers(context.Context, *sql.Tx) error { return nil }

var _ lock.SessionLocker = schemaLock{}
