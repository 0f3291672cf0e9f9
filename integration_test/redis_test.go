package integration_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// trusting is the head of most Caddyfiles here: requests from this machine may
// say, in X-Forwarded-For, from where they come, and headers may be long.
const trusting = `
{
	servers {
		trusted_proxies static 127.0.0.1/32 ::1/128
		max_header_size 1MB
	}
	rate_limit {
		backend {$BACKEND:memory}
	}
}
`

// onEachBackend runs a test with buckets in memory and again in Redis. The
// test gets the environment variable that selects the backend in a Caddyfile.
func onEachBackend(t *testing.T, test func(t *testing.T, backend string)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, "BACKEND=memory")
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, redisBackend(testserver.NewRedis(t)))
	})
}

// redisBackend selects a server as the backend. The deadline is long: these
// tests are about decisions, and a busy machine must not turn one into a
// failure of Redis.
func redisBackend(server *testserver.Redis, lines ...string) string {
	text := "BACKEND=redis " + server.URL() + " {\n"
	if len(lines) == 0 {
		lines = []string{"timeout 10s"}
	}
	for _, line := range lines {
		text += line + "\n"
	}
	return text + "}\n"
}

// inspect opens a connection of the test's own to look into a server.
func inspect(t *testing.T, server *testserver.Redis) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

// storedKeys returns every key of a server, and fails the test for one that
// would live for ever.
func storedKeys(t *testing.T, client *redis.Client) []string {
	t.Helper()
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		ttl, err := client.Do(t.Context(), "PTTL", key).Int64()
		if err != nil {
			t.Fatal(err)
		}
		if ttl < 0 && ttl != -2 { // -2: it has just expired; 0: it is about to
			t.Errorf("key %q has PTTL %d, want a time to live", key, ttl)
		}
	}
	return keys
}

// connectedClients counts the connections of a server, that of the count among them.
func connectedClients(t *testing.T, server *testserver.Redis) int {
	t.Helper()
	client := inspect(t, server)
	defer client.Close()
	n, err := strconv.Atoi(client.InfoMap(t.Context(), "clients").Item("Clients", "connected_clients"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

var commandLine = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+),`)

// commandCalls counts the commands that a server has run, by name. Those that
// a script runs are among them.
func commandCalls(t *testing.T, client *redis.Client) map[string]int {
	t.Helper()
	text, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	calls := make(map[string]int)
	for _, m := range commandLine.FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(fmt.Errorf("reading %q: %w", m[0], err))
		}
		calls[m[1]] = n
	}
	return calls
}
