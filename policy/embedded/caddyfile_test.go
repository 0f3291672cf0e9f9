package embedded

import (
	"encoding/json"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage" // the storage file_system

	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestOptionsInACaddyfileAreRead(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		"embedded": "{}",
		"embedded {\n poll_interval 1s\n audit_retention 30d\n}": `{"poll_interval":1000000000,"audit_retention":2592000000000000}`,
	} {
		p := new(Provider)
		if err := p.UnmarshalCaddyfile(caddyfile.NewTestDispenser(input)); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(p); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v", input, got, err)
		}
	}
}

func TestEveryMistakeInACaddyfileNamesItsLineAndWhatToWrite(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		"embedded /var/lib/limits":                            `embedded takes no argument "/var/lib/limits": it keeps everything in Caddy's storage; write provider embedded, and storage ... in the global options for another place, at Testfile:1`,
		"embedded {\n cache_ttl 5s\n}":                        `unknown option "cache_ttl" of provider embedded; write poll_interval or audit_retention, at Testfile:2`,
		"embedded {\n poll_interval\n}":                       "poll_interval takes one value, not 0; write poll_interval 500ms, at Testfile:2",
		"embedded {\n poll_interval often\n}":                 `poll_interval "often" is not a duration; write one like 500ms, at Testfile:2`,
		"embedded {\n poll_interval 1ms\n}":                   "poll_interval 1ms is out of range; write a duration from 50ms to 1h0m0s, like 500ms, at Testfile:2",
		"embedded {\n poll_interval 1s {\n x\n }\n}":          "poll_interval takes no block; end the line after its value, at Testfile:2",
		"embedded {\n audit_retention 1h\n}":                  "audit_retention 1h0m0s is too short; write a duration of 1d or more, like 400d, at Testfile:2",
		"embedded {\n poll_interval 1s\n poll_interval 1s\n}": "poll_interval is written twice; write it once, at Testfile:3",
	} {
		if err := new(Provider).UnmarshalCaddyfile(caddyfile.NewTestDispenser(input)); err == nil || err.Error() != want {
			t.Errorf("%s\ngot error  %v\nwant error %s", input, err, want)
		}
	}
}

// What Caddy does: provision one configuration, then the next, then end the
// first.
func TestAReloadKeepsWhatWasReadAndACheckWritesNothing(t *testing.T) {
	root := t.TempDir()
	load := func() (*Provider, func()) {
		storage, err := json.Marshal(map[string]string{"module": "file_system", "root": root})
		if err != nil {
			t.Fatal(err)
		}
		ctx, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}, StorageRaw: storage})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := caddy.NewContext(ctx)
		module, err := ctx.LoadModuleByID("rate_limit.providers.embedded", nil)
		if err != nil {
			t.Fatal(err)
		}
		return module.(*Provider), end
	}
	first, end1 := load()
	if first.storage.Exists(t.Context(), folder) {
		t.Error("a configuration that was only provisioned wrote to the storage")
	}
	if got := first.ceilingOf("PRO"); got != "600/1m" {
		t.Errorf("before anything was written, PRO has %s", got)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first tiers to be stored", func() bool { return first.storage.Exists(t.Context(), documentKey) })
	key := policy.NewKey()
	k, _, err := first.CreateKey(t.Context(), by, policy.KeyRecord{Tier: "PRO", SHA256: policy.HashKey(key)}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	first.APIKey(t.Context(), policy.HashKey(key))

	second, end2 := load()
	defer end2()
	end1()
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	if second.shared != first.shared {
		t.Error("a reload forgot what was read")
	}
	if _, ok := second.APIKey(t.Context(), policy.HashKey(key)); !ok {
		t.Error("a key is gone after a reload")
	}
	if got, err := second.GetKey(t.Context(), k.ID); err != nil || got.LastUsedAt.IsZero() {
		t.Errorf("when a key was used is forgotten: %+v, %v", got, err)
	}
}
