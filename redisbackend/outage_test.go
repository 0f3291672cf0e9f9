package redisbackend_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// recoverySpan is how soon a server that is back must be used again. The tests
// do not ask for the exact moment, only that nothing has to nudge it.
const recoverySpan = 10 * time.Second

func TestAServerThatStandsStillCostsTheTimeoutAFewTimesAndThenNothing(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: brief}
	logs, told := start(t, b)
	bk := bucket(t, "ip", "1000/1h")
	takeSoon(t, b, bk)
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}

	// The caller's own patience ends first, long before that of the socket.
	wantText(t, mustFail(t, b, bk), "no answer within the timeout")
	begin := time.Now()
	trip(t, b, bk)
	if took := time.Since(begin); took > forever/2 {
		t.Errorf("it took %s until the breaker opened", took)
	}
	begin = time.Now()
	for range 1000 { // a thousand timeouts would be 50 s
		mustFail(t, b, bk)
	}
	if took := time.Since(begin); took > forever/2 {
		t.Errorf("a thousand calls took %s while the breaker was open", took)
	}

	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	begin = time.Now()
	eventually(t, "recovery without traffic", b.Settled)
	if took := time.Since(begin); took > recoverySpan {
		t.Errorf("recovery took %s", took)
	}
	takeSoon(t, b, bk)
	checkToldOnce(t, s.Addr(), logs, told)
}

// checkOneOutage checks that one outage was told and logged exactly once, at
// its beginning and at its end.
func checkOneOutage(t *testing.T, s *testserver.Redis, logs *observer.ObservedLogs, told *changes) {
	t.Helper()
	checkToldOnce(t, s.Addr(), logs, told)
	if list := told.all(); len(list) != 2 {
		t.Errorf("told was %+v", list)
	}
}

// checkToldOnce checks that each outage was told and logged exactly once, at its
// beginning and at its end. With a brief timeout there may be more than one on a
// busy machine.
func checkToldOnce(t *testing.T, address string, logs *observer.ObservedLogs, told *changes) {
	t.Helper()
	eventually(t, "the end is told", func() bool { n := len(told.all()); return n > 0 && n%2 == 0 })
	list := told.all()
	for i, change := range list {
		if up := i%2 == 1; change.Up != up || (change.Err == nil) != up {
			t.Errorf("told was %+v", list)
		}
	}
	for _, level := range []zapcore.Level{zapcore.ErrorLevel, zapcore.InfoLevel} {
		entries := logs.FilterLevelExact(level).All()
		if len(entries) != len(list)/2 || entries[0].ContextMap()["address"] != address {
			t.Errorf("%d lines of the level %s, not one with the address for each of %d outages: %v", len(entries), level, len(list)/2, entries)
		}
	}
}

