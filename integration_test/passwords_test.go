package integration_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
)

// The parts of every password below. None of them may be in anything that Caddy prints.
var passwordParts = []string{"q7Xk", "w9Zp", "m4Vt"}

// secretive is a configuration in which a value that holds a password stands at %s.
func secretive(option, value string) string {
	options := map[string]string{
		"postgres":       "{\n\trate_limit {\n\t\tprovider postgres %s\n\t}\n}\n:{$PORT} {\n\trate_limit {\n\t\ttiers\n\t}\n}\n",
		"redis":          "{\n\trate_limit {\n\t\tbackend redis %s\n\t}\n}\n:{$PORT} {\n\trate_limit 10/1m\n}\n",
		"redis password": "{\n\trate_limit {\n\t\tbackend redis {\n\t\t\turl redis://127.0.0.1:1\n\t\t\tpassword %s\n\t\t}\n\t}\n}\n:{$PORT} {\n\trate_limit 10/1m\n}\n",
		"secret":         ":{$PORT} {\n\trate_limit {\n\t\tidentify {\n\t\t\tjwt {\n\t\t\t\tsecret %s\n\t\t\t}\n\t\t}\n\t\tzone a {\n\t\t\tlimit 1/1m\n\t\t}\n\t}\n}\n",
		"jwks":           ":{$PORT} {\n\trate_limit {\n\t\tidentify {\n\t\t\tjwt {\n\t\t\t\tjwks %s\n\t\t\t}\n\t\t}\n\t\tzone a {\n\t\t\tlimit 1/1m\n\t\t}\n\t}\n}\n",
	}
	return strings.Replace(options[option], "%s", value, 1)
}

// Whatever is malformed, what is printed shows no part of the password: not as a host,
// not as the name of a setting, not in the words of a library or a server.
func TestNoPartOfAPasswordIsPrintedHoweverItIsMalformed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		option, value string
		hint          string // a part of the error; empty if the value is sound
	}{
		{"postgres", "postgres://u:q7Xk%40w9Zp@127.0.0.1:1/d", ""},
		{"postgres", "postgres://u:q7Xk:w9Zp@127.0.0.1:1/d", ""},
		{"postgres", "postgres://u:q7Xk@w9Zp@127.0.0.1:1/d", "@ as %40"},
		{"postgres", "postgres://u:q7Xk@w9Zp@m4Vt@127.0.0.1:1/d", "@ as %40"},
		{"postgres", "postgres://u:q7Xk/w9Zp@127.0.0.1:1/d", "/ as %2F"},
		{"postgres", "postgres://u:q7Xk?w9Zp@127.0.0.1:1/d", "? as %3F"},
		{"postgres", "postgres://u:q7Xk#w9Zp@127.0.0.1:1/d", "# as %23"},
		{"postgres", "postgres://u:q7Xk%w9Zp@127.0.0.1:1/d", "% as %25"},
		{"postgres", "postgres://u:q7Xk%@127.0.0.1:1/d", "% as %25"},
		{"postgres", "postgres://u:q7Xk w9Zp@127.0.0.1:1/d", "a space as %20"},
		{"postgres", "postgres://u:q7Xk", "port is wrong"},
		{"postgres", "postgres://u:q7Xk#w9Zp", "no host and port"},
		{"postgres", "postgres:/u:q7Xk@127.0.0.1:1/d", "neither a URL"},
		{"postgres", "postgress://u:q7Xk@127.0.0.1:1/d?sslmode=disable", "neither a URL"},
		{"postgres", "u:q7Xk@127.0.0.1:1/d", "neither a URL"},
		{"postgres", "postgres://u@127.0.0.1:1/d?password=q7Xk&w9Zp=m4Vt", "not known"},
		{"postgres", "postgres://u@127.0.0.1:1/d?password=q7Xk%w9Zp", "cannot be read"},
		{"postgres", "postgres://u:q7Xk{w9Zp}m4Vt@127.0.0.1:1/d", "%7B"},
		{"postgres", "host=127.0.0.1 port=1 user=u password=q7Xk@w9Zp", ""},
		{"postgres", "host=127.0.0.1 port=1 user=u password=q7Xk w9Zp=m4Vt", "not known"},
		{"postgres", "host=127.0.0.1 port=1 user=u password=q7Xk w9Zp", "cannot be read"},
		{"postgres", "password=q7Xk w9Zp host=127.0.0.1 port=1 user=u", "cannot be read"},
		{"postgres", "host=127.0.0.1 port=1 user=u password='q7Xk'w9Zp'", "cannot be read"},
		{"postgres", "host=127.0.0.1 port=1 user=u password='q7Xk", "cannot be read"},
		{"postgres", "host=127.0.0.1 port=1 user=u password=q7Xk sslmode=perhaps", "sslmode is wrong"},
		{"redis", "redis://:q7Xk%40w9Zp@127.0.0.1:1", ""},
		{"redis", "redis://:q7Xk@w9Zp@127.0.0.1:1", "percent-encoded"},
		{"redis", "redis://u:12/w9Zp@127.0.0.1:1", "percent-encoded"},
		{"redis", "redis://:q7Xk/w9Zp@127.0.0.1:1", "percent-encoded"},
		{"redis", "redis://:q7Xk?w9Zp@127.0.0.1:1", "percent-encoded"},
		{"redis", "redis://:q7Xk#w9Zp@127.0.0.1:1", "percent-encoded"},
		{"redis", "redis://:q7Xk%w9Zp@127.0.0.1:1", "percent-encoded"},
		{"redis", "redis://:q7Xk w9Zp@127.0.0.1:1", "percent-encoded"},
		{"redis", "redis://:q7Xk", "percent-encoded"},
		{"redis", "redis://u:q7Xk/0", "percent-encoded"},
		{"redis", "redis://127.0.0.1:1?password=q7Xk", "carries options"},
		{"redis", ":q7Xk@127.0.0.1:1", "has no scheme"},
		{"redis", "127.0.0.1:1,password=q7Xk", "has no scheme"},
		{"redis", "http://:q7Xk@127.0.0.1:1", "unknown scheme"},
		{"redis", "redis://:q7Xk{w9Zp}m4Vt@127.0.0.1:1", "placeholder"},
		{"redis password", "q7Xk w9Zp", "one value"},
		{"redis password", "q7Xk{w9Zp}m4Vt", "placeholder"},
		{"secret", "q7Xk", "too short"},
		{"secret", "q7Xk w9Zp-0123456789-0123456789-0123456789", "one value"},
		{"secret", "q7Xk{w9Zp}m4Vt-0123456789-0123456789-0123456789", "placeholder"},
		{"jwks", "https://u:q7Xk@w9Zp@:x/keys", "not a URL"},
		{"jwks", "https://u:q7Xk%w9Zp@127.0.0.1:1/keys", "not a URL"},
	} {
		t.Run(tt.option+" "+tt.value, func(t *testing.T) {
			t.Parallel()
			quoted := "\"" + tt.value + "\""
			if tt.hint == "one value" { // quotes would make it one
				quoted = tt.value
			}
			out, err := validate(t, secretive(tt.option, quoted))
			if (err == nil) != (tt.hint == "") || !strings.Contains(out, tt.hint) {
				t.Errorf("got %v, want %q in\n%s", err, tt.hint, out)
			}
			wantSecretKept(t, out)
			out, _ = validate(t, secretive(tt.option, tt.value)) // without quotes, as people write it
			wantSecretKept(t, out)
			out, _ = validate(t, secretive(tt.option, "{env.VALUE}"), "VALUE="+tt.value)
			wantSecretKept(t, out)
		})
	}
}

