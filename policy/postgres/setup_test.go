package postgres

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// server is shared by the tests that do not break it.
var server *testserver.Postgres

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tollgate-postgres-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if server, err = testserver.StartPostgres(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Stop()
	return m.Run()
}

// instance is a provider as one Caddy process has it: a client of its own, which
// no other instance shares.
type instance struct {
	*Provider
	logs *observer.ObservedLogs
}

// provisioned makes an instance that has not started yet.
func provisioned(tb testing.TB, p *Provider, storage certmagic.Storage) *instance {
	tb.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	p.storage, p.logger = storage, zap.New(core)
	if err := p.check(); err != nil {
		tb.Fatal(err)
	}
	p.setDefaults()
	config, err := p.resolve()
	if err != nil {
		tb.Fatal(err)
	}
	if p.client, err = newClient(config); err != nil {
		tb.Fatal(err)
	}
	p.prepare(tb.Context(), p)
	in := &instance{Provider: p, logs: logs}
	tb.Cleanup(func() { in.end(tb) })
	return in
}

func started(tb testing.TB, p *Provider, storage certmagic.Storage) *instance {
	tb.Helper()
	in := provisioned(tb, p, storage)
	if err := in.Start(); err != nil {
		tb.Fatal(err)
	}
	return in
}

// end ends the instance; twice is harmless.
func (in *instance) end(tb testing.TB) {
	if in.ctx.Err() != nil {
		return
	}
	in.leave(in.Provider)
	if err := in.Destruct(); err != nil {
		tb.Error(err)
	}
}

func storageIn(tb testing.TB) certmagic.Storage {
	return &certmagic.FileStorage{Path: tb.TempDir()}
}

// patience bounds every wait; it is far beyond what is needed.
const patience = 30 * time.Second

func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("after %s still not: %s", patience, what)
		}
	}
}

var by = policy.Change{Actor: "alice", Action: "create"}

func (in *instance) newKey(tb testing.TB, tier string) (key string, k policy.KeyRecord) {
	tb.Helper()
	key = policy.NewKey()
	k, _, err := in.CreateKey(tb.Context(), by, policy.KeyRecord{Prefix: policy.KeyPrefix(key), Tier: tier, SHA256: policy.HashKey(key)}, "", nil)
	if err != nil {
		tb.Fatal(err)
	}
	return key, k
}

func (in *instance) works(key string) bool {
	_, ok := in.APIKey(context.Background(), policy.HashKey(key))
	return ok
}

// ceiling is the limit of a tier on a path where it has only one.
func (in *instance) ceiling(tier string) string {
	applied := in.Snapshot().AppendMatches(nil, policy.Client{Tier: tier}, "GET", "/")
	return applied[0].Rule.Limit.String()
}

// setLimit changes the limit of a tier's ceiling.
func (in *instance) setLimit(tb testing.TB, tier string, count int64) {
	tb.Helper()
	all, err := in.ListPolicies(tb.Context(), tier, "", policy.Page{})
	if err != nil || len(all) == 0 {
		tb.Fatal(all, err)
	}
	all[0].Limit.Count = count
	if _, err := in.UpdatePolicy(tb.Context(), by, all[0]); err != nil {
		tb.Fatal(err)
	}
}

func (in *instance) logged(message string) int { return in.logs.FilterMessageSnippet(message).Len() }

func ms(n int) caddy.Duration { return caddy.Duration(time.Duration(n) * time.Millisecond) }
