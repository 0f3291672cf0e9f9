package ratelimit_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tollgate/ratelimit"
)

// FuzzCaddyfile looks for a Caddyfile that makes a parser panic, that means
// something else the second time, or that is taken here and refused where it is
// loaded.
func FuzzCaddyfile(f *testing.F) {
	for _, folder := range []string{"adapt", "mistakes"} {
		files, err := filepath.Glob(filepath.Join("testdata", folder, "*.caddyfiletest"))
		if err != nil || len(files) == 0 {
			f.Fatalf("no golden files in %s (%v)", folder, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			text, _, _ := strings.Cut(string(content), separator)
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		if readsFiles(text) {
			return
		}
		config, err := adapt(text)
		if err != nil {
			if err.Error() == "" {
				t.Errorf("%q is refused without a word", text)
			}
			return
		}
		if again, err := adapt(text); err != nil || !bytes.Equal(config, again) {
			t.Errorf("%q becomes\n%s\nand then (%v)\n%s", text, config, err, again)
		}
		checkAdapted(t, text, config)
	})
}

// readsFiles reports whether a Caddyfile may name files of this machine.
func readsFiles(text string) bool {
	return strings.Contains(text, "import") || strings.Contains(text, "file") || strings.Contains(text, "root") || strings.Contains(text, "template")
}

// checkAdapted insists that what the parsers wrote is what the modules read.
func checkAdapted(t *testing.T, text string, config []byte) {
	t.Helper()
	var all struct {
		Apps struct {
			RateLimit *ratelimit.App `json:"rate_limit"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(config, &all); err != nil {
		t.Fatalf("%q becomes no configuration: %v\n%s", text, err, config)
	}
	defined := make(map[string]bool)
	if all.Apps.RateLimit != nil {
		for _, z := range all.Apps.RateLimit.Zones {
			defined[z.Name] = true
			if err := z.Validate(); err != nil {
				t.Errorf("%q is taken, but its zone is not: %v", text, err)
			}
		}
	}
	for _, raw := range handlersIn(t, config) {
		checkHandler(t, text, raw, defined)
	}
}

func checkHandler(t *testing.T, text string, raw json.RawMessage, defined map[string]bool) {
	t.Helper()
	var h struct {
		ratelimit.Handler
		Name string `json:"handler"`
	}
	if err := caddy.StrictUnmarshalJSON(raw, &h); err != nil {
		t.Fatalf("%q is taken, but not as JSON: %v\n%s", text, err, raw)
	}
	for _, z := range h.Zones {
		if err := z.Validate(); err != nil && !defined[z.Name] {
			t.Errorf("%q is taken, but its zone is not: %v", text, err)
		}
	}
	if h.Identify == nil {
		return
	}
	if err := h.Identify.Validate(); err != nil {
		t.Errorf("%q is taken, but its identify is not: %v", text, err)
	}
}

// handlersIn finds the rate_limit handlers of a configuration, wherever they stand.
func handlersIn(t *testing.T, config []byte) (found []json.RawMessage) {
	t.Helper()
	var list []json.RawMessage
	var object map[string]json.RawMessage
	switch {
	case json.Unmarshal(config, &list) == nil:
		for _, item := range list {
			found = append(found, handlersIn(t, item)...)
		}
	case json.Unmarshal(config, &object) == nil:
		if string(object["handler"]) == `"rate_limit"` {
			return []json.RawMessage{config}
		}
		for _, value := range object {
			found = append(found, handlersIn(t, value)...)
		}
	}
	return found
}

// FuzzGuestCaddyfile does the same for what stands behind backend and provider, with
// the words of the fuzzer right where the parsers of those begin.
func FuzzGuestCaddyfile(f *testing.F) {
	for _, text := range []string{
		"", "redis://localhost:6379", "redis://localhost:6379 {\n timeout 50ms\n}", "{\n max_keys 10\n}", "{\n tier FREE {\n policy * 1/s\n }\n}",
		"postgres://localhost {\n cache_ttl 5s\n}", "{\n sentinel {\n}\n}", "{\n tls\n}", "{\n api_key a " + strings.Repeat("0", 64) + " FREE\n}", "{ {\n", "} }", "a b c d {\n}\n",
	} {
		f.Add(text)
	}
	modules := append(caddy.GetModules("rate_limit.backends"), caddy.GetModules("rate_limit.providers")...)
	if len(modules) < 5 {
		f.Fatalf("%d modules, want the five of the tree at least", len(modules))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, m := range modules {
			module := m.New().(caddyfile.Unmarshaler)
			if err := module.UnmarshalCaddyfile(caddyfile.NewTestDispenser(m.ID.Name() + " " + text)); err != nil {
				continue
			}
			raw, err := json.Marshal(module)
			if err != nil {
				t.Errorf("%s %q cannot be written as JSON: %v", m.ID, text, err)
			}
			if err := caddy.StrictUnmarshalJSON(raw, m.New()); err != nil {
				t.Errorf("%s %q is taken, but not as JSON: %v\n%s", m.ID, text, err, raw)
			}
		}
	})
}
