package testserver

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestRedisAnswersWhenItIsReturned(t *testing.T) {
	t.Parallel()
	r := NewRedis(t, "--requirepass", "secret")
	if reply, err := r.inline("PING"); err != nil || !strings.HasPrefix(reply, "-NOAUTH") {
		t.Errorf("the argument --requirepass had no effect: %q, %v", reply, err)
	}
	if !strings.HasPrefix(r.URL(), "redis://127.0.0.1:") {
		t.Errorf("URL is %s", r.URL())
	}
}

func TestRedisKeepsNoFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, err := StartRedis(dir)
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := r.inline("SET a 1"); err != nil || reply != "+OK" {
		t.Fatal(reply, err)
	}
	r.Stop()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 0 {
		t.Errorf("files are left: %v, %v", files, err)
	}
}

func TestAPausedServerDoesNotAnswerUntilItIsResumed(t *testing.T) {
	t.Parallel()
	r := NewRedis(t)
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := r.ping(); err == nil {
		t.Error("a paused server answered")
	}
	if err := r.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := r.ping(); err != nil {
		t.Error(err)
	}
}

func TestAPausedServerCanBeStopped(t *testing.T) {
	t.Parallel()
	r := NewRedis(t)
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	r.Stop()
	if waited := time.Since(start); waited >= stopDeadline {
		t.Errorf("it had to be killed after %s", waited)
	}
	if err := r.ping(); err == nil {
		t.Error("it still answers")
	}
	r.Stop() // twice is harmless
	if err := r.Pause(); err == nil {
		t.Error("a server that has ended was paused")
	}
}

func TestARestartedServerIsEmptyAndOnTheSamePort(t *testing.T) {
	t.Parallel()
	r := NewRedis(t)
	addr := r.Addr()
	if reply, err := r.inline("SET a 1"); err != nil || reply != "+OK" {
		t.Fatal(reply, err)
	}
	r.Kill()
	if err := r.ping(); err == nil {
		t.Fatal("a killed server answered")
	}
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	if reply, err := r.inline("DBSIZE"); err != nil || reply != ":0" || r.Addr() != addr {
		t.Errorf("DBSIZE is %s at %s instead of %s, %v", reply, r.Addr(), addr, err)
	}
}

// Behind a port that was lost to somebody else, somebody else answers the ping.
func TestAPortThatSomebodyElseHasIsAnError(t *testing.T) {
	t.Parallel()
	other := NewRedis(t)
	r := &Redis{dir: t.TempDir(), bin: other.bin, port: other.port}
	err := r.start()
	if err == nil {
		r.Stop()
		t.Fatal("the other server was taken for this one")
	}
	if !strings.Contains(err.Error(), "in use") {
		t.Errorf("the error would not be retried: %v", err)
	}
}

func TestAMissingBinaryIsSaid(t *testing.T) {
	t.Setenv(RedisBinaryVariable, "no-such-redis-server")
	_, err := StartRedis(t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "no-such-redis-server is not installed; run `make deps` or apt-get install redis-server") {
		t.Errorf("got %v", err)
	}
}

func TestAWrongArgumentIsSaidWithTheServersWords(t *testing.T) {
	t.Parallel()
	_, err := StartRedis(t.TempDir(), "--no-such-option", "yes")
	if err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("got %v", err)
	}
}

func TestEveryNodeOfAClusterSeesItComplete(t *testing.T) {
	t.Parallel()
	nodes := NewCluster(t, 3)
	for _, n := range nodes {
		info, err := n.inline("CLUSTER INFO")
		for _, want := range []string{"cluster_state:ok", "cluster_slots_ok:16384", "cluster_size:3"} {
			if err != nil || !strings.Contains(info, want) {
				t.Errorf("no %s in %q, %v", want, info, err)
			}
		}
		if _, port, _ := net.SplitHostPort(n.Addr()); port != strconv.Itoa(n.Port()) {
			t.Errorf("port %s is not %d", port, n.Port())
		}
	}
}
