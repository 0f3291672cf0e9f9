package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// clientHeader tells the clients of a spread load apart.
const clientHeader = "X-Client"

// Bounds of waiting for a server of our own.
const (
	startTimeout = 30 * time.Second
	stopTimeout  = 5 * time.Second
	askTimeout   = 5 * time.Second
)

// caddyServer is one running Caddy.
type caddyServer struct {
	addr string
	log  string // path
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// startCaddy runs a site in a folder of its own and returns when it answers.
func startCaddy(ctx context.Context, binary, dir, site, redisURL string) (*caddyServer, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(config, []byte(caddyfile(site, addr, dir, redisURL)), 0o600); err != nil {
		return nil, err
	}
	s := &caddyServer{addr: addr, log: filepath.Join(dir, "log"), done: make(chan struct{})}
	s.cmd = exec.CommandContext(ctx, binary, "run", "--config", config)
	s.cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.WaitDelay = stopTimeout
	if err := s.spawn(); err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (s *caddyServer) spawn() error {
	log, err := os.Create(s.log)
	if err != nil {
		return err
	}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	err = s.cmd.Start()
	log.Close() // the process has its own
	if err != nil {
		return err
	}
	go func() {
		_ = s.cmd.Wait() // how it ended stands in its log
		close(s.done)
	}()
	return nil
}

func (s *caddyServer) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return fmt.Errorf("caddy ended at once; its log:\n%s", s.readLog())
		case <-ctx.Done():
			return fmt.Errorf("caddy does not answer: %w; its log:\n%s", ctx.Err(), s.readLog())
		case <-tick.C:
			if _, err := s.ask(ctx); err == nil {
				return nil
			}
		}
	}
}

func (s *caddyServer) readLog() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// stop ends the process, at the latest after stopTimeout.
func (s *caddyServer) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(stopTimeout):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// answer is a response.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends one request on a connection of its own.
func (s *caddyServer) ask(ctx context.Context) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/", nil)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set(clientHeader, "0")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// names lists the header fields that are not Caddy's own doing, in order.
func (a answer) names() []string {
	own := []string{"Date", "Server", "Content-Length"}
	if a.status == http.StatusOK {
		own = append(own, "Content-Type") // respond sets it
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(a.header)), func(name string) bool { return slices.Contains(own, name) })
}

// sameShape reports how a copied answer differs from its model in what costs
// time: the fields, and the length of the body. Their values change from one
// request to the next.
func (a answer) sameShape(model answer) error {
	var errs []error
	if a.status != model.status {
		errs = append(errs, fmt.Errorf("status %d is not %d", a.status, model.status))
	}
	if got, want := slices.Sorted(maps.Keys(a.header)), slices.Sorted(maps.Keys(model.header)); !slices.Equal(got, want) {
		errs = append(errs, fmt.Errorf("header fields %q are not %q", got, want))
	}
	if len(a.body) != len(model.body) {
		errs = append(errs, fmt.Errorf("body %q is not as long as %q", a.body, model.body))
	}
	return errors.Join(errs...)
}
