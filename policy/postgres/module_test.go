package postgres

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage" // the storage file_system

	"github.com/caddy-tollgate/ratelimit/policy"
)

// load provisions a provider as a configuration of Caddy does, and returns what
// ends the configuration.
func load(t *testing.T, root string, p *Provider) (end func(), err error) {
	t.Helper()
	storage, err := json.Marshal(map[string]string{"module": "file_system", "root": root})
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := caddy.ProvisionContext(&caddy.Config{
		Admin: &caddy.AdminConfig{Disabled: true}, StorageRaw: storage,
	})
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	module, err := ctx.LoadModuleByID("rate_limit.providers.postgres", config)
	if err != nil {
		cancel()
		return nil, err
	}
	*p = Provider{} // not used by anybody any more
	loaded = module.(*Provider)
	loaded.linger = 0
	return cancel, nil
}

// loaded is what load loaded last; the tests that use it are not parallel.
var loaded *Provider

func TestConnectionsAndKnownKeysSurviveAReloadAndEndWithTheLastConfiguration(t *testing.T) {
	root, settings := t.TempDir(), Provider{DSN: server.NewDatabase(t)}
	first := settings
	end1, err := load(t, root, &first)
	if err != nil {
		t.Fatal(err)
	}
	one := loaded
	if got := one.Snapshot(); got == strictest || one.known.Load().state.Store != "" {
		t.Error("before the start, the schema was written or the first tiers are not known")
	}
	if err := one.Start(); err != nil {
		t.Fatal(err)
	}
	key, _ := (&instance{Provider: one}).newKey(t, "PRO")
	eventually(t, "the key", func() bool { _, ok := one.APIKey(t.Context(), policy.HashKey(key)); return ok })
	queries := one.keys.lookups.queries.Load()

	second := settings
	second.CacheTTL, second.MaxKeys = caddy.Duration(minCacheTTL), 10
	end2, err := load(t, root, &second)
	if err != nil {
		t.Fatal(err)
	}
	two := loaded
	if two.client != one.client {
		t.Fatal("a reload made a client of its own")
	}
	wrong := settings
	wrong.MaxKeys = -1
	if _, err := load(t, root, &wrong); err == nil || !strings.Contains(err.Error(), "max_keys -1") {
		t.Errorf("a wrong setting: got %v", err)
	}
	if one.cacheTTL() != defaultCacheTTL {
		t.Error("a configuration that has not started is in charge")
	}
	if err := two.Start(); err != nil {
		t.Fatal(err)
	}
	end1()
	if two.cacheTTL() != minCacheTTL {
		t.Error("the running configuration is not in charge")
	}
	if _, ok := two.APIKey(t.Context(), policy.HashKey(key)); !ok || two.keys.lookups.queries.Load() != queries {
		t.Error("a known key was forgotten over the reload")
	}
	client, pool := two.client, two.poolKey
	two.linger = 200 * time.Millisecond
	unseen, _ := (&instance{Provider: two}).newKey(t, "PRO")
	end2()
	if _, ok := two.APIKey(t.Context(), policy.HashKey(unseen)); !ok {
		t.Error("a request that was under way as the configuration ended lost its key")
	}
	eventually(t, "the client ends", func() bool { return client.ctx.Err() != nil })
	if n, ok := clients.References(pool); ok || client.ctx.Err() == nil {
		t.Errorf("after the last configuration ended, the client has %d users", n)
	}
	if err := two.Cleanup(); err != nil {
		t.Error("a second Cleanup:", err)
	}
	if err := new(Provider).Cleanup(); err != nil {
		t.Error("Cleanup without Provision:", err)
	}
}

