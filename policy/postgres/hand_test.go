package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/jackc/pgx/v5"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// psql runs SQL as somebody does who has only psql, and whose search_path does
// not lead to the tables.
func psql(t *testing.T, dsn, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if len(args) == 0 {
		args = append(args, pgx.QueryExecModeSimpleProtocol)
	}
	if _, err := conn.Exec(t.Context(), "SET search_path TO pg_catalog"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (in *instance) epoch(t *testing.T) int64 {
	t.Helper()
	state, err := readEpoch(t.Context(), in.pool)
	if err != nil {
		t.Fatal(err)
	}
	return state.Epoch
}

// The instance never looks unasked here, so what arrives was announced.
func TestAChangeByHandIsAnnounced(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	in := started(t, &Provider{DSN: dsn, CacheTTL: caddy.Duration(maxCacheTTL)}, storageIn(t))
	key, record := in.newKey(t, "PRO")
	other, _ := in.newKey(t, "PRO")
	eventually(t, "the keys", func() bool { return in.works(key) && in.works(other) })
	before, err := in.GetPolicy(t.Context(), "default-pro")
	if err != nil {
		t.Fatal(err)
	}

	psql(t, dsn, "UPDATE public.rate_limit_policies SET limit_count = 5 WHERE tier = 'PRO'")
	eventually(t, "the limit", func() bool { return in.ceiling("PRO") == "5/1m" })
	before.Limit.Count = 7
	if _, err := in.UpdatePolicy(t.Context(), by, before); err == nil {
		t.Error("an admin overwrites what was changed by hand since")
	}
	psql(t, dsn, `UPDATE public.rate_limit_tiers SET name = 'GOLD' WHERE name = 'PRO'`)
	eventually(t, "the name of the tier", func() bool { k, ok := in.lookUp(key); return ok && k.Tier == "GOLD" && in.ceiling("GOLD") == "5/1m" })
	psql(t, dsn, "UPDATE public.rate_limit_api_keys SET revoked_at = now() WHERE id = $1", record.ID)
	eventually(t, "the end of the key", func() bool { return !in.works(key) && in.works(other) })
	psql(t, dsn, "UPDATE public.rate_limit_api_keys SET revoked_at = NULL WHERE id = $1", record.ID)
	eventually(t, "the key to work again", func() bool { return in.works(key) })
	psql(t, dsn, "DELETE FROM public.rate_limit_api_key_hashes WHERE key_id = $1", record.ID)
	eventually(t, "the end of its hash", func() bool { return !in.works(key) })
}

func (in *instance) lookUp(key string) (policy.APIKey, bool) {
	return in.APIKey(in.ctx, policy.HashKey(key))
}

func TestOneTransactionByHandIsOneChange(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	in := started(t, &Provider{DSN: dsn}, storageIn(t))
	_, record := in.newKey(t, "PRO")
	before := in.epoch(t)
	psql(t, dsn, `BEGIN;
		UPDATE public.rate_limit_policies SET limit_count = 5 WHERE tier = 'PRO';
		UPDATE public.rate_limit_policies SET limit_count = 6 WHERE tier = 'FREE';
		UPDATE public.rate_limit_api_keys SET tier = 'FREE';
		UPDATE public.rate_limit_api_keys SET expires_at = now();
		COMMIT`)
	if got := in.epoch(t) - before; got != 1 {
		t.Errorf("the epoch grew by %d", got)
	}
	var all int
	if err := in.pool.QueryRow(t.Context(), "SELECT count(*) FROM rate_limit_key_changes WHERE epoch > $1", before).Scan(&all); err != nil || all != 1 {
		t.Errorf("%d notes that keys changed, %v", all, err)
	}
	// when a key was used is no change
	psql(t, dsn, "UPDATE public.rate_limit_api_keys SET last_used_at = now() WHERE id = $1", record.ID)
	// the program's own change is one, and names the keys
	in.newKey(t, "PRO")
	if got := in.epoch(t) - before; got != 2 {
		t.Errorf("after one more change the epoch has grown by %d", got)
	}
	if err := in.pool.QueryRow(t.Context(), "SELECT count(*) FROM rate_limit_key_changes WHERE epoch > $1 AND sha256 IS NULL", before+1).Scan(&all); err != nil || all != 0 {
		t.Errorf("a change of one key forgets %d times what is known of all, %v", all, err)
	}
}

// lenient takes back what the schema refuses, as one that is older did.
const lenient = `ALTER TABLE public.rate_limit_policies DROP CONSTRAINT rate_limit_policies_algorithm, DROP CONSTRAINT rate_limit_policies_methods,
	DROP CONSTRAINT rate_limit_policies_pattern, DROP CONSTRAINT rate_limit_policies_exact;`

func TestARowThatCannotBeUsedHoldsNothingUpAndLoosensNothing(t *testing.T) {
	t.Parallel()
	dsn, storage := server.NewDatabase(t), storageIn(t)
	in := started(t, &Provider{DSN: dsn}, storage)
	in.setLimit(t, "PRO", 11)
	psql(t, dsn, lenient+`
		INSERT INTO public.rate_limit_policies (id, tier, route, methods, scope, limit_count, window_us, algorithm, mode, burst) VALUES
			('bracket', 'FREE', '/[', '{}', 'x', 5, 60000000, 'token_bucket', 'enforce', 0),
			('small', 'FREE', '/small', '{get}', 'y', 5, 60000000, 'token_bucket', 'enforce', 0),
			('burst', 'FREE', '/burst', '{}', 'z', 5, 60000000, 'fixed_window', 'enforce', 9);
		UPDATE public.rate_limit_policies SET limit_count = 301, window_us = 31622400000000 WHERE tier = 'PRO';
		UPDATE public.rate_limit_policies SET limit_count = 9 WHERE tier = 'FREE' AND route = '*'`)
	check := func(in *instance) {
		t.Helper()
		eventually(t, "what can be used to apply", func() bool { return in.ceiling("FREE") == "9/1m" })
		if got := in.ceiling("PRO"); got != "11/1m" {
			t.Errorf("in the place of a ceiling that cannot be used, %s", got)
		}
		for _, path := range []string{"/small", "/burst"} {
			applied := in.Snapshot().AppendMatches(nil, policy.Client{Tier: "FREE"}, "GET", path)
			if got := applied[0].Rule.Limit.String(); len(applied) != 2 || got != "30/1m" {
				t.Errorf("%s has %d limits, the first %s", path, len(applied), got)
			}
		}
		if got := len(in.Refused()); got != 4 {
			t.Errorf("%d rows are told to be unusable", got)
		}
	}
	check(in)
	in.setLimit(t, "ENTERPRISE", 12)
	eventually(t, "another change", func() bool { return in.ceiling("ENTERPRISE") == "12/1m" })
	if got := in.logged("a stored policy cannot be used"); got != 4 {
		t.Errorf("4 rows were logged %d times: %v", got, in.logs.All())
	}
	eventually(t, "the policies to be saved", func() bool {
		k, err := in.readSaved(t.Context(), storage)
		return err == nil && len(k.snapshot.AppendMatches(nil, policy.Client{Tier: "FREE"}, "GET", "/burst")) == 2
	})
	check(started(t, &Provider{DSN: dsn}, storage)) // as after a restart

	psql(t, dsn, "UPDATE public.rate_limit_policies SET limit_count = 13, window_us = 1000000 WHERE tier = 'PRO'; DELETE FROM public.rate_limit_policies WHERE route <> '*'")
	eventually(t, "what was mended", func() bool { return in.ceiling("PRO") == "13/1s" && len(in.Refused()) == 0 })
}

// A tier cannot take a row along that the schema refuses; whoever renames it hears which, and
// nothing is changed.
func TestATierWithARowThatCannotBeUsedSaysSoWhenItIsRenamed(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	in := started(t, &Provider{DSN: dsn}, storageIn(t))
	psql(t, dsn, lenient+`
		INSERT INTO public.rate_limit_policies (id, tier, route, methods, scope, limit_count, window_us, algorithm, mode, burst)
			VALUES ('burst', 'FREE', '/burst', '{}', 'z', 5, 60000000, 'fixed_window', 'enforce', 9);
		ALTER TABLE public.rate_limit_policies ADD CONSTRAINT rate_limit_policies_algorithm CHECK (burst = 0 OR algorithm = 'token_bucket') NOT VALID`)
	before, err := in.GetTier(t.Context(), "FREE")
	if err != nil {
		t.Fatal(err)
	}
	renamed := before
	renamed.Name = "BASIC"
	_, err = in.UpdateTier(t.Context(), by, "FREE", renamed)
	if !errors.Is(err, policy.ErrInUse) || !strings.Contains(err.Error(), "(burst;") {
		t.Fatalf("got %v, want that the policy burst is in the way", err)
	}
	if after, err := in.GetTier(t.Context(), "FREE"); err != nil || after != before {
		t.Errorf("the tier is now %+v, %v", after, err)
	}
	unusable, err := in.GetPolicy(t.Context(), "burst")
	if err == nil {
		err = in.DeletePolicy(t.Context(), by, "burst", unusable.Version)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := in.UpdateTier(t.Context(), by, "FREE", renamed); err != nil || got.Name != "BASIC" {
		t.Errorf("without the row: %+v, %v", got, err)
	}
	eventually(t, "its ceiling to go with it", func() bool { return in.ceiling("BASIC") == "60/1m" })
}

// Bad rows that were there before do not keep a schema from becoming stricter.
func TestASchemaWithRowsThatCannotBeUsedIsMigrated(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	if _, err := Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	down, err := migrations.ReadFile("migrations/00003_changes_by_hand.sql")
	if err != nil {
		t.Fatal(err)
	}
	psql(t, dsn, "SET search_path TO public;"+afterDown(string(down))+`
		UPDATE rate_limit_policies SET methods = '{get}' WHERE tier = 'PRO';
		DELETE FROM rate_limit_migrations WHERE version_id = 3`)
	applied, err := Migrate(t.Context(), dsn)
	if err != nil || len(applied) != 1 {
		t.Fatal(applied, err)
	}
	in := started(t, &Provider{DSN: dsn}, storageIn(t))
	if got := in.ceiling("PRO"); got != "30/1m" {
		t.Errorf("without a policy that can be used, PRO has %s", got)
	}
}

// cache_ttl holds whatever the connection is like that listens.
func TestWithoutAListenerChangesArriveWithinCacheTTL(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	writer := started(t, &Provider{DSN: dsn}, storageIn(t))
	in := provisioned(t, &Provider{DSN: dsn, CacheTTL: ms(200), SkipMigrations: true}, storageIn(t))
	in.connConfig.Port = 1 // nobody is there
	in.connConfig.Fallbacks = nil
	if err := in.Start(); err != nil {
		t.Fatal(err)
	}
	for limit := int64(1); limit < 20; limit++ {
		writer.setLimit(t, "PRO", limit)
		eventually(t, "a change", func() bool {
			return in.Snapshot().AppendMatches(nil, policy.Client{Tier: "PRO"}, "GET", "/")[0].Rule.Limit.Count == limit
		})
	}
	if up, _, err := in.Health(); !up || in.logged("nobody listens") == 0 || in.logged("postgres is unavailable") != 0 {
		t.Errorf("the database answers, and health is %t, %v; logs %v", up, err, in.logs.All())
	}
}

// afterDown is the part of a migration that undoes it.
func afterDown(migration string) string {
	_, down, _ := strings.Cut(migration, "-- +goose Down\n")
	return down
}
