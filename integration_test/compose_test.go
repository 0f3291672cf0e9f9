package integration_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var composeFolder = filepath.Join(repository, "examples", "compose")

// composeFile is what the test looks at of compose.yaml.
type composeFile struct {
	Services map[string]struct {
		Image       string
		Build       struct{ Context, Dockerfile string }
		Environment map[string]string
		Ports       []string
		Volumes     []string
		DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
		Healthcheck struct{ Test []string }
	}
	Volumes map[string]any
}

func readCompose(t *testing.T) (c composeFile) {
	t.Helper()
	readYAML(t, filepath.Join(composeFolder, "compose.yaml"), &c)
	if names := slices.Sorted(maps.Keys(c.Services)); !slices.Equal(names, []string{"caddy", "grafana", "postgres", "prometheus", "redis"}) {
		t.Fatalf("the services are %q", names)
	}
	return c
}

func TestComposeMountsOnlyWhatIsThere(t *testing.T) {
	t.Parallel()
	c := readCompose(t)
	for name, s := range c.Services {
		for _, volume := range s.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			_, named := c.Volumes[source]
			if !named && !exists(filepath.Join(composeFolder, source)) {
				t.Errorf("%s mounts %s, which is neither a file nor a volume", name, source)
			}
		}
		for other, dependency := range s.DependsOn {
			if len(c.Services[other].Healthcheck.Test) == 0 || dependency.Condition != "service_healthy" {
				t.Errorf("%s depends on %s, and does not wait until it is healthy", name, other)
			}
		}
		if len(s.Healthcheck.Test) == 0 {
			t.Errorf("%s has no health check, which compose up --wait needs", name)
		}
	}
}

func TestComposeRunsFixedVersions(t *testing.T) {
	t.Parallel()
	for name, s := range readCompose(t).Services {
		_, tag, _ := strings.Cut(s.Image, ":")
		switch {
		case s.Build.Context != "":
			if dir := filepath.Join(composeFolder, s.Build.Context); !exists(filepath.Join(dir, "go.mod")) || !exists(filepath.Join(dir, s.Build.Dockerfile)) {
				t.Errorf("%s is built from %s by %s, which are not the checkout and its Dockerfile", name, s.Build.Context, s.Build.Dockerfile)
			}
		case tag == "" || tag == "latest":
			t.Errorf("%s: the image %q is of no fixed version", name, s.Image)
		}
	}
}

// Only the API is for everybody; databases are for the other containers.
func TestComposePublishesTheAPIAndKeepsTheRestOnThisMachine(t *testing.T) {
	t.Parallel()
	for name, s := range readCompose(t).Services {
		for _, port := range s.Ports {
			local := strings.HasPrefix(port, "127.0.0.1:")
			if name == "redis" || name == "postgres" || !local && port != "8080:8080" {
				t.Errorf("%s publishes %s", name, port)
			}
		}
	}
}

var composeVariable = regexp.MustCompile(`\$\{([A-Z_]+)(:-([^}]*))?\}`)

// One command is enough: everything that may be set has a default, and stands in
// .env.example as it is.
func TestComposeStartsWithoutSettings(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(composeFolder, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	settings := make(map[string]string)
	for line := range strings.Lines(read(".env.example")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			settings[name] = value
		}
	}
	used := make(map[string]string)
	for _, m := range composeVariable.FindAllStringSubmatch(read("compose.yaml"), -1) {
		used[m[1]] = m[3]
	}
	if len(used) == 0 || !maps.Equal(settings, used) {
		t.Errorf(".env.example has %v, and compose.yaml uses %v", settings, used)
	}
	environment := readCompose(t).Services["caddy"].Environment
	for _, m := range variable.FindAllStringSubmatch(read("Caddyfile"), -1) {
		if environment[m[1]+m[2]] == "" {
			t.Errorf("the Caddyfile uses %s, which compose.yaml does not set for caddy", m[1]+m[2])
		}
	}
}

// awkward is a password with everything that means something to a URL, a shell, YAML
// and compose.
const awkward = `q7Xk@w9Zp:/?#%41 "m4Vt" ${x} {y} \ #`

// Nothing escapes a password on its way from .env into a URL, so it must not go there.
func TestComposeTakesAnyPassword(t *testing.T) {
	t.Parallel()
	c := readCompose(t)
	settings := c.Services["caddy"].Environment
	if got := settings["PGPASSWORD"]; got != c.Services["postgres"].Environment["POSTGRES_PASSWORD"] || strings.Contains(settings["DATABASE_URL"], "PASSWORD") {
		t.Errorf("Caddy has the password %s and the URL %s", got, settings["DATABASE_URL"])
	}
	c.rendered(t)
	out, err := validate(t, readText(t, filepath.Join(composeFolder, "Caddyfile")), "REDIS_URL="+settings["REDIS_URL"],
		"DATABASE_URL=postgres://tollgate@127.0.0.1:1/tollgate", "PGPASSWORD="+awkward, "UPSTREAM=127.0.0.1:9000")
	if err != nil || strings.Contains(out, "q7Xk") || strings.Contains(out, "w9Zp") {
		t.Errorf("the Caddyfile with an awkward password: %v\n%s", err, out)
	}
}

// rendered is compose.yaml as compose itself reads it, where there is one.
func (c composeFile) rendered(t *testing.T) {
	t.Helper()
	command := []string{"docker-compose"}
	if _, err := exec.LookPath(command[0]); err != nil {
		command = []string{"docker", "compose"}
	}
	if exec.CommandContext(t.Context(), command[0], append(command[1:], "version")...).Run() != nil {
		t.Log("compose is not installed, so compose.yaml was not rendered")
		return
	}
	render := exec.CommandContext(t.Context(), command[0], append(command[1:], "-f", "-", "config")...)
	render.Dir = composeFolder
	render.Env = append(os.Environ(), "POSTGRES_PASSWORD="+awkward)
	// Version 1, which Debian has, does not know the word name.
	render.Stdin = strings.NewReader(strings.Replace(readText(t, filepath.Join(composeFolder, "compose.yaml")), "\nname: tollgate\n", "\n", 1))
	out, err := render.Output()
	var got struct {
		Services map[string]struct{ Environment map[string]string }
	}
	if err == nil {
		err = yaml.Unmarshal(out, &got)
	}
	if err != nil {
		t.Fatalf("compose does not read compose.yaml: %v\n%s", err, out)
	}
	if len(got.Services) != len(c.Services) {
		t.Errorf("compose reads %d services, want %d", len(got.Services), len(c.Services))
	}
	for service, name := range map[string]string{"caddy": "PGPASSWORD", "postgres": "POSTGRES_PASSWORD"} {
		if password := strings.ReplaceAll(got.Services[service].Environment[name], "$$", "$"); password != awkward {
			t.Errorf("%s has the password %q, want %q", service, password, awkward)
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var copied = regexp.MustCompile(`(?m)^COPY --from=build (\S+)`)

// The Dockerfile copies what make xcaddy builds; that it builds is tested elsewhere.
func TestTheDockerfileBuildsAsTheMakefileDoes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(composeFolder, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nWORKDIR /src\n") || !strings.Contains(string(text), "\nRUN make xcaddy\n") {
		t.Errorf("it does not build in /src by make xcaddy:\n%s", text)
	}
	if m := copied.FindStringSubmatch(string(text)); m == nil || m[1] != "/src/bin/caddy-xcaddy" {
		t.Errorf("it copies %q", m)
	}
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil || !strings.Contains(string(makefile), "--output bin/caddy-xcaddy") {
		t.Errorf("make xcaddy builds something else: %v", err)
	}
}