// What commands print is looked at by more people than the configuration.
func TestNoPartOfAPasswordIsPrintedByCommands(t *testing.T) {
	t.Parallel()
	c := newCaddy(t)
	for _, dsn := range []string{
		"postgres://u:q7Xk@w9Zp@127.0.0.1:1/d", "postgres://u:q7Xk{w9Zp}m4Vt@127.0.0.1:1/d", "postgres://u:q7Xk%w9Zp@127.0.0.1:1/d",
		"postgres://u:q7Xk%40w9Zp@127.0.0.1:1/d", "host=127.0.0.1 port=1 password=q7Xk w9Zp=m4Vt",
	} {
		out, err := c.prints("rate-limit", "migrate", "--dsn", dsn)
		if err == nil {
			t.Errorf("%s: there is no database, and it was migrated", dsn)
		}
		wantSecretKept(t, out)
	}
	for option, value := range map[string]string{"jwks": "http://u:q7Xk%40w9Zp@10.0.0.1/keys", "postgres": "postgres://u:q7Xk@w9Zp@127.0.0.1:1/d", "redis": "redis://:q7Xk@w9Zp@127.0.0.1:1"} {
		out, _ := c.prints("rate-limit", "check", "--config", c.write(option, secretive(option, value)), "--adapter", "caddyfile")
		wantSecretKept(t, out)
	}
}

// prints runs a command and returns all that it prints.
func (c *caddy) prints(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, caddyBinary, args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// wantSecretKept looks at all that was printed.
func wantSecretKept(t *testing.T, out string) {
	t.Helper()
	for _, part := range passwordParts {
		if strings.Contains(out, part) {
			t.Errorf("%q is in\n%s", part, out)
		}
	}
}
