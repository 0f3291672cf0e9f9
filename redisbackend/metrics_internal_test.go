package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// reply is an error reply as the library returns it.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

func TestEveryFailureOfRedisHasItsKind(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	slow := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for _, tt := range []struct {
		err  error
		want string // empty: not counted
	}{
		{errTimeout, "timeout"},
		{failed(slow), "timeout"},
		{failed(refused), "connection"},
		{failed(io.EOF), "connection"},
		{failed(fmt.Errorf("write: %w", syscall.EPIPE)), "connection"},
		{errQueued, "queue"},
		{errBusy, "queue"},
		{failed(redis.ErrPoolTimeout), "queue"},
		{failed(reply("READONLY You can't write against a read only replica.")), "readonly"},
		{failed(reply("OOM command not allowed when used memory > 'maxmemory'.")), "memory"},
		{failed(reply("LOADING Redis is loading the dataset in memory")), "loading"},
		{failed(reply("CLUSTERDOWN The cluster is down")), "cluster"},
		{failed(reply("MOVED 3999 127.0.0.1:6381")), "cluster"},
		{failed(reply("TRYAGAIN Multiple keys request during rehashing of slot")), "cluster"},
		{failed(reply("NOAUTH Authentication required.")), "auth"},
		{failed(reply("ERR Protocol error: unauthenticated multibulk length")), "auth"},
		{failed(reply("NOPERM this user has no permissions")), "auth"},
		{failed(reply("WRONGTYPE 1")), "wrongtype"},
		{failed(reply("ERR something else")), "reply"},
		{failed(errors.New("a reply of 3 bytes")), "connection"},
		{&unavailable{reason: context.Canceled, uncounted: true}, ""},
		{errClosed, ""},
	} {
		kind, ok := kindOf(tt.err)
		got := ""
		if ok {
			got = kind.String()
		}
		if got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.err, got, tt.want)
		}
	}
}

// Redis before 7.0 tells what a command in a script met inside of an error of the
// script, and Dragonfly does so alike.
func TestAnErrorThatAScriptMetIsThatErrorHoweverItIsWrapped(t *testing.T) {
	t.Parallel()
	const call = "Error running script (call to f_0a9a51ee96320953ec7bde8e63f3f060b9dac00c): "
	for _, wrapped := range []string{
		"%s",
		"ERR " + call + "@user_script:41: @user_script: 41: -%s   ",
		"ERR " + call + "@user_script:2: -%s",
		"ERR " + call + "@user_script:2: %s",
		"ERR " + call + "user_script:2: ERR %s",
		"@user_script: 41: -%s",    // caught by the script, and told for it
		"ERR @user_script: 7: -%s", // of a request that travelled with others
		"ERR user_script:7: %s",
		"%s script: 0a9a51ee96320953ec7bde8e63f3f060b9dac00c, on @user_script:41.", // since 7.0
	} {
		for text, want := range map[string]string{
			"READONLY You can't write against a read only replica.":                                               "readonly",
			"OOM command not allowed when used memory > 'maxmemory'.":                                             "memory",
			"MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.": "persistence",
			"MISCONF Errors writing to the AOF file: No space left on device":                                     "persistence",
			"NOREPLICAS Not enough good replicas to write.":                                                       "replicas",
			"LOADING Redis is loading the dataset in memory":                                                      "loading",
			"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                    "readonly",
			"CLUSTERDOWN Hash slot not served":                                                                    "cluster",
			"NOPERM this user has no permissions to run the 'psetex' command":                                     "auth",
			"The user executing the script can't run this command or subcommand":                                  "auth",
			"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":              "busy",
		} {
			err := reply(fmt.Sprintf(wrapped, text))
			kind, _ := kindOf(failed(err))
			if kind.String() != want || !isOutage(failed(err)) {
				t.Errorf("%s: of the kind %s, an outage: %t; want %s", err, kind, isOutage(err), want)
			}
		}
	}
}

func TestTheStateOfTheWorstBreakerIsTold(t *testing.T) {
	t.Parallel()
	bs := &breakers{whole: new(breaker), nodes: map[string]*breaker{"a": new(breaker), "b": new(breaker)}}
	if got := bs.worst(); got != stateClosed {
		t.Errorf("nothing is down: got %d, want %d", got, stateClosed)
	}
	bs.nodes["a"].outage.Store(new(outage))
	bs.nodes["a"].probing.Store(true)
	if got := bs.worst(); got != stateHalfOpen {
		t.Errorf("a probe is on its way: got %d, want %d", got, stateHalfOpen)
	}
	bs.whole.outage.Store(new(outage))
	if got := bs.worst(); got != stateOpen {
		t.Errorf("one is down: got %d, want %d", got, stateOpen)
	}
}
