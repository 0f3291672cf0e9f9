package ratelimit_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-tollgate/ratelimit"
)

var update = flag.Bool("update", false, "write what comes out into the golden files")

// No test reads or writes the storage of whoever runs it.
func TestMain(m *testing.M) {
	flag.Parse()
	folder, err := os.MkdirTemp("", "tollgate")
	if err != nil {
		panic(err)
	}
	caddy.DefaultStorage.Path = folder
	code := m.Run()
	os.RemoveAll(folder)
	os.Exit(code)
}

// A golden file is a Caddyfile, a line of dashes, and what it becomes.
const separator = "----------\n"

// golden compares what a function makes of the first half of each file with the
// second half.
func golden(t *testing.T, folder string, become func(t *testing.T, caddyfile string) string) {
	files, err := filepath.Glob(filepath.Join("testdata", folder, "*.caddyfiletest"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files in %s (%v)", folder, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			caddyfile, want, _ := strings.Cut(string(content), separator)
			got := become(t, caddyfile)
			if *update {
				if err := os.WriteFile(file, []byte(caddyfile+separator+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func adapt(caddyfile string) ([]byte, error) {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	return config, err
}

// provision loads a configuration without starting it.
func provision(config []byte) error {
	var c caddy.Config
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	return caddy.Validate(&c)
}

func TestEachValidFormAdaptsAndLoads(t *testing.T) {
	t.Setenv("REDIS_URL", "redis://localhost:1")
	t.Setenv("REDIS_USER", "tollgate")
	t.Setenv("REDIS_PASSWORD", "a secret")
	t.Setenv("JWT_SECRET", "0123456789abcdef0123456789abcdef")
	golden(t, "adapt", func(t *testing.T, caddyfile string) string {
		config, err := adapt(caddyfile)
		if err != nil {
			t.Fatal(err)
		}
		if err := provision(config); err != nil {
			t.Errorf("it adapts and does not load: %v", err)
		}
		var out bytes.Buffer
		if err := json.Indent(&out, config, "", "\t"); err != nil {
			t.Fatal(err)
		}
		return out.String() + "\n"
	})
}

func TestEachMistakeIsAnErrorThatSaysWhatToWrite(t *testing.T) {
	golden(t, "mistakes", func(t *testing.T, caddyfile string) string {
		config, err := adapt(caddyfile)
		if err == nil {
			t.Fatalf("no error; it became %s", config)
		}
		if !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("no file and line in: %v", err)
		}
		return err.Error() + "\n"
	})
}
