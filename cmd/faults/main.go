// Command faults measures what a request feels while Redis is broken: for every
// known fault it starts a Redis, a network before it and a Caddy, sends requests
// of each failure mode, lets the fault happen and end, and prints a table in
// Markdown: what clients were answered, what was logged, the latency that the fault
// added before and after the breaker opened, and how soon after its end Redis was
// used again. The faults are those that the tests try.
//
//	go run ./cmd/faults -caddy bin/caddy -duration 3s
//
// Added is what a request took longer than the median request to a Redis that
// works, on the same Caddy. Run it on a machine that has nothing else to do.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

func main() {
	var o options
	flag.StringVar(&o.caddy, "caddy", "bin/caddy", "path of a Caddy with Tollgate in it")
	flag.DurationVar(&o.duration, "duration", 3*time.Second, "how long each fault is watched after the breaker has opened")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

// options are the command line's.
type options struct {
	caddy    string        // path of the binary
	duration time.Duration // of the watch after the breaker has opened
}

func (o options) check() error {
	if o.duration < 100*time.Millisecond {
		return fmt.Errorf("-duration is %s; write at least 100ms, like 3s", o.duration)
	}
	if _, err := os.Stat(o.caddy); err != nil {
		return fmt.Errorf("no Caddy at %s; run make build, or name one with -caddy", o.caddy)
	}
	return nil
}

// run measures every fault and prints the table. It leaves no process and no file
// behind.
func run(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tollgate-faults-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var outcomes []*outcome
	for i, fault := range testserver.Faults {
		fmt.Fprintf(os.Stderr, "%s ...\n", fault.Name)
		outcome, err := o.measure(ctx, fault, filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			return fmt.Errorf("%s: %w", fault.Name, err)
		}
		outcomes = append(outcomes, outcome)
	}
	return report(os.Stdout, outcomes)
}
