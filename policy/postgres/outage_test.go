package postgres

import (
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// slowest is the longest of n look-ups of unknown keys.
func (in *instance) slowest(tb testing.TB, n int) (most time.Duration) {
	tb.Helper()
	for range n {
		began := time.Now()
		if in.works(policy.NewKey()) {
			tb.Error("a made-up key works")
		}
		most = max(most, time.Since(began))
	}
	return most
}

// waiting is how many keys have no answer yet.
func (in *instance) waiting() int {
	in.keys.lookups.mu.Lock()
	defer in.keys.lookups.mu.Unlock()
	return len(in.keys.lookups.waiting)
}

func TestKnownKeysAndPoliciesGoOnWhilePostgresIsGone(t *testing.T) {
	t.Parallel()
	pg := testserver.NewPostgres(t)
	in := started(t, &Provider{DSN: pg.NewDatabase(t)}, storageIn(t))
	known, _ := in.newKey(t, "PRO")
	fresh, _ := in.newKey(t, "PRO")
	in.setLimit(t, "PRO", 77)
	eventually(t, "the key and the limit", func() bool { return in.works(known) && in.ceiling("PRO") == "77/1m" })

	for name, fault := range map[string]struct{ begin, end func() error }{
		"killed": {func() error { pg.Kill(); return nil }, pg.Restart},
		"paused": {pg.Pause, pg.Resume},
	} {
		if err := fault.begin(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: no unknown key waited longer than %s", name, in.slowest(t, 20))
		if !in.works(known) || in.ceiling("PRO") != "77/1m" {
			t.Errorf("%s: a known key or the policies are gone", name)
		}
		eventually(t, name+": the outage to be noticed", func() bool { in.works(policy.NewKey()); up, _, _ := in.Health(); return !up })
		eventually(t, name+": what waits to be answered", func() bool { return in.waiting() == 0 })
		asked := in.keys.lookups.queries.Load()
		most := in.slowest(t, 1000)
		if more := in.keys.lookups.queries.Load() - asked; more != 0 {
			t.Errorf("%s: once the outage is known, unknown keys still cost %d queries", name, more)
		}
		t.Logf("%s: once the outage is known, no unknown key waited longer than %s", name, most)
		if err := fault.end(); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+": recovery", func() bool { up, _, _ := in.Health(); return up })
	}
	eventually(t, "a key that was never used to work", func() bool { return in.works(fresh) })
	if in.logged("postgres is unavailable") != 2 || in.logged("postgres is back") != 2 {
		t.Errorf("outages were logged %d times, recoveries %d times, want 2 of each",
			in.logged("postgres is unavailable"), in.logged("postgres is back"))
	}
	in.setLimit(t, "PRO", 78)
	eventually(t, "changes to be heard again", func() bool { return in.ceiling("PRO") == "78/1m" })
}

func TestAStartWithoutPostgresUsesTheSavedPoliciesAndSaysHowOldTheyAre(t *testing.T) {
	t.Parallel()
	pg := testserver.NewPostgres(t)
	dsn, storage := pg.NewDatabase(t), storageIn(t)
	first := started(t, &Provider{DSN: dsn}, storage)
	first.setLimit(t, "PRO", 77)
	eventually(t, "the policies to be saved", func() bool {
		b, err := storage.Load(t.Context(), first.savedKey())
		var s saved
		if err != nil || json.Unmarshal(b, &s) != nil {
			return false
		}
		for _, p := range s.Policies {
			if p.Limit.Count == 77 {
				return true
			}
		}
		return false
	})
	first.end(t)
	pg.Kill()

	second := provisioned(t, &Provider{DSN: dsn}, storage)
	if got := second.ceiling("PRO"); got != "77/1m" {
		t.Errorf("before anything was started, PRO has %s", got)
	}
	warnings := second.logs.FilterMessageSnippet("saved last").All()
	if len(warnings) != 1 || warnings[0].ContextMap()["age"] == nil || warnings[0].ContextMap()["saved_at"] == nil {
		t.Errorf("got logs %v", second.logs.All())
	}
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	if second.works(policy.NewKey()) {
		t.Error("a made-up key works")
	}

	stranger := started(t, &Provider{DSN: dsn}, storageIn(t))
	if got := stranger.ceiling("PRO"); got != "30/1m" || stranger.logged("strictest built-in limit") != 1 {
		t.Errorf("without saved policies PRO has %s; logs %v", got, stranger.logs.All())
	}

	// policies that were damaged are not none: somebody has to know
	torn := storageIn(t)
	if err := torn.Store(t.Context(), first.savedKey(), []byte(`{"format":1,"tie`)); err != nil {
		t.Fatal(err)
	}
	damaged := provisioned(t, &Provider{DSN: dsn}, torn)
	if damaged.logged("the saved policies cannot be read either") != 1 || damaged.logged("there are no saved policies") != 0 {
		t.Errorf("of damaged policies is logged %v", damaged.logs.All())
	}

	if err := pg.Restart(); err != nil {
		t.Fatal(err)
	}
	for _, in := range []*instance{second, stranger} {
		eventually(t, "recovery", func() bool { up, _, _ := in.Health(); return up && in.ceiling("PRO") == "77/1m" })
	}
}

// A connection that waits for notices is used for every look: it must live on
// when it waited in vain.
func TestOneConnectionListensForAsLongAsItLives(t *testing.T) {
	t.Parallel()
	in := started(t, &Provider{DSN: server.NewDatabase(t), CacheTTL: ms(100), MaxConnections: 1}, storageIn(t))
	listener := func() (pid int) { // which is not the only connection of the pool
		err := in.pool.QueryRow(t.Context(), `SELECT coalesce(max(pid), 0) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND (query = $1 OR query LIKE 'LISTEN%')`, selectEpoch).Scan(&pid)
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	looked := in.known.Load().at
	var first int
	eventually(t, "a listener", func() bool { first = listener(); return first > 0 })
	for range 3 {
		eventually(t, "another look", func() bool { return in.known.Load().at.After(looked) })
		looked = in.known.Load().at
	}
	if now := listener(); now != first {
		t.Errorf("process %d listens, first it was %d", now, first)
	}
	if _, err := in.pool.Exec(t.Context(), "SELECT pg_terminate_backend($1)", first); err != nil {
		t.Fatal(err)
	}
	in.setLimit(t, "PRO", 79)
	eventually(t, "a change after the listener was cut off", func() bool { return in.ceiling("PRO") == "79/1m" })
}

// Notices may be lost, as behind a pooler: then cache_ttl is the bound.
func TestALostNoticeCostsNoMoreThanCacheTTL(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	in := started(t, &Provider{DSN: dsn, CacheTTL: ms(100)}, storageIn(t))
	writer := provisioned(t, &Provider{DSN: dsn}, storageIn(t))
	key, _ := writer.newKey(t, "PRO")
	eventually(t, "the key", func() bool { return in.works(key) })
	// a change without a notice
	_, err := writer.pool.Exec(t.Context(), `
		SET LOCAL rate_limit.own_change = 'on';
		UPDATE rate_limit_epoch SET epoch = epoch + 1, policies_epoch = epoch + 1;
		UPDATE rate_limit_policies SET limit_count = 5 WHERE tier = 'PRO';
		UPDATE rate_limit_api_keys SET revoked_at = now();
		INSERT INTO rate_limit_key_changes (epoch) SELECT epoch FROM rate_limit_epoch`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the limit and the end of the key", func() bool { return in.ceiling("PRO") == "5/1m" && !in.works(key) })
}

func TestAnEndedClientLeavesNothingBehind(t *testing.T) {
	dsn, storage := server.NewDatabase(t), storageIn(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	in := started(t, &Provider{DSN: dsn}, storage)
	key, _ := in.newKey(t, "PRO")
	in.works(key)
	in.works(policy.NewKey())
	in.end(t)
	if in.works(policy.NewKey()) {
		t.Error("an ended client knows a made-up key")
	}
}

// Here only the notice can bring the change in time.
func TestANoticeBringsAChangeAtOnce(t *testing.T) {
	t.Parallel()
	dsn := server.NewDatabase(t)
	in := started(t, &Provider{DSN: dsn, CacheTTL: caddy.Duration(maxCacheTTL)}, storageIn(t))
	writer := provisioned(t, &Provider{DSN: dsn}, storageIn(t))
	key := policy.NewKey()
	if in.works(key) {
		t.Error("a key works before it exists")
	}
	k, _, err := writer.CreateKey(t.Context(), by, policy.KeyRecord{Tier: "PRO", SHA256: policy.HashKey(key)}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key", func() bool { return in.works(key) })
	k.RevokedAt = k.CreatedAt
	if _, err := writer.UpdateKey(t.Context(), by, k); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the key", func() bool { return !in.works(key) })
	writer.setLimit(t, "PRO", 5)
	eventually(t, "the limit", func() bool { return in.ceiling("PRO") == "5/1m" })
}

func TestAServerThatStandsStillIsNoticedWithoutARequest(t *testing.T) {
	t.Parallel()
	pg := testserver.NewPostgres(t)
	in := started(t, &Provider{DSN: pg.NewDatabase(t), CacheTTL: ms(100)}, storageIn(t))
	if err := pg.Pause(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the outage to be noticed", func() bool { up, _, _ := in.Health(); return !up })
	if err := pg.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", func() bool { up, _, _ := in.Health(); return up })
}

// The process that serves the connection that listens stands still, so nothing is
// heard; whoever asks after a change must find it all the same.
func TestAChangeIsSeenWhereItWasMadeThoughNoNoticeArrives(t *testing.T) {
	t.Parallel()
	in := started(t, &Provider{DSN: server.NewDatabase(t), CacheTTL: ms(3_600_000), MaxConnections: 1}, storageIn(t))
	listener := 0 // the only connection that is not of the pool
	eventually(t, "a listener that waits", func() bool {
		err := in.pool.QueryRow(t.Context(), `SELECT coalesce(max(pid), 0) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%rate_limit_audit%' AND state = 'idle'`).Scan(&listener)
		return err == nil && listener > 0
	})
	if err := syscall.Kill(listener, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(listener, syscall.SIGCONT) }()
	in.setLimit(t, "PRO", 83)
	if got := in.ceiling("PRO"); got != "83/1m" {
		t.Errorf("after the change %s applies", got)
	}
}
