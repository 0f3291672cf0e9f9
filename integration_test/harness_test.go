// Package integration_test runs the built Caddy binary as its users do: a
// process with a Caddyfile, HTTP in front of it and a real Redis behind it. It
// sees only what a client, an operator or the Redis server can see.
//
// Every Caddyfile of this package may use {$PORT} and {$PORT2}, two ports that
// belong to its process, {$SOCKET}, the path of a unix socket, and, in a test
// that runs on each backend, {$BACKEND}.
package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// caddyBinary is the binary under test, set by TestMain.
var caddyBinary string

// patience is how long a condition may take that should be met at once. It
// only bounds how long a failure takes, so it is generous to slow machines.
const patience = 30 * time.Second

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

// runAll finds or builds the binary and runs the tests with it.
func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tollgate-binary-")
	if err != nil {
		return complain(err)
	}
	defer os.RemoveAll(dir)
	if caddyBinary, err = findCaddy(dir); err != nil {
		return complain(err)
	}
	return m.Run()
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "integration_test:", err)
	return 1
}

// findCaddy returns the binary that TOLLGATE_TEST_CADDY names, or builds one.
func findCaddy(dir string) (string, error) {
	if path := os.Getenv("TOLLGATE_TEST_CADDY"); path != "" {
		if !filepath.IsAbs(path) {
			path = filepath.Join(repository, path)
		}
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("TOLLGATE_TEST_CADDY names no binary: %w; run `make build`, or unset it", err)
		}
		return filepath.Abs(path)
	}
	fmt.Fprintln(os.Stderr, "integration_test: building ./cmd/caddy (the first build takes a few minutes); set TOLLGATE_TEST_CADDY to use a binary that is there")
	path := filepath.Join(dir, "caddy")
	build := exec.Command("go", "build", "-o", path, "./cmd/caddy")
	build.Dir = repository
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building ./cmd/caddy: %w\n%s", err, out)
	}
	return path, nil
}

// repository is the root of the checkout, seen from this package.
const repository = ".."

// caddy is one running Caddy process.
type caddy struct {
	t      *testing.T
	dir    string // its home: Caddyfile, data, sockets
	env    []string
	port   int
	port2  int
	log    *logBuffer
	admin  *http.Client
	client *http.Client

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// startCaddy runs Caddy with a Caddyfile until the test ends. Further
// environment variables are given as NAME=value. A process that does not come
// up, does not stop, or logs a panic (or, if it was built to, a data race) fails
// the test.
func startCaddy(t *testing.T, caddyfile string, env ...string) *caddy {
	t.Helper()
	c := newCaddy(t, env...)
	c.write("Caddyfile", caddyfile)
	c.start("run", "--adapter", "caddyfile", "--config", filepath.Join(c.dir, "Caddyfile"))
	return c
}

// startCaddyJSON is startCaddy for a configuration in Caddy's own format.
func startCaddyJSON(t *testing.T, config string, env ...string) *caddy {
	t.Helper()
	c := newCaddy(t, env...)
	c.write("caddy.json", os.Expand(config, c.getenv))
	c.start("run", "--config", filepath.Join(c.dir, "caddy.json"))
	return c
}

// newCaddy prepares the home, the ports and the clients of a process.
func newCaddy(t *testing.T, env ...string) *caddy {
	t.Helper()
	dir, err := os.MkdirTemp("", "tollgate-") // not t.TempDir: socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &caddy{t: t, dir: dir, port: reservePort(t), port2: reservePort(t), log: new(logBuffer)}
	c.env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "XDG_DATA_HOME=" + dir + "/data", "XDG_CONFIG_HOME=" + dir + "/config",
		"CADDY_ADMIN=unix/" + c.adminSocket(), "SOCKET=" + c.socket(),
		"PORT=" + strconv.Itoa(c.port), "PORT2=" + strconv.Itoa(c.port2),
	}, env...)
	c.admin = clientOf(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.adminSocket())
	})
	c.client = clientOf(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", c.addr())
	})
	t.Cleanup(func() { c.admin.CloseIdleConnections(); c.client.CloseIdleConnections() })
	return c
}

// clientOf is an HTTP client whose every connection goes to one place,
// whatever host a request names.
func clientOf(dial func(context.Context) (net.Conn, error)) *http.Client {
	return &http.Client{
		Timeout:       patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			MaxIdleConnsPerHost: 64,
			MaxConnsPerHost:     64,
			DisableCompression:  true,
		},
	}
}

