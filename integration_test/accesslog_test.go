package integration_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// accessLog returns the fields of rate_limit in the access log's line of each
// request, in order, once there are as many lines as requests.
func (c *caddy) accessLog(requests int) (fields []map[string]any) {
	c.t.Helper()
	var lines []string
	eventually(c.t, fmt.Sprintf("the access log has %d lines", requests), func() bool {
		lines = c.log.lines(`"msg":"handled request"`, `"duration"`)
		return len(lines) == requests
	})
	for _, line := range lines {
		var all map[string]any
		if err := json.Unmarshal([]byte(line), &all); err != nil {
			c.t.Fatalf("a line of the access log is not JSON: %v\n%s", err, line)
		}
		maps.DeleteFunc(all, func(name string, _ any) bool { return !strings.HasPrefix(name, "rate_limit.") })
		fields = append(fields, all)
	}
	return fields
}

// wantLogged compares the access log with one row per request: zone, decision,
// remaining (-1: not told), tier, and the zone in shadow mode that would have refused,
// if one would; nothing for a request that no limit applied to.
func (c *caddy) wantLogged(rows ...[]any) {
	c.t.Helper()
	logged := c.accessLog(len(rows))
	for i, row := range rows {
		want := map[string]any{}
		if row != nil {
			want = map[string]any{"rate_limit.zone": row[0], "rate_limit.decision": row[1], "rate_limit.tier": row[3]}
			if row[2] != -1 {
				want["rate_limit.remaining"] = float64(row[2].(int))
			}
			if len(row) > 4 {
				want["rate_limit.shadow_zone"] = row[4]
			}
		}
		if !maps.Equal(logged[i], want) {
			c.t.Errorf("request %d: got %v, want %v", i+1, logged[i], want)
		}
	}
}

// logging makes the site on {$PORT} write an access log.
func logging(caddyfile string) string {
	return strings.Replace(caddyfile, ":{$PORT} {", ":{$PORT} {\n\tlog\n", 1)
}

func TestTheAccessLogTellsOfEveryLimitedRequestWhatWasDecided(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, logging(countedSite), backend)
		c.sequence(4, "/two")
		c.sequence(5, "/shadow")
		c.sequence(1, "/zero")
		c.sequence(1, "/key")
		c.sequence(1, "/token", with("Authorization", "Bearer a.b.c"))
		c.sequence(1, "/skipped")
		c.sequence(1, "/free")
		c.wantLogged(
			[]any{"first", "allowed", 2, "anonymous"},
			[]any{"first", "allowed", 1, "anonymous"},
			[]any{"first", "allowed", 0, "anonymous"},
			[]any{"first", "blocked", 0, "anonymous"},
			[]any{"wide", "allowed", 3, "anonymous"},
			[]any{"wide", "allowed", 2, "anonymous"},
			[]any{"wide", "shadow_blocked", 1, "anonymous", "watching"},
			[]any{"wide", "shadow_blocked", 0, "anonymous", "watching"},
			[]any{"wide", "blocked", 0, "anonymous", "watching"},
			[]any{"never", "blocked", 0, "anonymous"},
			[]any{"keyed", "invalid", -1, "anonymous"},
			[]any{"account", "invalid", 1, "anonymous"},
			nil, nil,
		)
	})
}

func TestTheAccessLogTellsTheTierOfTheClientAndWhatRedisCouldNotDecide(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, logging(managed))
	m := manage(c)
	key := m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`).Key
	c.get("/", apiKey(key))
	c.wantLogged([]any{"PRO *", "allowed", 599, "PRO"})

	server := testserver.NewRedis(t)
	c = startCaddy(t, logging(modes), impatient(server))
	server.Kill()
	c.get("/closed")
	c.get("/open")
	c.get("/local")
	c.wantLogged(
		[]any{"closed", "unavailable", -1, "anonymous"},
		[]any{"", "allowed", -1, "anonymous"},
		[]any{"local", "allowed", 2, "anonymous"},
	)
}

// A limit is tried in the shadow to see whom it would refuse, so the line must name it
// also where nothing else limits.
func TestTheAccessLogNamesTheShadowZoneThatWouldHaveRefused(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, logging(strings.Replace(countedSite, "rate_limit /shadow {", `rate_limit /alone {
		zone roomy {
			limit 9/1d
			mode shadow
		}
		zone tight {
			limit 1/1d
			mode shadow
		}
	}
	rate_limit /shadow {`, 1)))
	c.sequence(2, "/alone").want(t, tally{200: 2})
	c.wantLogged(
		[]any{"", "allowed", -1, "anonymous"},
		[]any{"", "shadow_blocked", -1, "anonymous", "tight"},
	)
}

// Operators filter fields by their names, so those must be literal.
func TestTheFieldsOfTheAccessLogCanBeFiltered(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, strings.Replace(countedSite, ":{$PORT} {", `:{$PORT} {
	log {
		format filter {
			rate_limit.zone replace hidden
			rate_limit.tier delete
		}
	}
	`, 1))
	c.get("/two")
	got := c.accessLog(1)[0]
	if want := (map[string]any{"rate_limit.zone": "hidden", "rate_limit.decision": "allowed", "rate_limit.remaining": 2.0}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
