package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// warmUp is how long each case is loaded before the first round.
const warmUp = time.Second

// bench is one run of the program.
type bench struct {
	options
	dir   string
	redis redisServer

	spread  string           // path of wrk's script for many clients
	servers [][]*caddyServer // by case
	samples [][]sample       // by case, then round

	keyBytes int64 // what a bucket takes in Redis
}

// start starts one Caddy per case, first those whose answers the others copy,
// and warms them up.
func (b *bench) start(ctx context.Context) (err error) {
	if b.spread, err = writeSpread(b.dir); err != nil {
		return err
	}
	b.servers = make([][]*caddyServer, len(cases))
	b.samples = make([][]sample, len(cases))
	for _, copies := range []bool{false, true} {
		for i, c := range cases {
			if (c.copies != "") != copies {
				continue
			}
			if err := b.startCase(ctx, i); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return nil
}

func (b *bench) stop() {
	for _, instances := range b.servers {
		for _, s := range instances {
			s.stop()
		}
	}
}

func (b *bench) startCase(ctx context.Context, i int) error {
	c := cases[i]
	progress("starting: %s", c.name)
	site, model, err := b.site(ctx, c)
	if err != nil {
		return err
	}
	for range 1 + c.extra {
		if err := b.startInstance(ctx, i, site); err != nil {
			return err
		}
	}
	if _, err := b.load(ctx, i, warmUp); err != nil {
		return err
	}
	got, err := b.servers[i][0].ask(ctx)
	if err != nil || c.copies == "" {
		return err
	}
	return got.sameShape(model)
}

func (b *bench) startInstance(ctx context.Context, i int, site string) error {
	dir, err := os.MkdirTemp(b.dir, "caddy-")
	if err != nil {
		return err
	}
	var redisURL string
	if cases[i].redis {
		redisURL = b.redis.url
	}
	server, err := startCaddy(ctx, b.caddy, dir, site, redisURL)
	if err != nil {
		return err
	}
	b.servers[i] = append(b.servers[i], server)
	return nil
}

// site returns the directives of a case, and the answer that it copies if it
// copies one.
func (b *bench) site(ctx context.Context, c benchCase) (string, answer, error) {
	if c.copies == "" {
		return c.site, answer{}, nil
	}
	model, err := b.servers[find(c.copies)][0].ask(ctx)
	if err != nil {
		return "", answer{}, err
	}
	site, err := sameBytes(model)
	return site, model, err
}

// measure runs the rounds. Each starts one case further than the one before,
// and every other one runs backwards, so that no case is always the first of
// two or always has the same minute.
func (b *bench) measure(ctx context.Context) error {
	for round := range b.rounds {
		for k := range cases {
			i := order(round, k)
			s, err := b.load(ctx, i, b.duration)
			if err == nil {
				err = check(cases[i], s)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", cases[i].name, err)
			}
			progress("round %d of %d: %9.0f requests/s: %s", round+1, b.rounds, s.rate, cases[i].name)
			b.samples[i] = append(b.samples[i], s)
		}
	}
	return b.weigh(ctx)
}

// order returns the k-th case of a round.
func order(round, k int) int {
	i := (round + k) % len(cases)
	if round%2 == 1 {
		i = len(cases) - 1 - i
	}
	return i
}

// weigh finds what a bucket takes in Redis.
func (b *bench) weigh(ctx context.Context) (err error) {
	if _, err = b.load(ctx, find(redisManyClient), warmUp); err == nil {
		b.keyBytes, err = b.redis.bytesPerKey()
	}
	return err
}

// load runs wrk against one case and checks the answer afterwards.
func (b *bench) load(ctx context.Context, i int, d time.Duration) (sample, error) {
	c := cases[i]
	var script string
	if c.spread {
		script = b.spread
	}
	before, err := b.read(i)
	if err != nil {
		return sample{}, err
	}
	var urls []string
	for _, server := range b.servers[i] {
		urls = append(urls, "http://"+server.addr+"/")
	}
	s, err := wrkAll(ctx, urls, script, d)
	if err != nil {
		return sample{}, err
	}
	after, err := b.read(i)
	s.caddyCPU = after.caddy - before.caddy
	if c.redis {
		s.scriptCalls, s.redisCPU = after.scriptCalls-before.scriptCalls, after.redis-before.redis
	}
	return s, errors.Join(err, b.servers[i][0].checkStatus(ctx, c.status))
}

// reading is what the counters of a case's servers stand at.
type reading struct {
	caddy, redis time.Duration // processor time
	scriptCalls  int64
}

func (b *bench) read(i int) (r reading, err error) {
	for _, server := range b.servers[i] {
		cpu, err := cpuOf(server.cmd.Process.Pid)
		if err != nil {
			return r, err
		}
		r.caddy += cpu
	}
	if r.scriptCalls, err = b.redis.scriptCalls(); err != nil {
		return r, err
	}
	r.redis, err = b.redis.cpu()
	return r, err
}

// checkStatus asks once more, because wrk does not tell one failure from
// another.
func (s *caddyServer) checkStatus(ctx context.Context, want int) error {
	got, err := s.ask(ctx)
	if err == nil && got.status != want {
		err = fmt.Errorf("it answers %d, not %d (503 comes when the machine is busy with other work and Redis late); its log:\n%s",
			got.status, want, s.readLog())
	}
	return err
}

// tolerated is the share of answers that may be other than the case means: one
// in so many. A busy machine can hold a call to Redis up beyond its timeout.
const tolerated = 100

// check reports a measurement of something else than the case means.
func check(c benchCase, s sample) error {
	switch {
	case s.broken > 0:
		return fmt.Errorf("%d connections or requests broke", s.broken)
	case s.requests == 0:
		return errors.New("nothing was answered")
	case s.others(c) > s.requests/tolerated:
		return fmt.Errorf("%d of %d answers had another status than %d", s.others(c), s.requests, c.status)
	case c.redis && c.status < 400 && s.scriptCalls == 0:
		return errors.New("the case never asked Redis")
	}
	return nil
}

// others counts the answers that are a failure in a case of success, or the
// other way round.
func (s sample) others(c benchCase) int64 {
	if c.status >= 400 {
		return s.requests - s.failed
	}
	return s.failed
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
