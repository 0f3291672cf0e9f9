package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// sample is what wrk says of one measurement.
type sample struct {
	rate     float64 // requests per second
	p50, p99 time.Duration
	requests int64
	failed   int64 // answers that are neither 2xx nor 3xx
	broken   int64 // connections that failed, and requests that timed out

	scriptCalls int64 // that Redis ran meanwhile; -1 if the case has no Redis

	// Processor time taken meanwhile.
	caddyCPU, redisCPU time.Duration
}

// connections is how many wrk holds open, to all instances together.
const connections = 32

// add joins what several instances did at the same time. Of their latencies the
// worst stands for all.
func (s sample) add(o sample) sample {
	s.rate += o.rate
	s.p50, s.p99 = max(s.p50, o.p50), max(s.p99, o.p99)
	s.requests += o.requests
	s.failed += o.failed
	s.broken += o.broken
	return s
}

// wrkAll loads several URLs at once, with equal shares of the connections.
func wrkAll(ctx context.Context, urls []string, script string, d time.Duration) (sum sample, err error) {
	samples, errs := make([]sample, len(urls)), make([]error, len(urls))
	var all sync.WaitGroup
	for i, url := range urls {
		all.Go(func() { samples[i], errs[i] = wrk(ctx, url, script, connections/len(urls), d) })
	}
	all.Wait()
	for _, s := range samples {
		sum = sum.add(s)
	}
	sum.scriptCalls = -1
	return sum, errors.Join(errs...)
}

// wrk loads a URL; the script may be empty.
func wrk(ctx context.Context, url, script string, connections int, d time.Duration) (sample, error) {
	args := []string{"-t1", "-c" + strconv.Itoa(connections), fmt.Sprintf("-d%ds", int(d.Seconds())), "--latency"}
	if script != "" {
		args = append(args, "-s", script)
	}
	out, err := exec.CommandContext(ctx, "wrk", append(args, url)...).CombinedOutput()
	if err != nil {
		return sample{}, fmt.Errorf("wrk: %w: %s", err, out)
	}
	s, err := parseWrk(string(out))
	if err != nil {
		return sample{}, fmt.Errorf("%w in what wrk printed:\n%s", err, out)
	}
	return s, nil
}

var (
	wrkRate     = regexp.MustCompile(`(?m)^Requests/sec:\s+([\d.]+)`)
	wrkP50      = regexp.MustCompile(`(?m)^\s+50%\s+([\d.]+[a-z]+)`)
	wrkP99      = regexp.MustCompile(`(?m)^\s+99%\s+([\d.]+[a-z]+)`)
	wrkRequests = regexp.MustCompile(`(?m)^\s*(\d+) requests in `)
	wrkFailed   = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
	wrkBroken   = regexp.MustCompile(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`)
)

// parseWrk reads wrk's report. The lines on failures are there only if there
// were any; all others must be.
func parseWrk(out string) (sample, error) {
	s := sample{scriptCalls: -1}
	var err error
	read := func(what string, pattern *regexp.Regexp, parse func(string) error) {
		m := pattern.FindStringSubmatch(out)
		switch {
		case err != nil:
		case m == nil:
			err = fmt.Errorf("no %s", what)
		default:
			err = parse(m[1])
		}
	}
	read("requests per second", wrkRate, func(v string) (err error) { s.rate, err = strconv.ParseFloat(v, 64); return })
	read("median latency", wrkP50, func(v string) (err error) { s.p50, err = time.ParseDuration(v); return })
	read("99th percentile", wrkP99, func(v string) (err error) { s.p99, err = time.ParseDuration(v); return })
	read("number of requests", wrkRequests, func(v string) (err error) { s.requests, err = strconv.ParseInt(v, 10, 64); return })
	s.failed = sumGroups(wrkFailed, out)
	s.broken = sumGroups(wrkBroken, out)
	return s, err
}

// sumGroups adds up the numbers that a pattern captures; 0 without a match.
func sumGroups(pattern *regexp.Regexp, text string) (sum int64) {
	for _, group := range pattern.FindStringSubmatch(text) {
		if n, err := strconv.ParseInt(group, 10, 64); err == nil {
			sum += n
		}
	}
	return sum
}

// clients is how many a spread load is made of.
const clients = 10_000

// writeSpread writes the script of a load by many clients, in random order. The
// requests are built beforehand, so that wrk takes little time from the server.
func writeSpread(dir string) (string, error) {
	script := strings.NewReplacer("CLIENTS", strconv.Itoa(clients), "HEADER", clientHeader).Replace(`local requests = {}

function init()
  for i = 1, CLIENTS do
    requests[i] = wrk.format("GET", "/", { ["HEADER"] = string.format("client-%06d", i) })
  end
  math.randomseed(1)
end

function request()
  return requests[math.random(CLIENTS)]
end
`)
	path := filepath.Join(dir, "spread.lua")
	return path, os.WriteFile(path, []byte(script), 0o600)
}
