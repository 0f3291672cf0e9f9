package redisbackend_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// nonsense is what no Redis says to what it is asked, and what the log calls it.
var nonsense = map[string]string{
	// What is announced would fill the memory, and need not come.
	"$99999999999\r\n": "connection", "*2000000000\r\n": "connection", "$9223372036854775807\r\n": "connection",
	"%2000000000\r\n": "connection", "~2000000000\r\n": "connection", ">2000000000\r\n": "connection",
	"|2000000000\r\n": "connection", "!99999999999\r\n": "connection", "=99999999999\r\n": "connection",
	strings.Repeat("|1\r\n", 100_000):             "connection", // without a bottom
	strings.Repeat("*1000\r\n", 10_000):           "connection",
	strings.Repeat("*1\r\n", 10_000):              "connection",
	"-ERR " + strings.Repeat("x", 1<<20) + "\r\n": "connection", // and would stand in the log
	"+" + strings.Repeat("x", 20<<20):             "connection",
	"*-1\r\n":                                     "connection", "$-1\r\n": "connection", "_\r\n": "connection", // nothing at all
	"*0\r\n": "connection", "*1\r\n$1\r\nx\r\n": "connection", "*3\r\n:1\r\n:2\r\n:3\r\n": "connection", // of another shape
	":1\r\n": "connection", "+OK\r\n": "connection", ",1.5\r\n": "connection", "#t\r\n": "connection", "(1\r\n": "connection",
	"$0\r\n\r\n": "connection", "$5\r\nhello\r\n": "connection",
	"$32\r\n" + strings.Repeat("\xff", 32) + "\r\n": "connection", // of the right length
	"$32\r\n" + strings.Repeat("\x00", 32) + "\r\n": "connection",
	"\r\n": "connection", "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n": "connection",
	"-NOSCRIPT No matching script.\r\n": "connection",
	"-redis: nil\r\n":                   "connection", // as the library calls nothing

	// Errors that a Redis that works never says.
	"-upstream failure\r\n": "reply", "-ERR something\r\n": "reply", "-FOO\r\n": "reply", "-\r\n": "reply",
	"-MOVED 1 127.0.0.1:1\r\n": "cluster", "-ASK 1 127.0.0.1:1\r\n": "cluster",
}

// Whatever stands in for Redis, it decides nothing, it is an outage, probes do not take
// it for repaired, and what it announces is not made room for.
func TestNonsenseInPlaceOfRedisIsAnOutageLikeAnyOther(t *testing.T) {
	t.Parallel()
	bk := bucket(t, "ip", "10/1m")
	backends, kinds := make(map[string]*redisbackend.Backend), make(map[string]string)
	for reply, kind := range nonsense {
		for _, greets := range []bool{false, true} {
			what := fmt.Sprintf("%.40q, greets %t", reply, greets)
			kinds[what] = kind
			backends[what] = provision(t, &redisbackend.Backend{URLs: []string{testserver.NewPretender(t, reply, greets).URL()}, Timeout: patient})
		}
	}
	eventually(t, "all breakers open", func() bool {
		open := true
		for _, b := range backends {
			mustFail(t, b, bk)
			open = open && b.Outage() != ""
		}
		return open
	})
	for what, b := range backends {
		if got := b.Outage(); got != kinds[what] {
			t.Errorf("%s: the outage is of the kind %q, not %q", what, got, kinds[what])
		}
	}
	for begin := time.Now(); time.Since(begin) < 3*redisbackend.ProbeInterval; time.Sleep(5 * time.Millisecond) {
		for what, b := range backends {
			if up, _, _ := b.Health(); up {
				t.Fatalf("%s: a probe took it for repaired", what)
			}
		}
	}
}