func (c *caddy) adminSocket() string { return c.dir + "/admin" }
func (c *caddy) socket() string      { return c.dir + "/site" }
func (c *caddy) addr() string        { return fmt.Sprintf("127.0.0.1:%d", c.port) }
func (c *caddy) addr2() string       { return fmt.Sprintf("127.0.0.1:%d", c.port2) }

func (c *caddy) getenv(name string) string {
	for _, e := range c.env {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

func (c *caddy) write(name, text string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// start runs the process and waits until its configuration is loaded: the
// admin endpoint holds its answer back until then.
func (c *caddy) start(args ...string) {
	c.t.Helper()
	c.cmd = exec.Command(caddyBinary, args...)
	c.cmd.Dir, c.cmd.Env = c.dir, c.env
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) { cmd.Wait(); close(done) }(c.cmd, c.done)
	c.t.Cleanup(func() { c.stop(); c.report() })
	eventually(c.t, "Caddy answers", func() bool {
		if c.ended() {
			c.t.Fatalf("Caddy ended instead of serving")
		}
		resp, err := c.admin.Get("http://localhost/config/")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return err == nil && len(bytes.TrimSpace(body)) > len("null")
	})
}

func (c *caddy) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// stop ends the process as an operator does, and insists that it obeys. It may
// be called early, and again.
func (c *caddy) stop() {
	c.client.CloseIdleConnections()
	if c.ended() {
		return
	}
	c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Errorf("Caddy did not stop within %s", patience)
		c.cmd.Process.Kill()
		<-c.done
	}
}

// report fails the test if the process panicked, and shows the log of a test
// that failed.
func (c *caddy) report() {
	text := c.log.String()
	for _, sign := range []string{"panic", "fatal error:", "DATA RACE"} {
		if strings.Contains(text, sign) {
			c.t.Errorf("%q stands in the log of Caddy", sign)
		}
	}
	if c.t.Failed() {
		const most = 20_000
		c.t.Logf("log of Caddy on port %d:\n%s", c.port, text[max(0, len(text)-most):])
	}
}

// load replaces the running configuration and returns the error that the
// admin endpoint answers, empty if it took the configuration.
func (c *caddy) load(caddyfile string) string {
	c.t.Helper()
	return c.post("text/caddyfile", caddyfile)
}

// post loads a configuration, also one that equals the running one: unless
// told so, Caddy does nothing then.
func (c *caddy) post(contentType, config string) string {
	c.t.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://localhost/load", strings.NewReader(config))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Cache-Control", "must-revalidate")
	resp, err := c.admin.Do(r)
	if err != nil {
		c.t.Fatalf("loading a configuration: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("loading a configuration: %v", err)
	}
	if resp.StatusCode == http.StatusOK {
		return ""
	}
	return string(body)
}

// reload replaces the running configuration, which must work.
func (c *caddy) reload(caddyfile string) {
	c.t.Helper()
	if problem := c.load(caddyfile); problem != "" {
		c.t.Fatalf("the configuration was refused: %s", problem)
	}
}

// refusal returns what Caddy says of a Caddyfile that it must not load.
func refusal(t *testing.T, caddyfile string) string {
	t.Helper()
	out, err := validate(t, caddyfile)
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("the configuration should be refused, got %v\n%s", err, out)
	}
	return out
}

// validate loads a Caddyfile without running it, and returns what Caddy prints.
func validate(t *testing.T, caddyfile string, env ...string) (string, error) {
	t.Helper()
	c := newCaddy(t, env...)
	path := c.write("Caddyfile", caddyfile)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, caddyBinary, "validate", "--adapter", "caddyfile", "--config", path)
	cmd.Dir, cmd.Env = c.dir, c.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// reservePort keeps a port for one process until the test ends. The socket is
// bound and never listens, so that nobody else gets the port; Caddy, which
// shares ports between its own reloads, may still listen there.
func reservePort(t *testing.T) int {
	t.Helper()
	const soReusePort = 15 // Linux; the syscall package does not name it
	fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	err = errors.Join(
		syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0),
		syscall.Bind(fd, new(syscall.SockaddrInet6)),
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, soReusePort, 1), // only after the bind was exclusive
	)
	if err != nil {
		t.Fatalf("reserving a port: %v", err)
	}
	address, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return address.(*syscall.SockaddrInet6).Port
}

// eventually waits for a condition, and fails the test with its name when it
// is not met in time.
func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !met() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// logBuffer collects what a process prints.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// lines returns the lines that hold every one of the texts.
func (l *logBuffer) lines(texts ...string) []string {
	var found []string
lines:
	for line := range strings.Lines(l.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}
