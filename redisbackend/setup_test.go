package redisbackend_test

import (
	"context"
	"errors"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

func TestMain(m *testing.M) {
	redisbackend.SetLongestProbe(time.Duration(patient))
	goleak.VerifyTestMain(settled{m}, goleak.IgnoreCurrent())
}

// settled are tests at whose end connections to dead servers may still be tried: the
// library sees that they are not wanted any more after a second's sleep.
type settled struct{ *testing.M }

func (s settled) Run() int {
	code := s.M.Run()
	stacks := make([]byte, 1<<20)
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if n := runtime.Stack(stacks, true); !strings.Contains(string(stacks[:n]), ").tryDial(") {
			break
		}
	}
	return code
}

const (
	// patient is a timeout that no healthy test on a busy machine reaches.
	patient = caddy.Duration(5 * time.Second)

	// brief is the timeout of tests that run into it.
	brief = caddy.Duration(100 * time.Millisecond)

	// forever bounds what would otherwise hang.
	forever = 20 * time.Second
)

// provision provisions a backend and cleans it up at the test's end.
func provision(tb testing.TB, b *redisbackend.Backend) *redisbackend.Backend {
	tb.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	tb.Cleanup(cancel)
	if err := b.Provision(ctx); err != nil {
		tb.Fatal(err)
	}
	b.SetLinger(0)
	tb.Cleanup(func() {
		if err := b.Cleanup(); err != nil {
			tb.Error(err)
		}
	})
	return b
}

// start provisions and starts a backend, and returns what it logs and tells.
func start(tb testing.TB, b *redisbackend.Backend) (*observer.ObservedLogs, *changes) {
	tb.Helper()
	provision(tb, b)
	return begin(tb, b)
}

// begin starts a backend that is provisioned.
func begin(tb testing.TB, b *redisbackend.Backend) (*observer.ObservedLogs, *changes) {
	tb.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	b.SetLogger(zap.New(core))
	told := new(changes)
	b.SetObserver(told.add)
	if err := b.Start(); err != nil {
		tb.Fatal(err)
	}
	return logs, told
}

// changes collects what an observer is told.
type changes struct {
	mu   sync.Mutex
	list []redisbackend.StateChange
}

func (c *changes) add(change redisbackend.StateChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, change)
}

func (c *changes) all() []redisbackend.StateChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]redisbackend.StateChange(nil), c.list...)
}

// down reports whether the last change was one for the worse.
func (c *changes) down() bool { list := c.all(); return len(list) > 0 && !list[len(list)-1].Up }

// upAgain reports whether the last change was one for the better, after an outage.
func (c *changes) upAgain() bool { list := c.all(); return len(list) > 1 && list[len(list)-1].Up }

// connect is a plain client that looks at what the backend did.
func connect(tb testing.TB, s *testserver.Redis) *redis.Client {
	tb.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr()})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// eventually waits until a condition holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	deadline := time.Now().Add(forever)
	for !holds() {
		if time.Now().After(deadline) {
			tb.Fatalf("%s: still not after %s", what, forever)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func rule(tb testing.TB, limit string) *policy.Rule {
	tb.Helper()
	l, err := policy.ParseLimit(limit)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := policy.NewRule(l, policy.TokenBucket)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// bucket is one unit of a limit for the address 203.0.113.7.
func bucket(tb testing.TB, scope, limit string) policy.Bucket {
	tb.Helper()
	return policy.Bucket{Identity: "203.0.113.7", Scope: scope, Rule: rule(tb, limit), Cost: 1}
}

// take asks for buckets and returns the decisions.
func take(b *redisbackend.Backend, buckets ...policy.Bucket) ([]policy.Decision, error) {
	decisions := make([]policy.Decision, len(buckets))
	err := b.Take(context.Background(), buckets, decisions)
	return decisions, err
}

func mustTake(tb testing.TB, b *redisbackend.Backend, buckets ...policy.Bucket) []policy.Decision {
	tb.Helper()
	decisions, err := take(b, buckets...)
	if err != nil {
		tb.Fatal(err)
	}
	return decisions
}

// takeSoon takes from a backend with a brief timeout, which a busy machine may miss.
func takeSoon(tb testing.TB, b *redisbackend.Backend, buckets ...policy.Bucket) {
	tb.Helper()
	eventually(tb, "an answer", func() bool { _, err := take(b, buckets...); return err == nil })
}

// mustFail takes from a backend that cannot decide.
func mustFail(tb testing.TB, b *redisbackend.Backend, buckets ...policy.Bucket) error {
	tb.Helper()
	decisions, err := take(b, buckets...)
	switch {
	case err == nil:
		tb.Fatalf("decided %+v", decisions)
	case !errors.Is(err, redisbackend.ErrUnavailable):
		tb.Fatalf("the error does not wrap ErrUnavailable: %v", err)
	}
	return err
}

// trip takes until the breaker has opened.
func trip(tb testing.TB, b *redisbackend.Backend, buckets ...policy.Bucket) {
	tb.Helper()
	eventually(tb, "the breaker opens", func() bool {
		_, _ = take(b, buckets...)
		up, _, _ := b.Health()
		return !up
	})
}

// stayDown checks that a few probes do not take Redis for repaired.
func stayDown(tb testing.TB, b *redisbackend.Backend) {
	tb.Helper()
	for begin := time.Now(); time.Since(begin) < 3*redisbackend.ProbeInterval; time.Sleep(5 * time.Millisecond) {
		if up, _, _ := b.Health(); up {
			tb.Fatal("a probe took it for repaired")
		}
	}
}

// calls is how often the server has run a command.
func calls(tb testing.TB, c *redis.Client, command string) int {
	tb.Helper()
	return commandStat(tb, c, command, "calls")
}

// rejected is how often the server has refused to run a command.
func rejected(tb testing.TB, c *redis.Client, command string) int {
	tb.Helper()
	return commandStat(tb, c, command, "rejected_calls")
}

func commandStat(tb testing.TB, c *redis.Client, command, what string) int {
	tb.Helper()
	info, err := c.Info(context.Background(), "commandstats").Result()
	if err != nil {
		tb.Fatal(err)
	}
	m := regexp.MustCompile(`cmdstat_` + regexp.QuoteMeta(command) + `:(?:.*,)?` + what + `=(\d+)`).FindStringSubmatch(info)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// infoNumber reads a number of the server's INFO.
func infoNumber(tb testing.TB, c *redis.Client, name string) int {
	tb.Helper()
	info, err := c.Info(context.Background(), "everything").Result()
	if err != nil {
		tb.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + `:(\d+)`).FindStringSubmatch(info)
	if m == nil {
		tb.Fatalf("INFO has no %s", name)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func wantText(tb testing.TB, err error, text string) {
	tb.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		tb.Errorf("the error is %v, without %q", err, text)
	}
}
