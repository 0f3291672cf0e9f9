// Command bench measures what Tollgate costs: it starts Caddy in several
// configurations and loads them in turn with wrk, on this machine only.
//
// Absolute numbers differ from machine to machine and from minute to minute,
// so it reports ratios. Each case is set against a yardstick: a Caddy without
// Tollgate that answers the same bytes, headers and body, by its own
// directives header and respond. The rounds are interleaved, each starts with
// another case, and a ratio is always taken within a round; the table shows
// the median over the rounds. All servers share the cores with wrk.
//
//	go run ./cmd/bench -caddy bin/caddy -rounds 5 -duration 5s
//
// A second table says what each algorithm costs Redis: memory, and time of its
// processor by its own statistics. It needs no Caddy and no wrk:
//
//	go run ./cmd/bench -only algorithms
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, readFlags())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the command line's.
type options struct {
	caddy    string        // path of the binary
	rounds   int           // how often each case is measured
	duration time.Duration // of one measurement, whole seconds
	only     string        // which table; both if empty
}

// The tables.
const (
	requestsTable   = "requests"
	algorithmsTable = "algorithms"
)

func readFlags() options {
	var o options
	flag.StringVar(&o.caddy, "caddy", "bin/caddy", "path of a Caddy with Tollgate in it")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each case is measured")
	flag.DurationVar(&o.duration, "duration", 5*time.Second, "length of one measurement, in whole seconds")
	flag.StringVar(&o.only, "only", "", "one of the tables: requests or algorithms")
	flag.Parse()
	return o
}

// prints reports whether a table is wanted.
func (o options) prints(table string) bool { return o.only == "" || o.only == table }

func (o options) check() error {
	if o.only != "" && o.only != requestsTable && o.only != algorithmsTable {
		return fmt.Errorf("-only is %s; write %s or %s, or leave it out for both", o.only, requestsTable, algorithmsTable)
	}
	if !o.prints(requestsTable) {
		return nil
	}
	if o.rounds < 1 {
		return fmt.Errorf("-rounds is %d; write a whole number from 1", o.rounds)
	}
	if o.duration < time.Second || o.duration%time.Second != 0 {
		return fmt.Errorf("-duration is %s; write whole seconds, like 5s", o.duration)
	}
	if _, err := os.Stat(o.caddy); err != nil {
		return fmt.Errorf("no Caddy at %s; run make build, or name one with -caddy", o.caddy)
	}
	if _, err := exec.LookPath("wrk"); err != nil {
		return fmt.Errorf("the load generator wrk is not installed; run tools/deps.sh wrk, or apt-get install wrk")
	}
	return nil
}

// run measures and prints. It leaves no process and no file behind.
func run(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tollgate-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := testserver.StartRedis(dir)
	if err != nil {
		return err
	}
	defer server.Stop()
	redis := redisServer{url: server.URL(), addr: server.Addr()}
	if o.prints(requestsTable) {
		if err := runRequests(ctx, o, dir, redis); err != nil {
			return err
		}
	}
	if o.prints(algorithmsTable) {
		return runAlgorithms(ctx, redis, os.Stdout)
	}
	return nil
}

// runRequests measures requests per second.
func runRequests(ctx context.Context, o options, dir string, redis redisServer) error {
	b := &bench{options: o, dir: dir, redis: redis}
	defer b.stop()
	if err := b.start(ctx); err != nil {
		return err
	}
	if err := b.measure(ctx); err != nil {
		return err
	}
	return b.report(os.Stdout)
}
