package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// modules are what a Caddy with Tollgate has and another one has not.
var modules = []string{"http.handlers.rate_limit", "rate_limit", "rate_limit.backends.memory", "rate_limit.backends.redis", "rate_limit.providers.static"}

func wantModules(t *testing.T, binary string) {
	t.Helper()
	out, err := exec.Command(binary, "list-modules").CombinedOutput()
	if err != nil {
		t.Fatalf("%s list-modules: %v\n%s", binary, err, out)
	}
	listed := strings.Fields(string(out))
	for _, module := range modules {
		if !slices.Contains(listed, module) {
			t.Errorf("%s has no module %s", binary, module)
		}
	}
}

func TestTheBinaryHasTheModules(t *testing.T) {
	t.Parallel()
	wantModules(t, caddyBinary)
}

// The test does not run beside others: a build needs the whole machine.
func TestABuildByXcaddyHasTheModules(t *testing.T) {
	binary := os.Getenv("TOLLGATE_TEST_XCADDY")
	if binary == "" {
		build := exec.Command("make", "xcaddy")
		build.Dir = repository
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("make xcaddy: %v\n%s", err, out)
		}
		binary = filepath.Join("bin", "caddy-xcaddy")
	}
	if !filepath.IsAbs(binary) {
		binary = filepath.Join(repository, binary)
	}
	wantModules(t, binary)
}
