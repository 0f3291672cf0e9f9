package redisbackend_test

import (
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// cleanUp ends a configuration before the test does.
func cleanUp(t *testing.T, b *redisbackend.Backend) {
	t.Helper()
	if err := b.Cleanup(); err != nil {
		t.Fatal(err)
	}
}

// A reload that changes how a server is asked makes another client for it. The outage
// that it has is not told again, and no request has to find out.
func TestAnOutageGoesOnOverAReloadThatChangesAnotherSetting(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*redisbackend.Backend){
		"the connections": func(b *redisbackend.Backend) { b.MaxConnections = 3 },
		"the password":    func(b *redisbackend.Backend) { b.Username, b.Password = "default", "any" },
		"a long timeout":  func(b *redisbackend.Backend) { b.Timeout = patient },
		"nothing":         func(*redisbackend.Backend) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.NewRedis(t)
			old := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: brief}
			oldLogs, oldTold := start(t, old)
			if err := s.Pause(); err != nil {
				t.Fatal(err)
			}
			trip(t, old, bucket(t, "ip", "1000/1h"))
			eventually(t, "the outage is told", oldTold.down)

			next := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: brief}
			change(next)
			provision(t, next)
			wantText(t, mustFail(t, next, bucket(t, "ip", "1000/1h")), "is down since")
			logs, told := begin(t, next)
			cleanUp(t, old)
			since := oldTold.all()[0].Since
			if list := told.all(); len(list) != 1 || list[0].Up || !list[0].Repeated || !list[0].Since.Equal(since) {
				t.Errorf("told was %+v", list)
			}
			if err := s.Resume(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "recovery", next.Settled)
			eventually(t, "the recovery is told", told.upAgain)
			if up := told.all()[1]; !up.Up || up.DownFor < time.Since(since)-forever || up.DownFor != up.Since.Sub(since) {
				t.Errorf("told was %+v", up)
			}
			takeSoon(t, next, bucket(t, "ip", "1000/1h"))
			if n := len(oldTold.all()); n != 1 || oldLogs.FilterMessage("redis is back").Len() != 0 {
				t.Errorf("the old configuration was told %d changes", n)
			}
			if logs.FilterMessage("redis is back").Len() != 1 || logs.FilterLevelExact(zapcore.ErrorLevel).Len() != 0 {
				t.Errorf("logged was %v", logs.All())
			}
		})
	}
}

// What is wrong is mended by the reload itself.
func TestAReloadThatBringsTheRightPasswordEndsTheOutage(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t, "--requirepass", "right")
	old := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, Password: "wrong"}
	_, oldTold := start(t, old)
	eventually(t, "the outage is told", oldTold.down)

	next := provision(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, Password: "right"})
	eventually(t, "the new client works before its configuration starts", next.Settled)
	logs, told := begin(t, next)
	cleanUp(t, old)
	if list := told.all(); len(list) != 1 || !list[0].Up || logs.FilterMessage("redis is back").Len() != 1 {
		t.Errorf("told was %+v", list)
	}
	mustTake(t, next, bucket(t, "ip", "1000/1h"))
	if n := len(oldTold.all()); n != 1 {
		t.Errorf("the old configuration was told %d changes", n)
	}
}

// The other way round: what the configuration that was given up has met is its own.
func TestAnOutageOfAConfigurationThatIsGivenUpIsNotThatOfTheOneBefore(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t, "--requirepass", "right")
	old := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, Password: "right"}
	_, told := start(t, old)
	mustTake(t, old, bucket(t, "ip", "1000/1h"))
	wrong := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, Password: "wrong"}
	_, wrongTold := start(t, wrong)
	eventually(t, "the outage is told", wrongTold.down)
	cleanUp(t, wrong)
	mustTake(t, old, bucket(t, "ip", "1000/1h"))
	if list := told.all(); len(list) != 0 {
		t.Errorf("told was %+v", list)
	}
	s.Kill()
	trip(t, old, bucket(t, "ip", "1000/1h"))
	eventually(t, "its own outage is told", told.down)
}

// The old configuration hears of what ended while the other one was tried.
func TestAnOutageThatEndsUnderAConfigurationThatIsGivenUpIsToldToTheOneBefore(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	old := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	_, told := start(t, old)
	s.Kill()
	trip(t, old, bucket(t, "ip", "1000/1h"))
	eventually(t, "the outage is told", told.down)
	wrong := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient, Username: "nobody", Password: "wrong"}
	start(t, wrong)
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", old.Settled)
	cleanUp(t, wrong)
	eventually(t, "the end is told", told.upAgain)
	if list := told.all(); !list[1].Up {
		t.Errorf("told was %+v", list)
	}
}

func TestAnotherServerAndAnotherDatabaseInheritNoOutage(t *testing.T) {
	t.Parallel()
	s, other := testserver.NewRedis(t), testserver.NewRedis(t)
	old := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}
	_, oldTold := start(t, old)
	s.Kill()
	trip(t, old, bucket(t, "ip", "1000/1h"))
	eventually(t, "the outage is told", oldTold.down)
	for _, b := range []*redisbackend.Backend{
		{URLs: []string{other.URL()}, Timeout: patient},
		{URLs: []string{s.URL()}, Timeout: patient, DB: 1},
	} {
		if provision(t, b); !b.Settled() {
			t.Errorf("%v db %d: its breaker is open from the beginning", b.URLs, b.DB)
		}
	}
}
