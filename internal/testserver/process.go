package testserver

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// startDeadline bounds how long a server may take until it answers, and
// stopDeadline how long it may take to end by itself.
const (
	startDeadline = 20 * time.Second
	stopDeadline  = 5 * time.Second
	pollInterval  = 5 * time.Millisecond
)

// process is a child process and what it printed.
type process struct {
	cmd    *exec.Cmd
	output *tail
	exited chan struct{} // closed once the process is gone and waited for
}

func startProcess(name string, args ...string) (*process, error) {
	return startProcessAs(nil, name, args...)
}

// startProcessAs starts a process as another user; nil is the own one.
func startProcessAs(user *syscall.Credential, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), output: new(tail), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	// A test binary that is killed takes its servers with it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: user}
	started := make(chan error)
	go func() {
		// The kernel means the parent thread, not the process, so the thread
		// must live as long as the server does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended is in its output
		}
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// signal sends sig, unless the process is gone already.
func (p *process) signal(sig syscall.Signal) error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s has ended: %s", p.cmd.Path, p.output)
	default:
		return p.cmd.Process.Signal(sig)
	}
}

// stop asks the process to end and makes it. A process that stands still
// because of SIGSTOP is woken first, since it would never see the request.
func (p *process) stop() {
	_ = p.signal(syscall.SIGTERM)
	_ = p.signal(syscall.SIGCONT)
	select {
	case <-p.exited:
	case <-time.After(stopDeadline):
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL)
	<-p.exited
}

// waitReady polls until ready returns nil, the process ends or the deadline passes.
func (p *process) waitReady(ready func() error) error {
	deadline := time.After(startDeadline)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended at once: %s", p.cmd.Path, p.output)
		case <-deadline:
			return fmt.Errorf("%s does not answer after %s (%w): %s", p.cmd.Path, startDeadline, err, p.output)
		case <-time.After(pollInterval):
		}
	}
}

// tail keeps the last few kilobytes written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const limit = 4096
	t.buf = append(t.buf, b...)
	if len(t.buf) > limit {
		t.buf = append([]byte(nil), t.buf[len(t.buf)-limit:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.buf))
}

// maxPort leaves room for the port 10000 above it, on which the nodes of a
// Redis Cluster talk to each other.
const maxPort = 55_535

// freePort returns a port that was free a moment ago. Somebody else may take it
// before a server does, so whoever uses it retries with another.
func freePort() (int, error) {
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("find a free port: %w", err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		if port <= maxPort {
			return port, nil
		}
	}
}
