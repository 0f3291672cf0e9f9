package testserver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// RedisBinaryVariable names the environment variable that says which Redis (or
// Valkey) to start. Unset, it is the redis-server in the path.
const RedisBinaryVariable = "TOLLGATE_TEST_REDIS_BINARY"

// startAttempts is how many ports are tried until one is not taken.
const startAttempts = 5

// Redis is a running redis-server without persistence.
type Redis struct {
	dir  string
	bin  string
	port int
	args []string
	proc *process
}

// StartRedis starts a redis-server on a free port of 127.0.0.1 with its files
// in dir, and returns when it answers. The arguments are added to its command
// line, like "--maxmemory", "2mb". The caller stops it.
func StartRedis(dir string, args ...string) (*Redis, error) {
	bin, err := redisBinary()
	if err != nil {
		return nil, err
	}
	for range startAttempts {
		r := &Redis{dir: dir, bin: bin, args: args}
		if r.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = r.start(); err == nil {
			return r, nil
		}
		if !strings.Contains(err.Error(), "in use") {
			break // not a port that somebody else took in the meantime
		}
	}
	return nil, err
}

// NewRedis starts a redis-server for a test and stops it at the test's end. It
// fails the test if that is not possible.
func NewRedis(tb testing.TB, args ...string) *Redis {
	tb.Helper()
	r, err := StartRedis(tb.TempDir(), args...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.Stop)
	return r
}

func redisBinary() (string, error) {
	name := os.Getenv(RedisBinaryVariable)
	if name == "" {
		name = "redis-server"
	}
	bin, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is not installed; run `make deps` or apt-get install redis-server (%w)", name, err)
	}
	return bin, nil
}

func (r *Redis) start() error {
	proc, err := startProcess(r.bin, r.commandLine()...)
	if err != nil {
		return err
	}
	if err := proc.waitReady(func() error { return r.ready(proc) }); err != nil {
		proc.kill()
		return err
	}
	r.proc = proc
	return nil
}

func (r *Redis) commandLine() []string {
	return append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(r.port), "--dir", r.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--pidfile", filepath.Join(r.dir, "redis.pid"),
	}, r.args...)
}

// ready reports whether this server answers: its own log says so first, because
// behind a port that was lost to somebody else, somebody else would answer.
func (r *Redis) ready(proc *process) error {
	if !strings.Contains(proc.output.String(), "Ready to accept connections") {
		return errors.New("still starting")
	}
	return r.ping()
}

// ping asks for an answer. A demand for a password is one, too.
func (r *Redis) ping() error {
	line, err := r.inline("PING")
	switch {
	case err != nil:
		return err
	case line == "+PONG", strings.HasPrefix(line, "-NOAUTH"), strings.HasPrefix(line, "-MASTERDOWN"):
		return nil
	default:
		return errors.New(line)
	}
}

// inline sends a command on a connection of its own, and returns the reply: a
// line as it comes, or the text of a bulk string.
func (r *Redis) inline(command string) (string, error) {
	conn, err := net.DialTimeout("tcp", r.Addr(), time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		return "", err
	}
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	length, bulk := strings.CutPrefix(strings.TrimSpace(line), "$")
	if err != nil || !bulk {
		return strings.TrimSpace(line), err
	}
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return "", err
	}
	text := make([]byte, n)
	_, err = io.ReadFull(in, text)
	return string(text), err
}

// Addr is the server's host and port.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// URL is the server's address as a configuration writes it.
func (r *Redis) URL() string { return "redis://" + r.Addr() }

// Port is the port that the server listens on.
func (r *Redis) Port() int { return r.port }

// Stop ends the server, even one that is paused. Stopping twice is harmless.
func (r *Redis) Stop() { r.proc.stop() }

// Kill ends the server at once, as a crash would. Its data is gone.
func (r *Redis) Kill() { r.proc.kill() }

// Pause makes the server stand still: connections stay open and nothing answers.
func (r *Redis) Pause() error { return r.proc.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (r *Redis) Resume() error { return r.proc.signal(syscall.SIGCONT) }

// Do sends commands on one connection, one after the other, and fails on the first
// that the server refuses.
func (r *Redis) Do(commands ...string) error {
	conn, err := net.DialTimeout("tcp", r.Addr(), startDeadline)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(startDeadline)); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	for _, command := range commands {
		if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
			return err
		}
		line, err := in.ReadString('\n')
		if err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
		if strings.HasPrefix(line, "-") {
			return fmt.Errorf("%s: %s", command, strings.TrimSpace(line))
		}
	}
	return nil
}

// RestartLoading ends the server at once and starts it again on the same port with
// the data that it has saved. It returns while the server still loads them, which
// takes some milliseconds per key until key-load-delay is set to 0.
func (r *Redis) RestartLoading() error {
	r.proc.kill()
	proc, err := startProcess(r.bin, append(r.commandLine(), "--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024")...)
	if err != nil {
		return err
	}
	err = proc.waitReady(func() error {
		if line, err := r.inline("PING"); err != nil || !strings.HasPrefix(line, "-LOADING") {
			return fmt.Errorf("it does not say that it loads: %q, %w", line, err)
		}
		return nil
	})
	if err != nil {
		proc.kill()
		return err
	}
	r.proc = proc
	return nil
}

// Restart ends the server, if it runs, and starts it again on the same port,
// empty. It returns when the server answers.
func (r *Redis) Restart() error {
	r.proc.kill()
	return r.start()
}