func TestAStallCostsNoConnections(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: brief, MaxConnections: 5}), connect(t, s)
	bk := bucket(t, "ip", "100000/1h")
	hammer := func() {
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				for range 25 {
					_, _ = take(b, bk)
				}
			})
		}
		wg.Wait()
	}
	hammer()
	before := infoNumber(t, r, "total_connections_received")
	for range 3 {
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
		hammer()
		if err := s.Resume(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "recovery", b.Settled)
	}
	hammer()
	// A probe closes its connection if it gets no answer: two a second at most.
	if made := infoNumber(t, r, "total_connections_received") - before; made > 30 {
		t.Errorf("three stalls made %d connections", made)
	}
	if now := infoNumber(t, r, "connected_clients"); now > 5+1 {
		t.Errorf("there are %d connections, not at most 5 and the test's own", now)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, MaxConnections: 3}), connect(t, s)
	bk := bucket(t, "ip", "1000000/1h")
	var wg sync.WaitGroup
	for range 300 {
		wg.Go(func() {
			for range 10 {
				if _, err := take(b, bk); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := infoNumber(t, r, "total_connections_received"); n > 3+1+1 { // the test's own, and the ping of the test server
		t.Errorf("%d connections were made, not 3", n)
	}
}

// What may have run is not sent again, and what its caller gave up in the queue
// is not sent at all.
func TestACallIsNeverSentTwiceNorAfterItsCallerHasGone(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: brief, MaxConnections: 1})
	bk := bucket(t, "ip", "1000/1h")
	ask := func() (left, asked int64) {
		eventually(t, "an answer", func() bool {
			asked++
			d, err := take(b, bk)
			left = d[0].Remaining
			return err == nil
		})
		return left, asked
	}
	before, _ := ask()
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	for range 2 * redisbackend.TripAfter { // one is sent directly, one by the sender, the others wait behind it
		mustFail(t, b, bk)
	}
	if up, _, _ := b.Health(); up {
		t.Error("calls that could not even be sent were not counted, although nothing answers")
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", b.Settled)
	// Perhaps the two on their way, and what was asked now.
	if left, asked := ask(); left < before-2-asked {
		t.Errorf("%d of %d remain: more than the two calls that were on their way have run", left, before)
	}
}

func TestAServerThatIsNotThereYetIsNoReasonNotToStart(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	s.Kill()
	b := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	logs, told := start(t, b)
	eventually(t, "the outage is told", func() bool { return len(told.all()) == 1 })
	up, since, err := b.Health()
	if up || err == nil || time.Since(since) > forever {
		t.Errorf("health is %t since %s, %v", up, since, err)
	}
	mustFail(t, b, bucket(t, "ip", "10/1m"))
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery without traffic", b.Settled)
	mustTake(t, b, bucket(t, "ip", "10/1m"))
	checkOneOutage(t, s, logs, told)
}

func TestARestartedServerIsUsedAgain(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient})
	bk := bucket(t, "ip", "10/1h")
	mustTake(t, b, bk)
	s.Kill()
	trip(t, b, bk)
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", b.Settled)
	if d := mustTake(t, b, bk); d[0].Remaining != 9 { // the new server knows nothing, not even the script
		t.Errorf("%d remain", d[0].Remaining)
	}
}

func TestABlackHoleIsAnOutageThatEnds(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	p := testserver.NewProxy(t, s.Addr())
	b := provision(t, &redisbackend.Backend{URLs: []string{"redis://" + p.Addr()}, Timeout: brief, MaxConnections: 3})
	bk := bucket(t, "ip", "1000/1h")
	eventually(t, "the first answer", func() bool { _, err := take(b, bk); return err == nil })
	p.Blackhole(true)
	trip(t, b, bk)
	accepted := p.Accepted()
	for range 1000 {
		mustFail(t, b, bk)
	}
	if n := p.Accepted() - accepted; n > 10 {
		t.Errorf("a thousand calls made %d connections while the breaker was open", n)
	}
	p.Blackhole(false)
	eventually(t, "recovery", b.Settled)
	takeSoon(t, b, bk)
}

func TestBrokenConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	p := testserver.NewProxy(t, s.Addr())
	b := provision(t, &redisbackend.Backend{URLs: []string{"redis://" + p.Addr()}, Timeout: patient})
	bk := bucket(t, "ip", "1000/1h")
	for range 3 {
		mustTake(t, b, bk)
		p.CloseConnections()
		eventually(t, "an answer", func() bool { _, err := take(b, bk); return err == nil })
	}
}

// A server that cannot do its work is down, although it answers.
func TestAServerThatRefusesToWorkIsDownUntilItWorksAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		breaks, repairs []any
		reply           string
	}{
		"out of memory": {
			[]any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}, "OOM",
		},
		"a replica": {
			[]any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}, "READONLY",
		},
		"no replicas to write to": {
			[]any{"config", "set", "min-replicas-to-write", "1"}, []any{"config", "set", "min-replicas-to-write", "0"}, "NOREPLICAS",
		},
		"no permission any more": {
			[]any{"acl", "setuser", "default", "-evalsha"}, []any{"acl", "setuser", "default", "+evalsha"}, "NOPERM",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.NewRedis(t)
			b := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
			logs, told := start(t, b)
			r, bk := connect(t, s), bucket(t, "ip", "1000/1h")
			mustTake(t, b, bk)
			if err := r.Do(t.Context(), tt.breaks...).Err(); err != nil {
				t.Fatal(err)
			}
			if err := mustFail(t, b, bk); !strings.Contains(err.Error(), tt.reply) {
				t.Errorf("the error is %v", err)
			}
			trip(t, b, bk)
			stayDown(t, b)
			if err := r.Do(t.Context(), tt.repairs...).Err(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "recovery", b.Settled)
			mustTake(t, b, bk)
			checkOneOutage(t, s, logs, told)
		})
	}
}

