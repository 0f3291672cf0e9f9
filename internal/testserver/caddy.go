package testserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Caddy is a running Caddy with a configuration and folders of its own.
type Caddy struct {
	ports [2]*heldPort
	proc  *process
}

// StartCaddy runs a built Caddy with a Caddyfile and all its files in dir, and
// returns when the configuration is loaded. The Caddyfile may use {$PORT} and
// {$PORT2}, two ports that are this Caddy's. It must say `admin off`, or name an
// address that nobody else has. The caller stops it.
func StartCaddy(binary, dir, caddyfile string) (*Caddy, error) {
	c := new(Caddy)
	for i := range c.ports {
		var err error
		if c.ports[i], err = holdPort(); err != nil {
			c.release()
			return nil, err
		}
	}
	if err := c.start(binary, dir, caddyfile); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

func (c *Caddy) start(binary, dir, caddyfile string) error {
	text := strings.NewReplacer("{$PORT}", strconv.Itoa(c.ports[0].port), "{$PORT2}", strconv.Itoa(c.ports[1].port)).Replace(caddyfile)
	path := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	// env: startProcess leaves the environment as it is, and Caddy keeps its files
	// where XDG says.
	proc, err := startProcess("env", "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir,
		binary, "run", "--adapter", "caddyfile", "--config", path)
	if err != nil {
		return err
	}
	if err := proc.waitReady(func() error { return loaded(proc) }); err != nil {
		proc.kill()
		return err
	}
	c.proc = proc
	return nil
}

func loaded(proc *process) error {
	if !strings.Contains(proc.output.String(), "serving initial configuration") {
		return errors.New("still starting")
	}
	return nil
}

// URL is where {$PORT} is served.
func (c *Caddy) URL() string { return fmt.Sprintf("http://127.0.0.1:%d", c.ports[0].port) }

// URL2 is where {$PORT2} is served.
func (c *Caddy) URL2() string { return fmt.Sprintf("http://127.0.0.1:%d", c.ports[1].port) }

// Log is the end of what Caddy has printed.
func (c *Caddy) Log() string { return c.proc.output.String() }

// Stop ends the server. Stopping twice is harmless.
func (c *Caddy) Stop() {
	c.proc.stop()
	c.release()
}

func (c *Caddy) release() {
	for i, p := range c.ports {
		if p != nil {
			_ = syscall.Close(p.fd)
			c.ports[i] = nil
		}
	}
}

// heldPort is a port that nobody else gets: a socket is bound to it, and never
// listens. Caddy, which shares its ports with its own reloads, may still listen.
type heldPort struct{ fd, port int }

func holdPort() (*heldPort, error) {
	const soReusePort = 15 // Linux; the syscall package does not name it
	fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("hold a port: %w", err)
	}
	err = errors.Join(
		syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0),
		syscall.Bind(fd, new(syscall.SockaddrInet6)),
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, soReusePort, 1), // only after the bind was exclusive
	)
	address, errName := syscall.Getsockname(fd)
	if err = errors.Join(err, errName); err != nil {
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("hold a port: %w", err)
	}
	return &heldPort{fd, address.(*syscall.SockaddrInet6).Port}, nil
}
