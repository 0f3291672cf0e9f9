package postgres

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestTenInstancesThatStartTogetherMigrateOnce(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	var mu sync.Mutex
	var all []int64
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			applied, err := Migrate(t.Context(), dsn)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, applied...)
		})
	}
	wg.Wait()
	if !slices.Equal(all, []int64{1, 2, 3}) {
		t.Errorf("applied %v in all, want 1, 2 and 3 once", all)
	}
	if again, err := Migrate(t.Context(), dsn); err != nil || len(again) != 0 {
		t.Errorf("a later migration applied %v, %v", again, err)
	}
	in := started(t, &Provider{DSN: dsn, SkipMigrations: true}, storageIn(t))
	if got := in.ceiling("PRO"); got != "600/1m" {
		t.Errorf("the first tiers are not there: PRO has %s", got)
	}
}

func TestWithoutMigrationsAMissingSchemaIsAnErrorThatSaysWhatToRun(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	in := started(t, &Provider{DSN: dsn, SkipMigrations: true}, storageIn(t))
	if got := in.ceiling("PRO"); got != "30/1m" || in.logged("strictest built-in limit") != 1 {
		t.Errorf("PRO has %s, logs: %v", got, in.logs.All())
	}
	eventually(t, "health to name the command", func() bool {
		_, _, err := in.Health()
		return err != nil && strings.Contains(err.Error(), "caddy rate-limit migrate")
	})
	if _, err := Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the policies", func() bool { return in.ceiling("PRO") == "600/1m" })
}

