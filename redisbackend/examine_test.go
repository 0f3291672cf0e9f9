package redisbackend_test

import (
	"testing"

	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// evictions is how many warnings there are of a server that evicts.
func evictions(logs *observer.ObservedLogs) int {
	return logs.FilterMessageSnippet("may evict buckets").Len()
}

func evicting(t *testing.T) *testserver.Redis {
	t.Helper()
	return testserver.NewRedis(t, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
}

// Whatever keeps it from answering as the configuration starts.
func TestAServerThatDoesNotAnswerAtTheStartIsExaminedWhenItDoes(t *testing.T) {
	t.Parallel()
	for _, fault := range testserver.Faults {
		switch fault.Name {
		case "stands still (SIGSTOP)", "refused connections", "closes at once", "answers garbage", "wrong password":
		default:
			continue
		}
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			s := evicting(t)
			patient := &testserver.Patient{Redis: s, Proxy: testserver.NewProxy(t, s.Addr())}
			if err := fault.Begin(patient); err != nil {
				t.Fatal(err)
			}
			b := &redisbackend.Backend{URLs: []string{patient.URL()}, Timeout: brief}
			logs, told := start(t, b)
			eventually(t, "the outage is told", told.down)
			stayDown(t, b)
			if n := evictions(logs); n != 0 {
				t.Errorf("%d warnings before the server said anything", n)
			}
			if err := fault.End(patient); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the warning", func() bool { return evictions(logs) > 0 })
			eventually(t, "recovery", b.Settled)
			stayUp(t, b, logs)
			if n := evictions(logs); n != 1 {
				t.Errorf("%d warnings", n)
			}
		})
	}
}

// stayUp waits until servers have been looked after a few times, and checks that
// nothing is wrong.
func stayUp(t *testing.T, b *redisbackend.Backend, logs *observer.ObservedLogs) {
	t.Helper()
	for range 3 {
		looked := b.Rounds()
		eventually(t, "a look after idle servers", func() bool { return b.Rounds() > looked })
	}
	if n := logs.FilterLevelExact(zapcore.ErrorLevel).Len(); n > 1 {
		t.Errorf("%d errors: %v", n, logs.All())
	}
}

// After each outage, since another server may be back: what it says is told when it
// differs.
func TestAServerThatReturnsIsExaminedAndToldOfOncePerChange(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	p := testserver.NewProxy(t, s.Addr())
	b := &redisbackend.Backend{URLs: []string{"redis://" + p.Addr()}, Timeout: patient}
	logs, _ := start(t, b)
	mustTake(t, b, bucket(t, "ip", "1000/1h"))
	for i, step := range []struct {
		memory, policy string
		warnings       int // so far
	}{
		{"64mb", "allkeys-lru", 1},
		{"64mb", "allkeys-lru", 1}, // the same again
		{"32mb", "allkeys-lru", 1}, // which changes nothing
		{"32mb", "volatile-lru", 2},
		{"32mb", "noeviction", 2},
		{"32mb", "volatile-lru", 3},
	} {
		p.HangUp(true)
		trip(t, b, bucket(t, "ip", "1000/1h"))
		if err := s.Do("CONFIG SET maxmemory "+step.memory, "CONFIG SET maxmemory-policy "+step.policy); err != nil {
			t.Fatal(err)
		}
		p.HangUp(false)
		eventually(t, "recovery", b.Settled)
		if n := evictions(logs); n != step.warnings {
			t.Fatalf("step %d: %d warnings, want %d", i, n, step.warnings)
		}
	}
}

// The outage does not end, its reason is another one now, and that is said once.
func TestAServerThatReturnsTooOldIsSaidAndNotUsed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gone at the start", "gone later"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.NewRedis(t)
			version := connect(t, s).InfoMap(t.Context(), "server").Item("Server", "redis_version")
			p := testserver.NewProxy(t, s.Addr())
			b := &redisbackend.Backend{URLs: []string{"redis://" + p.Addr()}, Timeout: patient}
			p.HangUp(name == "gone at the start")
			logs, told := start(t, b)
			p.HangUp(true)
			trip(t, b, bucket(t, "ip", "1000/1h"))
			p.Replace("redis_version:"+version, "redis_version:6.0"+version[3:])
			p.HangUp(false)
			eventually(t, "its age is noticed", func() bool { return b.Outage() == "unsupported" })
			stayDown(t, b)
			wantText(t, mustFail(t, b, bucket(t, "ip", "1000/1h")), "is too old; run 6.2 or later")
			said := logs.FilterMessageSnippet("answers again, but cannot be used").FilterLevelExact(zapcore.ErrorLevel).All()
			if len(said) != 1 || said[0].ContextMap()["kind"] != "unsupported" {
				t.Errorf("said was %v", said)
			}
			p.Replace("", "")
			eventually(t, "the replaced server is used", b.Settled)
			mustTake(t, b, bucket(t, "ip", "1000/1h"))
			eventually(t, "the end is told", told.upAgain)
			if list := told.all(); list[0].Up || !list[1].Up {
				t.Errorf("told was %+v", list)
			}
		})
	}
}

// One master is away when the configuration starts, and is warned of at its return.
func TestAMasterThatAppearsLaterIsExamined(t *testing.T) {
	t.Parallel()
	nodes := testserver.NewCluster(t, 3)
	b := &redisbackend.Backend{Timeout: patient}
	for _, n := range nodes {
		b.URLs = append(b.URLs, n.URL())
	}
	late := nodes[2]
	if err := late.Do("CONFIG SET maxmemory 64mb", "CONFIG SET maxmemory-policy allkeys-lru"); err != nil {
		t.Fatal(err)
	}
	if err := late.Pause(); err != nil {
		t.Fatal(err)
	}
	logs, _ := start(t, b)
	for range 2 {
		looked := b.Rounds()
		eventually(t, "a look after the servers", func() bool { return b.Rounds() > looked })
	}
	if n := evictions(logs); n != 0 {
		t.Errorf("%d warnings before it appeared", n)
	}
	if err := late.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the warning", func() bool { return evictions(logs) > 0 })
	if line := logs.FilterMessageSnippet("may evict buckets").All()[0]; line.ContextMap()["address"] != late.Addr() {
		t.Errorf("warned of %v", line.ContextMap())
	}
}
