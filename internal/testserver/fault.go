package testserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Patient is a Redis and the network before it, to which faults happen. Whoever is
// tested connects to the proxy.
type Patient struct {
	Redis *Redis
	Proxy *Proxy
}

// StartPatient starts both, with the server's files in dir. The caller stops it.
func StartPatient(dir string) (*Patient, error) {
	r, err := StartRedis(dir)
	if err != nil {
		return nil, err
	}
	p, err := StartProxy(r.Addr())
	if err != nil {
		r.Stop()
		return nil, err
	}
	return &Patient{Redis: r, Proxy: p}, nil
}

// NewPatient starts both for a test and stops them at its end.
func NewPatient(tb testing.TB) *Patient {
	tb.Helper()
	p, err := StartPatient(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Stop)
	return p
}

// URL is the address of the proxy as a configuration writes it.
func (p *Patient) URL() string { return "redis://" + p.Proxy.Addr() }

// Stop ends both.
func (p *Patient) Stop() {
	p.Proxy.Close()
	p.Redis.Stop()
}

// SlowBy is how long a slow network holds each chunk of bytes: longer than any
// timeout that those who test with it have.
const SlowBy = 300 * time.Millisecond

// Fault is a way in which a Redis, or the network before it, fails. It is the real
// thing: nothing answers in its place.
type Fault struct {
	// Name says what is wrong.
	Name string

	// Kind is what the backend calls it, if it is certain to notice.
	Kind string

	// Passing faults end without End, in their own time.
	Passing bool

	begin, end func(*Patient) error
}

// Begin makes it happen.
func (f Fault) Begin(p *Patient) error { return f.do("beginning", f.begin, p) }

// End repairs it.
func (f Fault) End(p *Patient) error { return f.do("end", f.end, p) }

func (f Fault) do(what string, do func(*Patient) error, p *Patient) error {
	if err := do(p); err != nil {
		return fmt.Errorf("the %s of %q: %w", what, f.Name, err)
	}
	return nil
}

// Faults lists all that is known to happen to a Redis.
var Faults = []Fault{
	{Name: "stands still (SIGSTOP)", Kind: "timeout", begin: (*Patient).pause, end: (*Patient).resume},
	{Name: "black hole", Kind: "timeout", begin: proxied((*Proxy).Blackhole, true), end: proxied((*Proxy).Blackhole, false)},
	{Name: "slow answers", Kind: "timeout", begin: slow(SlowBy), end: slow(0)},
	{Name: "half-open connections", Kind: "timeout", Passing: true, begin: (*Patient).orphan, end: nothing},
	{Name: "refused connections", Kind: "connection", begin: (*Patient).kill, end: (*Patient).restart},
	{Name: "closes at once", Kind: "connection", begin: proxied((*Proxy).HangUp, true), end: proxied((*Proxy).HangUp, false)},
	{Name: "answers garbage", begin: proxied((*Proxy).Garbage, true), end: proxied((*Proxy).Garbage, false)},
	{Name: "out of memory", Kind: "memory", begin: ordered("CONFIG SET maxmemory 1"), end: ordered("CONFIG SET maxmemory 0")},
	{Name: "a replica (READONLY)", Kind: "readonly", begin: ordered("REPLICAOF 127.0.0.1 1"), end: ordered("REPLICAOF NO ONE")},
	{Name: "LOADING", Kind: "loading", begin: (*Patient).load, end: ordered("CONFIG SET key-load-delay 0")},
	{Name: "wrong password", Kind: "auth", begin: ordered("CONFIG SET requirepass other", "CLIENT KILL TYPE normal"), end: ordered("AUTH other", "CONFIG SET requirepass \"\"")},
	{Name: "cannot save (MISCONF)", Kind: "persistence", begin: (*Patient).failSaving, end: (*Patient).saveAgain},
}

func nothing(*Patient) error { return nil }

// proxied switches something at the proxy.
func proxied(set func(*Proxy, bool), on bool) func(*Patient) error {
	return func(p *Patient) error { set(p.Proxy, on); return nil }
}

func slow(by time.Duration) func(*Patient) error {
	return func(p *Patient) error { p.Proxy.Delay(by); return nil }
}

// ordered gives the server commands.
func ordered(commands ...string) func(*Patient) error {
	return func(p *Patient) error { return p.Redis.Do(commands...) }
}

func (p *Patient) pause() error   { return p.Redis.Pause() }
func (p *Patient) resume() error  { return p.Redis.Resume() }
func (p *Patient) kill() error    { p.Redis.Kill(); return nil }
func (p *Patient) restart() error { return p.Redis.Restart() }
func (p *Patient) orphan() error  { p.Proxy.Orphan(); return nil }

// load restarts the server with data that take it half a minute to load. The
// values are so long that it answers between any two.
func (p *Patient) load() error {
	const keys = 6000
	value := strings.Repeat("x", 2048)
	commands := []string{"CONFIG SET rdbcompression no"}
	for i := range keys {
		commands = append(commands, fmt.Sprintf("SET load:%d %s PX 600000", i, value))
	}
	if err := p.Redis.Do(append(commands, "SAVE")...); err != nil {
		return err
	}
	return p.Redis.RestartLoading()
}

// failSaving puts something in the way of what the server saves, and makes it try.
func (p *Patient) failSaving() error {
	if err := os.MkdirAll(filepath.Join(p.obstacle(), "full"), 0o700); err != nil {
		return err
	}
	if err := p.Redis.Do("CONFIG SET save \"3600 1000000\""); err != nil {
		return err
	}
	return p.save("err")
}

func (p *Patient) saveAgain() error {
	if err := os.RemoveAll(p.obstacle()); err != nil {
		return err
	}
	return p.save("ok")
}

// obstacle is a folder where the server wants to have a file.
func (p *Patient) obstacle() string { return filepath.Join(p.Redis.dir, "dump.rdb") }

// save tries to save until that ends in a certain way.
func (p *Patient) save(want string) error {
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(pollInterval) {
		_ = p.Redis.Do("BGSAVE") // refused while one is on
		info, err := p.Redis.inline("INFO persistence")
		if err != nil {
			return err
		}
		if strings.Contains(info, "rdb_last_bgsave_status:"+want) {
			return nil
		}
	}
	return errors.New("saving does not end in " + want)
}