func TestOptionsInACaddyfileAreRead(t *testing.T) {
	t.Parallel()
	p := new(Provider)
	d := caddyfile.NewTestDispenser("postgres {env.DATABASE_URL} {\n cache_ttl 2s\n max_keys 50\n lookup_timeout 20ms\n max_connections 3\n audit_retention 30d\n migrate off\n}")
	if err := p.UnmarshalCaddyfile(d); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(p)
	const want = `{"dsn":"{env.DATABASE_URL}","cache_ttl":2000000000,"max_keys":50,"lookup_timeout":20000000,"max_connections":3,"audit_retention":2592000000000000,"skip_migrations":true}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
}

func TestEveryMistakeInACaddyfileNamesItsLineAndWhatToWrite(t *testing.T) {
	t.Parallel()
	const good = "postgres://tollgate@localhost/tollgate"
	for input, want := range map[string]string{
		"postgres":                                                    "postgres takes one connection string, not 0 words; write postgres " + exampleDSN + " (words like host=localhost in quotes), at Testfile:1",
		"postgres a b":                                                "postgres takes one connection string, not 2 words; write postgres " + exampleDSN + " (words like host=localhost in quotes), at Testfile:1",
		"postgres " + good + " {\n ttl 5s\n}":                         `unknown option "ttl" of provider postgres; write cache_ttl, max_keys, lookup_timeout, max_connections, audit_retention or migrate, at Testfile:2`,
		"postgres " + good + " {\n cache_ttl\n}":                      "cache_ttl takes one value, not 0; write cache_ttl 5s, at Testfile:2",
		"postgres " + good + " {\n cache_ttl soon\n}":                 `cache_ttl "soon" is not a duration; write one like 5s, at Testfile:2`,
		"postgres " + good + " {\n cache_ttl 1ms\n}":                  "cache_ttl 1ms is out of range; write a duration from 100ms to 1h0m0s, like 5s, at Testfile:2",
		"postgres " + good + " {\n cache_ttl 5s\n cache_ttl 5s\n}":    "cache_ttl is written twice; write it once, at Testfile:3",
		"postgres " + good + " {\n cache_ttl 5s {\n x\n }\n}":         "cache_ttl takes no block; end the line after its value, at Testfile:2",
		"postgres " + good + " {\n max_keys 0\n}":                     `max_keys "0" is not a number from 1; write one like 100000, at Testfile:2`,
		"postgres " + good + " {\n max_keys many\n}":                  `max_keys "many" is not a number from 1; write one like 100000, at Testfile:2`,
		"postgres " + good + " {\n max_keys 99999999\n}":              "max_keys 99999999 is out of range; write a number from 1 to 10000000, like 100000, at Testfile:2",
		"postgres " + good + " {\n max_connections 1001\n}":           "max_connections 1001 is out of range; write a number from 1 to 1000, like 8, at Testfile:2",
		"postgres " + good + " {\n lookup_timeout 1m\n}":              "lookup_timeout 1m0s is out of range; write a duration from 1ms to 10s, like 50ms, at Testfile:2",
		"postgres " + good + " {\n audit_retention 1h\n}":             "audit_retention 1h0m0s is too short; write a duration of 1d or more, like 400d, at Testfile:2",
		"postgres " + good + " {\n migrate maybe\n}":                  `migrate "maybe" is not known; write migrate on, or migrate off and run caddy rate-limit migrate yourself, at Testfile:2`,
		"postgres postgres://u:s3cret@localhost:port/d":               "the connection string cannot be read (port is wrong); write one like " + exampleDSN,
		"postgres \"host=localhost password=s3cret sslmode=perhaps\"": "the connection string cannot be read (sslmode is wrong); write one like " + exampleDSN,
	} {
		err := new(Provider).UnmarshalCaddyfile(caddyfile.NewTestDispenser(input))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.HasSuffix(want, ":2") && err.Error() != want {
			t.Errorf("%s\ngot error  %v\nwant error %s", input, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error repeats the password: %v", err)
		}
	}
}

func TestAnUnsetVariableIsAnErrorThatSaysSo(t *testing.T) {
	for _, dsn := range []string{"{env.TOLLGATE_TEST_UNSET}", "", " "} {
		_, err := (&Provider{DSN: dsn}).resolve()
		if err == nil || !strings.Contains(err.Error(), "connection string") {
			t.Errorf("%q: got %v", dsn, err)
		}
	}
}
