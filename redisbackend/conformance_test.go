package redisbackend_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/conformance"
	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// fresh returns what opens backends with the settings, each with a key prefix of
// its own.
func fresh(settings redisbackend.Backend) func(*testing.T, *conformance.Clock) conformance.Backend {
	var n atomic.Int64
	return func(t *testing.T, clock *conformance.Clock) conformance.Backend {
		b := settings
		b.Timeout, b.KeyPrefix = patient, fmt.Sprintf("test%d", n.Add(1))
		provision(t, &b).SetClock(clock.Now)
		return &b
	}
}

func conform(t *testing.T, settings redisbackend.Backend) { conformance.Run(t, fresh(settings)) }

func TestConformance(t *testing.T) {
	conform(t, redisbackend.Backend{URLs: []string{testserver.NewRedis(t).URL()}})
}

func TestConformanceInACluster(t *testing.T) {
	conformance.RunGivingBack(t, fresh(redisbackend.Backend{URLs: newCluster(t).urls()}))
}

func TestConformanceBehindASentinel(t *testing.T) {
	master, replica := testserver.NewRedis(t), testserver.NewRedis(t)
	if err := connect(t, replica).ReplicaOf(t.Context(), "127.0.0.1", strconv.Itoa(master.Port())).Err(); err != nil {
		t.Fatal(err)
	}
	sentinel := testserver.NewSentinel(t, "mymaster", master)
	conform(t, redisbackend.Backend{URLs: []string{sentinel.URL()}, Sentinel: "mymaster"})
}

func TestConformanceOverTLS(t *testing.T) {
	cert, key := certificate(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	_ = l.Close()
	testserver.NewRedis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
	conform(t, redisbackend.Backend{
		URLs: []string{"rediss://127.0.0.1:" + port},
		TLS:  &redisbackend.TLS{CA: cert, Cert: cert, Key: key, ServerName: "redis.example"},
	})
}

func TestConformanceOverASocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "redis.sock")
	testserver.NewRedis(t, "--unixsocket", socket)
	conform(t, redisbackend.Backend{URLs: []string{"unix://" + socket}})
}

// The user may do what the documentation says that it must, and nothing else.
func TestConformanceAsAUserWithRights(t *testing.T) {
	s := testserver.NewRedis(t)
	rights := []any{"ACL", "SETUSER", "tollgate", "on", ">secret", "~test*"}
	for _, command := range commandsNeeded {
		rights = append(rights, "+"+command)
	}
	if err := connect(t, s).Do(t.Context(), rights...).Err(); err != nil {
		t.Fatal(err)
	}
	conform(t, redisbackend.Backend{URLs: []string{s.URL()}, Username: "tollgate", Password: "secret"})
}

// commandsNeeded is what the message about missing rights names.
var commandsNeeded = []string{
	"evalsha", "eval", "time", "get", "psetex", "del", "type", "llen", "lindex", "lrange", "rpush", "lset", "ltrim", "lrem", "pexpire",
}
