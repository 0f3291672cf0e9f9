package integration_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// wantAll fails the test for every text that is missing from what Caddy said.
func wantAll(t *testing.T, said string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(said, text) {
			t.Errorf("want %q in:\n%s", text, said)
		}
	}
}

// example is how mholt/caddy-ratelimit is configured.
const example = trusting + `
:{$PORT} {
	rate_limit {
		distributed {
			read_interval 5s
			write_interval 5s
		}
		log_key
		zone static_example {
			match {
				method GET
			}
			key static
			events 20
			window 1d
		}
		zone dynamic_example {
			key {remote_host}
			events 4
			window 1d
		}
		zone by_header {
			match {
				header X-Client *
			}
			key {http.request.header.X-Client}
			events 3
			window 1d
		}
	}
	respond "welcome"
}`

func TestACaddyfileOfWindowAndEventsMeansWhatItMeansThere(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, example, backend)
		c.sequence(5, "/", with("X-Client", "acme")).want(t, tally{200: 3, 429: 2})
		burst(t, 20, "/", []option{with("X-Client", "globex")}, c).want(t, tally{200: 1, 429: 19}) // by its address
		c.get("/", method("POST")).wantProblem(t, 429, "rate_limited", "dynamic_example")
	})
}

// Without a key all share one bucket there; here too, in these words.
func TestAZoneOfWindowAndEventsWithoutAKeyIsOneBucketForAll(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone all {
			events 4
			window 1d
		}
	}
	respond "welcome"
}`, backend)
		count := make(tally)
		for i := range 10 {
			count[c.get("/", from(fmt.Sprintf("203.0.113.%d", i))).status]++
		}
		count.want(t, tally{200: 4, 429: 6})
	})
}

// The window slides: what was let in a window ago makes room, event by event,
// and never more than the limit stands in any window.
func TestAZoneOfWindowAndEventsSlides(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		const window = 1500 * time.Millisecond
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone sliding {
			key static
			events 3
			window 1500ms
		}
	}
	respond "welcome"
}`, backend)
		var sent, answered []time.Time // of those that passed
		eventually(t, "nine requests pass", func() bool {
			at := time.Now()
			if c.get("/").status == 200 {
				sent, answered = append(sent, at), append(answered, time.Now())
			}
			return len(sent) == 9
		})
		for i := 3; i < len(sent); i++ {
			if apart := answered[i].Sub(sent[i-3]); apart < window {
				t.Errorf("requests %d and %d passed %s apart, so four passed in one window of %s", i-2, i+1, apart, window)
			}
		}
	})
}

func TestJSONOfWindowAndEventsLoads(t *testing.T) {
	t.Parallel()
	c := startCaddyJSON(t, handlerJSON(`
		"rate_limits": {
			"static_example": {"key": "static", "window": "24h", "max_events": 3},
			"never": {"match": [{"path": ["/never"]}], "window": "1m", "max_events": 0}
		}`))
	c.sequence(5, "/").want(t, tally{200: 3, 429: 2})
	c.get("/never").wantProblem(t, 429, "rate_limited", "never")
}

// handlerJSON is a configuration whose one handler has these fields.
func handlerJSON(fields string) string {
	return `{"apps": {"http": {"servers": {"site": {
		"listen": [":${PORT}"],
		"routes": [{"handle": [
			{"handler": "rate_limit", ` + fields + `},
			{"handler": "static_response", "body": "welcome"}
		]}]
	}}}}}`
}

// loadJSON is load for a configuration in Caddy's own format.
func (c *caddy) loadJSON(config string) string {
	c.t.Helper()
	for _, name := range []string{"PORT", "PORT2"} {
		config = strings.ReplaceAll(config, "${"+name+"}", c.getenv(name))
	}
	if !json.Valid([]byte(config)) {
		c.t.Fatalf("not JSON: %s", config)
	}
	return c.post("application/json", config)
}

func TestEventsOfZeroDenyEverything(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit {
		zone never {
			key static
			events 0
			window 1m
		}
	}
	respond "welcome"
}`)
	c.sequence(3, "/").want(t, tally{429: 3})
	if problem := c.loadJSON(handlerJSON(`"rate_limits": {"never": {"window": "1m", "max_events": 0}}`)); problem != "" {
		t.Fatal(problem)
	}
	c.get("/").wantProblem(t, 429, "rate_limited", "never")
}

// Words that no longer do anything load, and one warning says for each what
// does its work now.
func TestReplacedWordsLogOneWarningThatSaysWhatReplacesThem(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit {
		distributed {
			read_interval 5s
			write_interval 5s
			purge_age 1h
		}
		storage file_system {$SOCKET}.storage
		sweep_interval 1m
		zone login {
			limit 2/1d
		}
	}
	respond "welcome"
}`)
	c.sequence(3, "/").want(t, tally{200: 2, 429: 1})
	wants := map[string]string{"distributed": "backend redis", "storage": "backend", "sweep_interval": "by themselves"}
	for word, instead := range wants {
		lines := c.log.lines(`"level":"warn"`, "no effect", word)
		if len(lines) != 1 {
			t.Errorf("%s: %d warnings, want one:\n%s", word, len(lines), strings.Join(lines, ""))
			continue
		}
		wantAll(t, lines[0], instead)
	}
}

