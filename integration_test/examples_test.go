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
	"slices"
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

// documents are what users read.
func documents(t *testing.T) []string {
	t.Helper()
	files := []string{filepath.Join(repository, "README.md"), filepath.Join(repository, "CONTRIBUTING.md")}
	for _, folder := range []string{"docs", "examples"} {
		err := filepath.WalkDir(filepath.Join(repository, folder), func(path string, _ fs.DirEntry, err error) error {
			if filepath.Ext(path) == ".md" {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func readDocument(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// snippet is a piece of a Caddyfile in a document.
var snippet = regexp.MustCompile("(?ms)^( *)```caddyfile\n(.*?)^ *```$")

// whole makes a configuration of a piece of one, by the word that it begins with.
func whole(text string) string {
	switch word, _, _ := strings.Cut(strings.TrimSpace(text), " "); word {
	case "rate_limit", "rate_limit_admin":
		return ":8080 {\n" + text + "\n}\n"
	case "backend", "provider":
		return "{\nrate_limit {\n" + text + "\n}\n}\n:8080 {\nrate_limit 1/1m\n}\n"
	case "zone":
		return ":8080 {\nrate_limit {\n" + text + "\n}\n}\n"
	}
	return text
}

func TestEverySnippetOfTheDocumentationLoads(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	found := 0
	for _, file := range documents(t) {
		text := readDocument(t, file)
		for _, m := range snippet.FindAllStringSubmatchIndex(text, -1) {
			piece := text[m[4]:m[5]]
			if strings.Contains(piece, "[<") {
				continue // a syntax, not an example
			}
			found++
			line := 1 + strings.Count(text[:m[0]], "\n")
			t.Run(fmt.Sprintf("%s:%d", strings.TrimPrefix(file, repository+"/"), line), func(t *testing.T) {
				t.Parallel()
				if said, err := validate(t, whole(piece), exampleEnv(t, piece, server)...); err != nil {
					t.Errorf("%v\n%s", err, said)
				}
			})
		}
	}
	if found < 15 {
		t.Errorf("found only %d", found)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noise   = regexp.MustCompile(`[^a-z0-9 _-]`)
	code    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
)

// anchors are the places of a document that a link may name.
func anchors(text string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
		all = append(all, strings.ReplaceAll(noise.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

func TestEveryLinkOfTheDocumentationLeadsSomewhere(t *testing.T) {
	t.Parallel()
	for _, file := range documents(t) {
		text := readDocument(t, file)
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, ":") {
				continue // elsewhere
			}
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			switch {
			case !exists(target):
				t.Errorf("%s links to %s, which does not exist", file, m[1])
			case anchor != "" && !slices.Contains(anchors(readDocument(t, target)), anchor):
				t.Errorf("%s links to %s, which has no such heading", file, m[1])
			}
		}
	}
}

var aclRules = regexp.MustCompile("`(on ~ratelimit:[^`]*)`")

// What a user of Redis may do who can do no more than the documentation asks for:
// everything that Caddy needs, with a metric and no error.
func TestTheRedisUserOfTheDocumentationIsEnough(t *testing.T) {
	t.Parallel()
	m := aclRules.FindStringSubmatch(readDocument(t, filepath.Join(repository, "docs", "production-on-aws.md")))
	if m == nil {
		t.Fatal("the documentation names no rules")
	}
	server := testserver.NewRedis(t)
	args := []any{"acl", "setuser", "limits", ">a password"}
	for _, rule := range strings.Fields(m[1]) {
		args = append(args, rule)
	}
	if err := inspect(t, server).Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	c := startCaddy(t, `{
	rate_limit {
		backend {$BACKEND}
	}
}
:{$PORT} {
	rate_limit {
		zone bucket {
			limit 3/1h
			on_error closed
		}
		zone log {
			limit 100/1h
			algorithm sliding_log
			on_error closed
		}
	}
	respond "passed"
}`, redisBackend(server, "username limits", `password "a password"`, "timeout 10s"))
	c.sequence(5, "/").want(t, tally{200: 3, 429: 2})
	for _, level := range []string{"warn", "error"} {
		if lines := c.log.lines(`"level":"`+level+`"`, "redis"); len(lines) > 0 {
			t.Errorf("it is not enough: %q", lines)
		}
	}
}
