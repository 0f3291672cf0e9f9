package integration_test

import (
	"os/exec"
	"strings"
	"testing"
)

// The profiles that take seconds; `make load` runs them all. The program itself
// holds what must come out against what clients and metrics say.
func TestLoadProfilesReconcile(t *testing.T) {
	t.Parallel()
	load := exec.CommandContext(t.Context(), "go", "run", "./cmd/loadtest", "-caddy", caddyBinary, "-run", "account only|together|health bypass")
	load.Dir = repository
	out, err := load.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, line := range []string{"| account only | 400 |", "| LOAD * | blocked | 160 | 160 | 160 | exact |", "| (exempt) | passed | 800 | 800 | – | exact |"} {
		if !strings.Contains(string(out), line) {
			t.Errorf("the table lacks %q:\n%s", line, out)
		}
	}
}