func TestAWrongPasswordIsAnOutageAndIsNeverShown(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t, "--requirepass", "the-right-one")
	b := &redisbackend.Backend{URLs: []string{"redis://:the-wrong-one@" + s.Addr()}, Timeout: patient}
	logs, told := start(t, b)
	bk := bucket(t, "ip", "1000/1h")
	err := mustFail(t, b, bk)
	trip(t, b, bk)
	eventually(t, "the outage is told", func() bool { return len(told.all()) == 1 })
	_, _, last := b.Health()
	for _, said := range []string{err.Error(), last.Error(), told.all()[0].Err.Error(), told.all()[0].Address} {
		if strings.Contains(said, "the-wrong-one") {
			t.Errorf("the password is in %q", said)
		}
	}
	if !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("the error is %v", err)
	}
	for _, line := range logs.All() {
		for _, v := range line.ContextMap() {
			if text, ok := v.(string); ok && strings.Contains(text, "the-wrong-one") {
				t.Errorf("the password is in the log: %v", line)
			}
		}
	}
	right := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, Password: "the-right-one"})
	eventually(t, "a new client finds out by itself", right.Settled)
	mustTake(t, right, bk)
}

func TestAFailureTellsWhetherItWasATimeout(t *testing.T) {
	t.Parallel()
	timedOut := func(err error) bool {
		var timeout interface{ Timeout() bool }
		if !errors.As(err, &timeout) {
			t.Errorf("%v has no method Timeout", err)
			return false
		}
		return timeout.Timeout()
	}
	s := testserver.NewRedis(t)
	b := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: brief})
	bk := bucket(t, "ip", "10/1h")
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := mustFail(t, b, bk); !timedOut(err) {
		t.Errorf("no timeout: %v", err)
	}
	s.Kill()
	other := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, DB: 1})
	if err := mustFail(t, other, bk); timedOut(err) {
		t.Errorf("a timeout: %v", err)
	}
}

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

func TestRepliesThatMeanAnOutage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"OOM command not allowed when used memory > 'maxmemory'.":                                          true,
		"READONLY You can't write against a read only replica.":                                            true,
		"LOADING Redis is loading the dataset in memory":                                                   true,
		"CLUSTERDOWN Hash slot not served":                                                                 true,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                 true,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": true,
		"BUSY Redis is busy running a script.":                                                             true,
		"NOAUTH Authentication required.":                                                                  true,
		"WRONGPASS invalid username-password pair or user is disabled.":                                    true,
		"NOPERM this user has no permissions to run the 'evalsha' command":                                 true,
		"ERR max number of clients reached":                                                                true,
		"ERR This instance has cluster support disabled":                                                   true,

		"MOVED 3999 127.0.0.1:6381":               true, // the library has followed it
		"BUSYKEY Target key name already exists.": true, // to no call of ours
		"ERR DB index is out of range":            true,
		"upstream failure":                        true, // a proxy's

		"WRONGTYPE 1": false,
		"TRYAGAIN Multiple keys request during rehashing of slot": false,
		"ERR user_script:1: something":                            false,
		"ERR Error running script (call to f_0a9a51ee96320953ec7bde8e63f3f060b9dac00c): @user_script:41: user_script:41: attempt to index a nil value": false,
	} {
		if got := redisbackend.IsOutage(reply(text)); got != want {
			t.Errorf("%s is an outage: %t", text, got)
		}
	}
	if redisbackend.IsOutage(nil) || !redisbackend.IsOutage(errors.New("connection refused")) {
		t.Error("no error is one, or a broken connection is none")
	}
}
