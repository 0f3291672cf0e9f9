package redisbackend_test

import (
	"maps"
	"testing"

	"go.uber.org/zap/zapcore"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

func TestAStartLoadsTheScriptsSoThatNoRequestHasTo(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	b, r := &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient}, connect(t, s)
	logs, told := start(t, b)
	eventually(t, "both scripts are loaded", func() bool { return infoNumber(t, r, "number_of_cached_scripts") == 2 })
	mustTake(t, b, bucket(t, "ip", "10/1m"))
	if n := calls(t, r, "eval"); n != 0 {
		t.Errorf("a request brought the script %d times", n)
	}
	if logs.FilterLevelExact(zapcore.WarnLevel).Len() > 0 || logs.FilterLevelExact(zapcore.ErrorLevel).Len() > 0 || len(told.all()) > 0 {
		t.Errorf("a healthy start said %v %v", logs.All(), told.all())
	}
}

// The server is a new one whose INFO says otherwise on the way.
func TestAServerThatIsTooOldIsSaidAndNotUsedUntilItIsReplaced(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	p := testserver.NewProxy(t, s.Addr())
	version := connect(t, s).InfoMap(t.Context(), "server").Item("Server", "redis_version")
	old := "6.0" + version[3:]
	p.Replace("redis_version:"+version, "redis_version:"+old)
	b := &redisbackend.Backend{URLs: []string{"redis://" + p.Addr()}, Timeout: patient}
	logs, told := start(t, b)
	eventually(t, "the outage is told", func() bool { return len(told.all()) == 1 })
	wantText(t, told.all()[0].Err, "redis "+old+" at "+p.Addr()+" is too old; run 6.2 or later, or Valkey")
	wantText(t, mustFail(t, b, bucket(t, "ip", "10/1m")), "too old")
	if n := logs.FilterLevelExact(zapcore.ErrorLevel).Len(); n != 1 {
		t.Errorf("%d errors were logged", n)
	}
	stayDown(t, b)
	p.Replace("", "")
	eventually(t, "the replaced server is used", b.Settled)
	mustTake(t, b, bucket(t, "ip", "10/1m"))
}

func TestVersionsAreCompared(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"5.0.14": true, "6.0.16": true, "6.1": true, "6.2.0": false, "6.2": false, "7.0.15": false, "10.0.0": false,
		"": false, "unstable": false, "255.255.255": false,
	} {
		if got := redisbackend.TooOld(version); got != want {
			t.Errorf("%q is too old: %t", version, got)
		}
	}
}

func TestAServerThatEvictsIsWarnedOfOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		memory, policy string
		warnings       int
	}{
		{"64mb", "allkeys-lru", 1},
		{"64mb", "volatile-ttl", 1},
		{"64mb", "noeviction", 0},
		{"0", "allkeys-lru", 0},
	} {
		s := testserver.NewRedis(t, "--maxmemory", tt.memory, "--maxmemory-policy", tt.policy)
		r := connect(t, s)
		logs, _ := start(t, &redisbackend.Backend{URLs: []string{s.URL()}, Timeout: patient})
		eventually(t, "the look is over", func() bool { return infoNumber(t, r, "number_of_cached_scripts") == 2 })
		if n := logs.FilterLevelExact(zapcore.WarnLevel).Len(); n != tt.warnings {
			t.Errorf("%+v: %d warnings: %v", tt, n, logs.All())
		}
	}
}

func TestEachServerOfAClusterThatEvictsIsWarnedOfOnce(t *testing.T) {
	t.Parallel()
	nodes := testserver.NewCluster(t, 3)
	b := &redisbackend.Backend{Timeout: patient}
	evicting := make(map[string]int)
	for i, n := range nodes {
		b.URLs = append(b.URLs, n.URL())
		if i == 0 {
			continue
		}
		if err := n.Do("CONFIG SET maxmemory 64mb", "CONFIG SET maxmemory-policy allkeys-lru"); err != nil {
			t.Fatal(err)
		}
		evicting[n.Addr()] = 1
	}
	logs, _ := start(t, b)
	for _, n := range nodes {
		r := connect(t, n)
		eventually(t, "the look is over", func() bool { return infoNumber(t, r, "number_of_cached_scripts") == 2 })
	}
	warned := make(map[string]int)
	for _, line := range logs.FilterMessageSnippet("may evict buckets").All() {
		warned[line.ContextMap()["address"].(string)]++
	}
	if !maps.Equal(warned, evicting) {
		t.Errorf("warned of %v, want %v", warned, evicting)
	}
}

// The permissions that the error message of NOPERM lists are enough.
func TestAUserMayBeAllowedLittle(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t)
	r := connect(t, s)
	err := r.Do(t.Context(), "acl", "setuser", "limiter", "on", ">secret", "~ratelimit:*",
		"+evalsha", "+eval", "+time", "+get", "+psetex", "+del").Err()
	if err != nil {
		t.Fatal(err)
	}
	b := &redisbackend.Backend{URLs: []string{"redis://limiter:secret@" + s.Addr()}, Timeout: patient}
	logs, told := start(t, b)
	eventually(t, "the missing permissions are said", func() bool {
		return logs.FilterMessageSnippet("does not show its settings").FilterLevelExact(zapcore.DebugLevel).Len() == 1 &&
			logs.FilterMessageSnippet("did not take the scripts").FilterLevelExact(zapcore.DebugLevel).Len() == 1
	})
	if d := mustTake(t, b, bucket(t, "ip", "10/1m")); d[0].Remaining != 9 {
		t.Errorf("decided %+v", d)
	}
	s.Kill() // and probing needs no more
	trip(t, b, bucket(t, "ip", "10/1m"))
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := r.Do(t.Context(), "acl", "setuser", "limiter", "on", ">secret", "~ratelimit:*",
		"+evalsha", "+eval", "+time", "+get", "+psetex", "+del").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", b.Settled)
	if n := len(told.all()); n != 2 {
		t.Errorf("told was %+v", told.all())
	}
}
