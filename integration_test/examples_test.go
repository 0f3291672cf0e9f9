package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// exampleFiles are the configurations that the repository shows to users.
func exampleFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(filepath.Join(repository, "examples"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.Contains(entry.Name(), "Caddyfile") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if top := filepath.Join(repository, "Caddyfile.example"); exists(top) {
		files = append(files, top)
	}
	if len(files) == 0 {
		t.Fatal("found no example")
	}
	return files
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var variable = regexp.MustCompile(`\{\$([A-Z0-9_]+)[}:]|\{env\.([A-Z0-9_]+)\}`)

// exampleEnv gives every environment variable that an example names a value
// that stands for what its name says.
func exampleEnv(t *testing.T, text string, server *testserver.Redis) []string {
	t.Helper()
	var env []string
	for _, m := range variable.FindAllStringSubmatch(text, -1) {
		name := m[1] + m[2]
		value := "an-example-value-of-more-than-32-bytes"
		switch {
		case strings.Contains(name, "REDIS") && strings.Contains(name, "URL"):
			value = server.URL()
		case name == "DATABASE_URL":
			value = "postgres://tollgate@127.0.0.1:1/tollgate" // loading connects to nothing
		}
		env = append(env, name+"="+value)
	}
	return env
}

func TestEveryExampleLoads(t *testing.T) {
	t.Parallel()
	for _, file := range exampleFiles(t) {
		t.Run(strings.TrimPrefix(file, repository+"/"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			said, err := validate(t, string(text), exampleEnv(t, string(text), testserver.NewRedis(t))...)
			if err != nil {
				t.Fatalf("%v\n%s", err, said)
			}
			for line := range strings.Lines(said) {
				if strings.Contains(line, `"level":"warn"`) && !strings.Contains(line, "not formatted") {
					t.Errorf("a warning: %s", line)
				}
			}
			formatted := exec.Command(caddyBinary, "fmt", file)
			out, _ := formatted.Output() // it exits with 1 when the input was not formatted
			if !bytes.Equal(out, text) {
				t.Errorf("not formatted; run caddy fmt --overwrite %s", file)
			}
		})
	}
}

// The quickstart keeps what it promises in its comments: thirty requests a
// minute for an address, and an admin API that is not open to all.
func TestTheQuickstartGivesA429(t *testing.T) {
	t.Parallel()
	file := filepath.Join(repository, "examples", "quickstart", "Caddyfile")
	c := startAdapted(t, file)
	c.sequence(31, "/").want(t, tally{200: 30, 429: 1})
	a := c.get("/").wantStatus(t, 429)
	a.problem(t)
	if a.number(t, "Retry-After") < 1 {
		t.Errorf("Retry-After: got %s", a.header.Get("Retry-After"))
	}
	c.sequence(100, "/healthz").want(t, tally{200: 100})
}

// startAdapted runs a Caddyfile that names its own ports on the ports of this
// process: the first in place of :8080, the second in place of :8081.
func startAdapted(t *testing.T, file string) *caddy {
	t.Helper()
	out, err := exec.Command(caddyBinary, "adapt", "--adapter", "caddyfile", "--config", file).Output()
	if err != nil {
		t.Fatalf("adapting %s: %v", file, err)
	}
	if !json.Valid(out) {
		t.Fatalf("not JSON: %.200q", out)
	}
	c := newCaddy(t)
	text := strings.NewReplacer(`":8080"`, fmt.Sprintf(`":%d"`, c.port), `":8081"`, fmt.Sprintf(`":%d"`, c.port2)).Replace(string(out))
	c.write("caddy.json", text)
	c.start("run", "--config", filepath.Join(c.dir, "caddy.json"))
	return c
}