func TestJSONOfReplacedWordsLoadsToo(t *testing.T) {
	t.Parallel()
	c := startCaddyJSON(t, handlerJSON(`
		"distributed": {"read_interval": "5s", "write_interval": "5s"},
		"storage": {"module": "file_system"},
		"sweep_interval": "1m",
		"jitter": 0.2,
		"log_key": true,
		"zones": [{"name": "login", "limit": 2, "window": "24h"}]`))
	c.sequence(3, "/").want(t, tally{200: 2, 429: 1})
	if lines := c.log.lines(`"level":"warn"`, "distributed", "storage", "sweep_interval"); len(lines) != 1 {
		t.Errorf("%d warnings, want one of all three words", len(lines))
	}
}

// Caddy logs every event at debug level, which is how one is seen from outside.
func TestARefusalEmitsItsEvent(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
{
	debug
}
:{$PORT} {
	rate_limit 1/1d search
	respond "welcome"
}`)
	emitted := func() []string { return c.log.lines(`"logger":"events"`, `"rate_limit_exceeded"`) }
	c.get("/").wantStatus(t, 200)
	c.get("/").wantStatus(t, 429)
	eventually(t, "the event is emitted", func() bool { return len(emitted()) == 1 })
	var line struct {
		Data struct {
			Zone     string `json:"zone"`
			Wait     any    `json:"wait"`
			RemoteIP string `json:"remote_ip"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(emitted()[0]), &line); err != nil {
		t.Fatal(err)
	}
	if line.Data.Zone != "search" || line.Data.Wait == nil || line.Data.RemoteIP != "127.0.0.1" {
		t.Errorf("data of the event: %+v", line.Data)
	}
	c.get("/").wantStatus(t, 429)
	eventually(t, "and again for the next refusal", func() bool { return len(emitted()) == 2 })
}

// Mistakes are refused with the file and line, before anything runs.
func TestMistakesAreRefusedWithFileAndLine(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, caddyfile string
		wants           []string
	}{
		{"a limit without a window", ":{$PORT} {\n rate_limit 100\n }\n", []string{"Caddyfile:2", "100/1m"}},
		{"an unknown word", ":{$PORT} {\n rate_limit {\n zoom x\n }\n }\n", []string{"Caddyfile:3", "zoom", "zone"}},
		{"an unknown word of a zone", ":{$PORT} {\n rate_limit {\n zone a {\n limit 1/1m\n burts 3\n }\n }\n }\n", []string{"Caddyfile:5", "burts", "limit"}},
		{"a zone without a limit", ":{$PORT} {\n rate_limit {\n zone a {\n key x\n }\n }\n }\n", []string{"Caddyfile:3", "limit"}},
		{"nothing to limit", ":{$PORT} {\n rate_limit\n }\n", []string{"Caddyfile:2", "100/1m"}},
		{
			"two zones of one name", ":{$PORT} {\n rate_limit 1/1m a\n }\n:{$PORT2} {\n rate_limit 2/1m a\n }\n",
			[]string{"Caddyfile:2", "Caddyfile:5", "zone a"},
		},
		{
			"two zones of one name in one handler", ":{$PORT} {\n rate_limit {\n zone a {\n limit 1/1m\n }\n zone a {\n limit 1/1m\n }\n }\n }\n",
			[]string{"Caddyfile:6", "zone a", "twice"},
		},
		{"a zone that is nowhere defined", ":{$PORT} {\n rate_limit {\n zone a\n }\n }\n", []string{"Caddyfile:3", "zone a"}},
		{"braces in a name", ":{$PORT} {\n rate_limit 1/1m {client_ip}\n }\n", []string{"Caddyfile:2", "braces"}},
		{"an unknown backend", "{\n rate_limit {\n backend redsi\n }\n }\n", []string{"Caddyfile:3", "redsi", "memory", "redis"}},
		{"a cost that never passes", ":{$PORT} {\n rate_limit {\n zone a {\n limit 5/1m\n cost 6\n }\n }\n }\n", []string{"Caddyfile:3", "cost 6", "burst"}},
		{"a bucket that is too large", ":{$PORT} {\n rate_limit 1000000000000/366d\n }\n", []string{"Caddyfile:2", "2^53"}},
		{"the option twice", "{\n rate_limit {\n }\n rate_limit {\n }\n }\n", []string{"Caddyfile:4", "twice"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			wantAll(t, refusal(t, tc.caddyfile), tc.wants...)
		})
	}
}

func TestAZoneOfTheGlobalOptionIsUsedByItsName(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
{
	rate_limit {
		zone shared {
			key {http.request.header.X-Client}
			limit 3/1d
		}
	}
}
:{$PORT} {
	rate_limit {
		zone shared
	}
	respond "first"
}
:{$PORT2} {
	rate_limit {
		zone shared
	}
	respond "second"
}`)
	second := c.at("tcp", c.addr2())
	burst(t, 40, "/", []option{with("X-Client", "acme")}, c, second).want(t, tally{200: 3, 429: 37})
	second.get("/", with("X-Client", "globex")).wantStatus(t, 200)
}
