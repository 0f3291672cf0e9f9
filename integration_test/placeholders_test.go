package integration_test

import (
	"os/exec"
	"strings"
	"testing"
)

// In JSON, Caddy expands no shorthand, and the placeholder would be empty for everybody.
func TestAShorthandInJSONIsAnErrorThatWritesItOut(t *testing.T) {
	t.Parallel()
	for key, meant := range map[string]string{
		"{client_ip}":                 "write {http.vars.client_ip}",
		"{header.X-Client}":           "write {http.request.header.X-Client}",
		"{http.request.headre.X-Key}": "write {http.request.header.X-Key}",
	} {
		c := newCaddy(t)
		path := c.write("caddy.json", `{"apps": {"http": {"servers": {"site": {"listen": [":0"], "routes": [{"handle": [
			{"handler": "rate_limit", "zones": [{"name": "clients", "key": "`+key+`", "limit": 2, "window": "1m"}]}]}]}}}}}`)
		cmd := exec.Command(caddyBinary, "validate", "--config", path)
		cmd.Dir, cmd.Env = c.dir, c.env
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "zone clients") || !strings.Contains(string(out), meant) {
			t.Errorf("key %s: got %v, want an error that says %q\n%s", key, err, meant, out)
		}
	}
}

// What only another module may set cannot be judged when it is loaded: it is told once, works
// where something sets it, and counts by address where nothing does.
func TestAPlaceholderOfAnotherModuleIsToldAndNeverOneBucketForAll(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	map {http.request.header.X-Host} {tenant} {
		a.example acme
		b.example globex
	}
	rate_limit /set {tenant} 2/1d set
	rate_limit /unset {geo.country} 2/1d unset
	rate_limit /caddy {http.regexp.tenant.1} 2/1d caddy
	respond "welcome"
}`, backend)
		for _, tenant := range []string{"a.example", "b.example"} {
			c.sequence(3, "/set", with("X-Host", tenant)).want(t, tally{200: 2, 429: 1})
		}
		for _, path := range []string{"/set", "/unset", "/caddy"} {
			for _, address := range []string{"203.0.113.7", "203.0.113.8"} {
				c.sequence(3, path, from(address)).want(t, tally{200: 2, 429: 1})
			}
		}
		for name, want := range map[string]int{"{tenant}": 1, "{geo.country}": 1, "{http.regexp.tenant.1}": 0} {
			if told := c.log.lines("not Caddy's own", name); len(told) != want {
				t.Errorf("%s is told %d times, want %d", name, len(told), want)
			}
		}
	})
}