// What the rules in Go refuse, the schema refuses as well: somebody may write
// with psql.
func TestTheSchemaRefusesWhatNoRecordMayBe(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	if _, err := Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	const insert = `INSERT INTO rate_limit_policies (id, tier, api_key_id, route, scope, limit_count, window_us, burst, algorithm, cost, mode, on_error) VALUES `
	if _, err := conn.Exec(t.Context(), insert+`('good', 'FREE', NULL, '/x', 'route:/x', 5, 1000000, 0, 'token_bucket', 1, 'enforce', '')`); err != nil {
		t.Fatal("what is right is refused:", err)
	}
	for name, sql := range map[string]string{
		"a tier with a space":        `INSERT INTO rate_limit_tiers (name) VALUES ('a b')`,
		"a tier with a quote":        `INSERT INTO rate_limit_tiers (name) VALUES ('a"b')`,
		"a tier without a name":      `INSERT INTO rate_limit_tiers (name) VALUES ('')`,
		"a tier in use":              `DELETE FROM rate_limit_tiers WHERE name = 'FREE'`,
		"no owner":                   insert + `('a', NULL, NULL, '/y', 'route:/y', 5, 1000000, 0, 'token_bucket', 1, 'enforce', '')`,
		"an unknown tier":            insert + `('a', 'GOLD', NULL, '/y', 'route:/y', 5, 1000000, 0, 'token_bucket', 1, 'enforce', '')`,
		"an unknown key":             insert + `('a', NULL, 'k1', '/y', 'route:/y', 5, 1000000, 0, 'token_bucket', 1, 'enforce', '')`,
		"a route twice":              insert + `('a', 'FREE', NULL, '/x', 'route:/x', 5, 1000000, 0, 'token_bucket', 1, 'enforce', '')`,
		"a route without a slash":    insert + `('a', 'FREE', NULL, 'y', 'route:/y', 5, 1000000, 0, 'token_bucket', 1, 'enforce', '')`,
		"a negative limit":           insert + `('a', 'FREE', NULL, '/y', 'route:/y', -1, 1000000, 0, 'token_bucket', 0, 'enforce', '')`,
		"no window":                  insert + `('a', 'FREE', NULL, '/y', 'route:/y', 5, 0, 0, 'token_bucket', 1, 'enforce', '')`,
		"a cost above the limit":     insert + `('a', 'FREE', NULL, '/y', 'route:/y', 5, 1000000, 0, 'token_bucket', 6, 'enforce', '')`,
		"a burst of another bucket":  insert + `('a', 'FREE', NULL, '/y', 'route:/y', 5, 1000000, 9, 'fixed_window', 1, 'enforce', '')`,
		"a delay of another bucket":  `UPDATE rate_limit_policies SET max_delay_us = 5 WHERE id = 'good'`,
		"too long a delay":           `UPDATE rate_limit_policies SET max_delay_us = 600000001, algorithm = 'leaky_bucket' WHERE id = 'good'`,
		"a method in small letters":  `UPDATE rate_limit_policies SET methods = '{get}' WHERE id = 'good'`,
		"a method that is null":      `UPDATE rate_limit_policies SET methods = '{GET,NULL}' WHERE id = 'good'`,
		"a method without a name":    `UPDATE rate_limit_policies SET methods = '{GET,""}' WHERE id = 'good'`,
		"an open bracket":            `UPDATE rate_limit_policies SET route = '/[' WHERE id = 'good'`,
		"an empty bracket":           `UPDATE rate_limit_policies SET route = '/[]' WHERE id = 'good'`,
		"a backslash at the end":     `UPDATE rate_limit_policies SET route = '/x\' WHERE id = 'good'`,
		"a route that is not clean":  `UPDATE rate_limit_policies SET route = '/x/../y' WHERE id = 'good'`,
		"an inexact token bucket":    insert + `('a', 'FREE', NULL, '/y', 'route:/y', 301, 31622400000000, 0, 'token_bucket', 1, 'enforce', '')`,
		"an inexact leaky bucket":    insert + `('a', 'FREE', NULL, '/y', 'route:/y', 301, 31622400000000, 0, 'leaky_bucket', 1, 'enforce', '')`,
		"an inexact sliding window":  insert + `('a', 'FREE', NULL, '/y', 'route:/y', 301, 31622400000000, 0, 'sliding_window', 1, 'enforce', '')`,
		"too long a log":             insert + `('a', 'FREE', NULL, '/y', 'route:/y', 1000001, 1000000, 0, 'sliding_log', 1, 'enforce', '')`,
		"a burst of a limit of zero": insert + `('a', 'FREE', NULL, '/y', 'route:/y', 0, 1000000, 5, 'token_bucket', 0, 'enforce', '')`,
		"an unknown algorithm":       insert + `('a', 'FREE', NULL, '/y', 'route:/y', 5, 1000000, 0, 'gcra', 1, 'enforce', '')`,
		"an unknown mode":            insert + `('a', 'FREE', NULL, '/y', 'route:/y', 5, 1000000, 0, 'token_bucket', 1, 'dry', '')`,
		"an unknown on_error":        insert + `('a', 'FREE', NULL, '/y', 'route:/y', 5, 1000000, 0, 'token_bucket', 1, 'enforce', 'pass')`,
		"no anonymous ceiling":       `DELETE FROM rate_limit_policies WHERE tier = 'anonymous'`,
		"an anonymous ceiling moved": `UPDATE rate_limit_policies SET scope = 'route:/z' WHERE tier = 'anonymous'`,
		"a hash that is none":        `INSERT INTO rate_limit_api_key_hashes (sha256, key_id) VALUES ('\x00', 'k')`,
		"a second epoch":             `INSERT INTO rate_limit_epoch DEFAULT VALUES`,
		"a change of nothing":        `INSERT INTO rate_limit_audit (at, actor, action, kind, key) VALUES (now(), 'a', 'b', 'tier', 'c')`,
	} {
		var pgErr *pgconn.PgError
		if _, err := conn.Exec(t.Context(), sql); !errors.As(err, &pgErr) || !strings.HasPrefix(pgErr.Code, "23") {
			t.Errorf("%s: got %v, want a violated constraint", name, err)
		}
	}
}

func TestNoKeyStandsInTheDatabaseInClear(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	in := started(t, &Provider{DSN: dsn}, storageIn(t))
	first, k := in.newKey(t, "PRO")
	second := policy.NewKey()
	k.PreviousSHA256, k.PreviousUntil, k.SHA256 = k.SHA256, k.CreatedAt.AddDate(1, 0, 0), policy.HashKey(second)
	if _, err := in.UpdateKey(t.Context(), by, k); err != nil {
		t.Fatal(err)
	}
	if _, _, err := in.CreateKey(t.Context(), by, policy.KeyRecord{Tier: "PRO", SHA256: policy.HashKey("x")}, "idem", []byte("sealed")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both keys to be used", func() bool { return in.works(first) && in.works(second) })
	dump, err := exec.Command(server.Program("pg_dump"), "--inserts", dsn).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{first, second} {
		if strings.Contains(string(dump), key[9:]) {
			t.Error("the dump holds a key, or most of it")
		}
	}
	if !strings.Contains(string(dump), k.ID) || !strings.Contains(string(dump), first[:8]) {
		t.Error("the dump does not hold the key's record: nothing was checked")
	}
}
