package testserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Postgres is a running PostgreSQL server that trusts whoever connects.
type Postgres struct {
	dir  string // of the data
	bin  string // of the programs
	port int
	user *syscall.Credential // nil: the own user
	proc *process
	made atomic.Int64 // databases so far
}

// StartPostgres creates a cluster of databases in dir and starts a server for it
// on a free port of 127.0.0.1. It returns when the server answers. Since
// PostgreSQL refuses to run as root, it then runs as the user postgres. The
// caller stops it.
func StartPostgres(dir string) (*Postgres, error) {
	p := &Postgres{dir: filepath.Join(dir, "data")}
	if err := p.findPrograms(); err != nil {
		return nil, err
	}
	if err := p.chooseUser(dir); err != nil {
		return nil, err
	}
	if err := p.initialize(); err != nil {
		return nil, err
	}
	var err error
	for range startAttempts {
		if p.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = p.start(); err == nil {
			return p, nil
		}
		if !strings.Contains(err.Error(), "in use") {
			break // not a port that somebody else took in the meantime
		}
	}
	return nil, err
}

// NewPostgres starts a server for a test and stops it at the test's end. It
// fails the test if that is not possible.
func NewPostgres(tb testing.TB) *Postgres {
	tb.Helper()
	p, err := StartPostgres(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Stop)
	return p
}

// findPrograms looks in the path and where Debian keeps several versions side
// by side, of which the newest is taken.
func (p *Postgres) findPrograms() error {
	if bin, err := exec.LookPath("initdb"); err == nil {
		if bin, err = filepath.EvalSymlinks(bin); err != nil { // the other programs stand beside it
			return err
		}
		p.bin = filepath.Dir(bin)
		return nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return errors.New("postgres and initdb are not installed; run `make deps` or apt-get install postgresql")
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return debianVersion(a) - debianVersion(b) })
	p.bin = filepath.Dir(newest)
	return nil
}

func debianVersion(initdb string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(initdb)))) // a folder of another name comes last
	return n
}

// chooseUser finds a user that is not root and lets it into dir.
func (p *Postgres) chooseUser(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return fmt.Errorf("PostgreSQL does not run as root, and there is no user postgres: %w", err)
	}
	uid, errUID := strconv.Atoi(u.Uid)
	gid, errGID := strconv.Atoi(u.Gid)
	if err := errors.Join(errUID, errGID); err != nil {
		return err
	}
	p.user = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		return err
	}
	if err := os.Chown(p.dir, uid, gid); err != nil {
		return err
	}
	return openFolders(dir)
}

// openFolders lets other users pass through the temporary folders above dir.
func openFolders(dir string) error {
	temp := filepath.Clean(os.TempDir())
	for ; dir != temp; dir = filepath.Dir(dir) {
		if !strings.HasPrefix(dir, temp+"/") {
			return nil // not a temporary folder: its owner decides
		}
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if err := os.Chmod(dir, info.Mode().Perm()|0o011); err != nil {
			return err
		}
	}
	return nil
}

func (p *Postgres) initialize() error {
	cmd := exec.Command(filepath.Join(p.bin, "initdb"), "-D", p.dir, "-U", "postgres",
		"--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: p.user}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

func (p *Postgres) start() error {
	proc, err := startProcessAs(p.user, filepath.Join(p.bin, "postgres"), "-D", p.dir, "-p", strconv.Itoa(p.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=200",
		"-c", "fsync=off") // what is committed survives the server's end, not the machine's
	if err != nil {
		return err
	}
	p.proc = proc
	if err := proc.waitReady(func() error { return p.ready(proc) }); err != nil {
		p.Kill()
		return err
	}
	return nil
}

// ready reports whether this server answers: its own log says so first, because
// behind a port that was lost to somebody else, somebody else would answer.
func (p *Postgres) ready(proc *process) error {
	if !strings.Contains(proc.output.String(), "ready to accept connections") {
		return errors.New("still starting")
	}
	return p.Exec("postgres", "SELECT 1")
}

// Exec runs SQL in a database, on a connection of its own.
func (p *Postgres) Exec(database, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.urlOf(database))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// NewDatabase makes an empty database for a test and returns its URL.
func (p *Postgres) NewDatabase(tb testing.TB) string {
	tb.Helper()
	name := fmt.Sprintf("test_%d", p.made.Add(1))
	if err := p.Exec("postgres", "CREATE DATABASE "+name); err != nil {
		tb.Fatal(err)
	}
	return p.urlOf(name)
}

func (p *Postgres) urlOf(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", p.Addr(), database)
}

// URL is the address of the database postgres, as a configuration writes it.
func (p *Postgres) URL() string { return p.urlOf("postgres") }

// Addr is the server's host and port.
func (p *Postgres) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// Program is the path of one of PostgreSQL's programs, like pg_dump.
func (p *Postgres) Program(name string) string { return filepath.Join(p.bin, name) }

// Stop ends the server, even one that is paused. Stopping twice is harmless.
func (p *Postgres) Stop() {
	_ = p.Resume()
	_ = p.proc.signal(syscall.SIGINT) // does not wait for clients
	select {
	case <-p.proc.exited:
	case <-time.After(stopDeadline):
		p.Kill()
	}
}

// Kill ends the server and all its processes at once, without a goodbye. What
// was committed stays.
func (p *Postgres) Kill() {
	children := p.children()
	_ = p.proc.signal(syscall.SIGKILL)
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.proc.exited
}

// Pause makes the server stand still: connections stay open and nothing answers.
func (p *Postgres) Pause() error { return p.signalAll(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (p *Postgres) Resume() error { return p.signalAll(syscall.SIGCONT) }

// Restart ends the server, if it runs, and starts it again on the same port with
// what was committed. It returns when the server answers.
func (p *Postgres) Restart() error {
	p.Kill()
	// The kernel may take a moment to let go of the memory of the processes that
	// were killed; until then PostgreSQL refuses to start.
	var err error
	for end := time.Now().Add(startDeadline); time.Now().Before(end); time.Sleep(pollInterval) {
		if err = p.start(); err == nil || !strings.Contains(err.Error(), "in use") {
			return err
		}
	}
	return err
}

// signalAll signals the server and then its children, so that none of them is
// made anew in between.
func (p *Postgres) signalAll(sig syscall.Signal) error {
	if err := p.proc.signal(sig); err != nil {
		return err
	}
	for _, pid := range p.children() {
		_ = syscall.Kill(pid, sig) // one that has ended meanwhile
	}
	return nil
}

// children lists the processes whose parent the server is: each of its
// connections is one.
func (p *Postgres) children() (pids []int) {
	if isClosed(p.proc.exited) {
		return nil // its number may be somebody else's by now
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // has ended
		}
		// pid (name) state parent ...; the name may hold anything
		_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[1] != strconv.Itoa(p.proc.cmd.Process.Pid) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
