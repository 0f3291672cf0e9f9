package postgres

import (
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestWhatIsTooOldIsDeletedAndNothingElse(t *testing.T) {
	t.Parallel()
	in := started(t, &Provider{DSN: server.NewDatabase(t)}, storageIn(t))
	in.newKey(t, "PRO")
	if _, _, err := in.CreateKey(t.Context(), by, policy.KeyRecord{Tier: "PRO", SHA256: policy.HashKey("x")}, "idem", nil); err != nil {
		t.Fatal(err)
	}
	count := func(table string) (n int) {
		if err := in.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	tables := map[string]struct {
		rows int
		age  time.Duration
	}{
		"rate_limit_audit": {2, policy.DefaultAuditRetention}, "rate_limit_idempotency": {1, policy.IdempotencyRetention}, "rate_limit_key_changes": {2, keyChangeRetention},
	}
	age := func(table string, by time.Duration) {
		if _, err := in.pool.Exec(t.Context(), "UPDATE "+table+" SET at = now() - make_interval(secs => $1)", by.Seconds()); err != nil {
			t.Fatal(err)
		}
	}
	for table, is := range tables {
		age(table, is.age-time.Minute)
	}
	if !in.prune() {
		t.Fatal("it failed", in.logs.All())
	}
	for table, is := range tables {
		if n := count(table); n != is.rows {
			t.Errorf("%s has %d rows, want all %d", table, n, is.rows)
		}
		age(table, is.age+time.Minute)
	}
	if !in.prune() {
		t.Fatal("it failed", in.logs.All())
	}
	for table := range tables {
		if n := count(table); n != 0 {
			t.Errorf("%s has %d rows that are too old", table, n)
		}
	}
}

// After a day the same idempotency makes another key, even if nobody deleted the
// answer.
func TestAnAnswerIsKeptForADay(t *testing.T) {
	t.Parallel()
	in := started(t, &Provider{DSN: server.NewDatabase(t)}, storageIn(t))
	create := func(key string) (id string) {
		k, _, err := in.CreateKey(t.Context(), by, policy.KeyRecord{Tier: "PRO", SHA256: policy.HashKey(key)}, "same", []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return k.ID
	}
	first := create("a")
	if create("b") != first {
		t.Error("within a day, the same idempotency made another key")
	}
	if _, err := in.pool.Exec(t.Context(), "UPDATE rate_limit_idempotency SET at = at - interval '25 hours'"); err != nil {
		t.Fatal(err)
	}
	second := create("c")
	if second == first || create("d") != second {
		t.Error("after a day, the same idempotency did not make one other key")
	}
}

// A database that was restored from a backup goes back in its epochs.
func TestARestoredDatabaseIsReadAnew(t *testing.T) {
	t.Parallel()
	in := started(t, &Provider{DSN: server.NewDatabase(t), CacheTTL: ms(100)}, storageIn(t))
	key, _ := in.newKey(t, "PRO")
	eventually(t, "the key", func() bool { return in.works(key) })
	for _, sql := range []string{
		"UPDATE rate_limit_policies SET limit_count = 5 WHERE tier = 'PRO'",
		"DELETE FROM rate_limit_key_changes",
		"DELETE FROM rate_limit_api_keys",
		"UPDATE rate_limit_epoch SET epoch = 1, policies_epoch = 0",
	} {
		if _, err := in.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "what the backup holds", func() bool { return in.ceiling("PRO") == "5/1m" && !in.works(key) })
}
