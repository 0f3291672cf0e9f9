package integration_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// shellCommand is a line that a document shows after a prompt.
var shellCommand = regexp.MustCompile(`(?m)^\$ (.*)$`)

// walk returns the commands of the first console block after a piece of text.
func walk(t *testing.T, document, after string) (commands []string) {
	t.Helper()
	_, text, found := strings.Cut(readDocument(t, filepath.Join(repository, document)), after)
	_, text, opened := strings.Cut(text, "```console\n")
	text, _, closed := strings.Cut(text, "```")
	if !found || !opened || !closed {
		t.Fatalf("%s has no console block after %q", document, after)
	}
	for _, m := range shellCommand.FindAllStringSubmatch(text, -1) {
		commands = append(commands, m[1])
	}
	return commands
}

// shell runs commands in one shell as the user who runs c would, and returns what
// each of them printed.
func (c *caddy) shell(commands []string) []string {
	c.t.Helper()
	const mark = "\n-- next command --\n"
	script := strings.NewReplacer("localhost:8080", c.addr(), "localhost:8081", c.addr2(), "bin/caddy", caddyBinary).
		Replace(strings.Join(commands, "\nprintf '"+strings.ReplaceAll(mark, "\n", `\n`)+"'\n"))
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = repository, c.env
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("%v, after\n%s", err, out)
	}
	return strings.Split(string(out), mark)
}

// The README's way for a newcomer: a token, a key, a refusal, a raised limit, and
// the next request passes.
func TestTheFiveCommandsOfTheREADMEDoWhatItSays(t *testing.T) {
	t.Parallel()
	commands := walk(t, "README.md", "to a raised limit it is five commands")
	if len(commands) != 5 {
		t.Fatalf("found %d commands: %q", len(commands), commands)
	}
	c := startAdapted(t, filepath.Join(repository, "examples", "quickstart", "Caddyfile"))
	out := c.shell(commands)
	if all := strings.Repeat("200 ", 60); !strings.HasPrefix(out[2], all) { // more pass if it takes more than a second
		t.Errorf("%s\nprints\n%s", commands[2], out[2])
	}
	for i, want := range []string{
		2: " 429",
		3: `"limit":600,"window":"1m"`,
		4: "HTTP/1.1 200 OK",
	} {
		if !strings.Contains(out[i], want) {
			t.Errorf("%s\nprints\n%s\nwhich lacks %s", commands[i], out[i], want)
		}
	}
}
