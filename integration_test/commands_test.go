package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// topLevel are the commands that only a client sends, never a script.
var topLevel = []string{"evalsha", "eval", "script|load", "ping", "multi", "exec", "incr", "mget", "expire", "pexpire", "evalsha_ro", "fcall", "hello", "select"}

func TestAnAllowedRequestIsOneCommandWhateverTheNumberOfZones(t *testing.T) {
	t.Parallel()
	for _, zones := range []int{1, 3, 10} {
		t.Run(fmt.Sprint(zones), func(t *testing.T) {
			t.Parallel()
			server := testserver.NewRedis(t)
			looker := inspect(t, server)
			var text strings.Builder
			for i := range zones {
				fmt.Fprintf(&text, "zone z%d {\n limit %d/1d\n }\n", i, 1000+i)
			}
			c := startCaddy(t, trusting+":{$PORT} {\n rate_limit {\n"+text.String()+"\n}\n respond welcome\n }\n", redisBackend(server))
			c.get("/").wantStatus(t, 200) // connects
			eventually(t, "both scripts are loaded", func() bool { return commandCalls(t, looker)["script|load"] >= 2 })
			before := commandCalls(t, looker)
			c.sequence(20, "/").want(t, tally{200: 20})
			after := commandCalls(t, looker)
			for _, name := range topLevel {
				want := 0
				if name == "evalsha" {
					want = 20
				}
				if got := after[name] - before[name]; got != want {
					t.Errorf("%s: %d calls for 20 requests, want %d", name, got, want)
				}
			}
		})
	}
}

// Tiers and zones of one handler go in the same call.
func TestZonesAndPoliciesOfOneHandlerAreOneCommand(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	looker := inspect(t, server)
	c := startCaddy(t, tiered+`
:{$PORT} {
	rate_limit {
		zone address {
			limit 100/1d
		}
		zone everybody {
			key all
			limit 100/1d
		}
		tiers
	}
	respond "welcome"
}`, redisBackend(server))
	acme := with("X-API-Key", acmeKey)
	c.get("/", acme).wantStatus(t, 200)
	before := commandCalls(t, looker)
	c.get("/login", method("POST"), acme).wantStatus(t, 200)
	if calls := commandCalls(t, looker)["evalsha"] - before["evalsha"]; calls != 1 {
		t.Errorf("one request of four limits was %d calls, want 1", calls)
	}
}

// Whatever needs no decision of Redis is not asked of it.
func TestWhatIsDecidedWithoutRedisIsNoCommand(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	looker := inspect(t, server)
	c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone never {
			match path /never
			limit 0/1d
		}
		zone login {
			limit 5/1d
			cost {http.request.header.X-Cost}
		}
		exempt path /healthz
	}
	respond "welcome"
}`, redisBackend(server))
	c.get("/").wantStatus(t, 200)
	before := commandCalls(t, looker)
	c.get("/never").wantStatus(t, 429)
	c.get("/healthz").wantStatus(t, 200)
	c.get("/", with("X-Cost", "6")).wantStatus(t, 400)
	if calls := commandCalls(t, looker)["evalsha"] - before["evalsha"]; calls != 0 {
		t.Errorf("%d calls, want none", calls)
	}
}

func TestTwoPrefixesOnOneRedisDoNotMeet(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	for _, prefix := range []string{"staging", "production"} {
		c := startCaddy(t, trusting+":{$PORT} {\n rate_limit 2/1d login\n respond welcome\n }\n",
			redisBackend(server, "timeout 10s", "key_prefix "+prefix))
		c.sequence(3, "/").want(t, tally{200: 2, 429: 1})
	}
	keys := storedKeys(t, inspect(t, server))
	slices.Sort(keys)
	if want := []string{"production:{127.0.0.1}:login", "staging:{127.0.0.1}:login"}; !slices.Equal(keys, want) {
		t.Errorf("keys: got %q, want %q", keys, want)
	}
}

// A flood of requests that are known to be refused costs Redis a call now and
// then, not one each.
func TestARefusalThatIsKnownIsNoCommand(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	looker := inspect(t, server)
	c := startCaddy(t, trusting+":{$PORT} {\n rate_limit 2/1d login\n respond welcome\n }\n", redisBackend(server))
	c.sequence(3, "/").want(t, tally{200: 2, 429: 1})
	before, start := commandCalls(t, looker), time.Now()
	c.sequence(100, "/").want(t, tally{429: 100})
	most := 1 + int(time.Since(start)/time.Second)
	if calls := commandCalls(t, looker)["evalsha"] - before["evalsha"]; calls > most {
		t.Errorf("100 refusals were %d calls, want at most %d", calls, most)
	}
}
