// Command loadtest sends load whose outcome is known beforehand, and checks that
// nothing was let through or refused that should not have been.
//
// It starts Caddy with Redis and PostgreSQL behind it and runs one profile after
// the other. Each profile knows exactly how many requests every zone must allow
// and refuse: its limits have windows of 30 days, so that nothing comes back while
// it runs, and what it sends together has one outcome in whatever order it
// arrives. The same counts are taken three times: what must come out, what the
// client got (statuses, headers and bodies), and what Caddy's own /metrics says.
// All three must be equal, or it fails. How fast it went is told, and is no
// condition.
//
//	go run ./cmd/loadtest -caddy bin/caddy
//	go run ./cmd/loadtest -caddy bin/caddy -run race -redis redis://redis-1:6379 -postgres postgres://postgres@db-1/postgres
//
// Requests come from many addresses by way of X-Forwarded-For, which the sites
// here believe of this machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, readFlags())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadtest:", err)
		os.Exit(1)
	}
}

// options are the command line's.
type options struct {
	caddy    string // path of the binary
	redis    string // URL; empty: start one
	postgres string // URL of a server where databases may be made; empty: start one
	only     string // a pattern of profiles' names
}

func readFlags() options {
	var o options
	flag.StringVar(&o.caddy, "caddy", "bin/caddy", "path of a Caddy with Tollgate in it")
	flag.StringVar(&o.redis, "redis", "", "URL of a Redis to use, under key prefixes of its own; without, one is started")
	flag.StringVar(&o.postgres, "postgres", "", "URL of a PostgreSQL to use, as somebody who may create databases; without, one is started")
	flag.StringVar(&o.only, "run", "", "run the profiles whose names match this regular expression only")
	flag.Parse()
	return o
}

// errNotReconciled says that the table has the reason.
var errNotReconciled = errors.New("the counts do not agree; see the lines of the table that say WRONG")

// run measures and prints. It leaves no process and no file behind.
func run(ctx context.Context, o options) error {
	chosen, err := choose(profiles, o.only)
	if err != nil {
		return err
	}
	if _, err := os.Stat(o.caddy); err != nil {
		return fmt.Errorf("no Caddy at %s; run make build, or name one with -caddy", o.caddy)
	}
	s, err := startServers(o)
	if err != nil {
		return err
	}
	defer s.stop()
	var all []outcome
	for _, p := range chosen {
		out, err := s.measure(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		all = append(all, out)
	}
	if err := report(os.Stdout, all); err != nil {
		return err
	}
	for _, out := range all {
		if !out.reconciled() {
			return errNotReconciled
		}
	}
	return nil
}

// choose returns the profiles whose names match.
func choose(all []profile, pattern string) ([]profile, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	var chosen []profile
	for _, p := range all {
		if re.MatchString(p.name) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-run %s matches no profile", pattern)
	}
	return chosen, nil
}
