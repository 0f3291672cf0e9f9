package testserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// NewSentinel starts a Redis Sentinel that watches a master under a name, alone
// and quick to act: it fails over when the master has been gone for a second.
// It is stopped at the test's end. The value returned is the sentinel itself.
func NewSentinel(tb testing.TB, name string, master *Redis) *Redis {
	tb.Helper()
	dir := tb.TempDir()
	config := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 1\nsentinel down-after-milliseconds %s 1000\n"+
		"sentinel failover-timeout %s 5000\n", name, master.Port(), name, name)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	port, err := freePort()
	if err != nil {
		tb.Fatal(err)
	}
	s := &Redis{dir: dir, bin: master.bin, port: port}
	s.proc, err = startProcess(s.bin, config, "--sentinel", "--bind", "127.0.0.1", "--port", fmt.Sprint(port), "--dir", dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Stop)
	if err := s.proc.waitReady(func() error { return s.watches(name) }); err != nil {
		tb.Fatal(err)
	}
	return s
}

// watches reports whether the sentinel sees the master and a replica of it.
func (r *Redis) watches(name string) error {
	if !strings.Contains(r.proc.output.String(), "+monitor master "+name) {
		return errors.New("still starting")
	}
	info, err := r.inline("INFO sentinel")
	if err != nil {
		return err
	}
	if !strings.Contains(info, "name="+name+",status=ok") || strings.Contains(info, "slaves=0") {
		return fmt.Errorf("it does not see a master with a replica: %s", info)
	}
	return nil
}
