package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// databaseTimeout bounds making and dropping a database.
const databaseTimeout = 30 * time.Second

// servers are what the profiles share. Each profile has its own keys in Redis and
// its own database.
type servers struct {
	caddy    string
	dir      string
	redis    string // URL
	postgres string // URL
	run      string // names this run where servers are shared
	runs     int    // profiles so far

	cleanups []func()
}

// startServers starts what is not given.
func startServers(o options) (*servers, error) {
	dir, err := os.MkdirTemp("", "tollgate-load-")
	if err != nil {
		return nil, err
	}
	s := &servers{caddy: o.caddy, dir: dir, redis: o.redis, postgres: o.postgres, run: strings.ToLower(rand.Text()[:8])}
	s.later(func() { os.RemoveAll(dir) })
	if err := errors.Join(s.startRedis(), s.startPostgres()); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *servers) startRedis() error {
	if s.redis != "" {
		return nil
	}
	redis, err := testserver.StartRedis(s.dir)
	if err != nil {
		return err
	}
	s.later(redis.Stop)
	s.redis = redis.URL()
	return nil
}

func (s *servers) startPostgres() error {
	if s.postgres != "" {
		return nil
	}
	postgres, err := testserver.StartPostgres(s.dir)
	if err != nil {
		return err
	}
	s.later(postgres.Stop)
	s.postgres = postgres.URL()
	return nil
}

func (s *servers) later(cleanup func()) { s.cleanups = append(s.cleanups, cleanup) }

// stop ends what was started and removes what was made, last things first.
func (s *servers) stop() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
	s.cleanups = nil
}

// newDatabase makes an empty database and returns its URL.
func (s *servers) newDatabase(ctx context.Context, name string) (string, error) {
	if err := s.exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", fmt.Errorf("making a database: %w; -postgres needs a user who may", err)
	}
	s.later(func() {
		if err := s.exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			fmt.Fprintf(os.Stderr, "the database %s stays behind: %v\n", name, err)
		}
	})
	u, err := url.Parse(s.postgres)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

func (s *servers) exec(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.postgres)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// startCaddies runs n instances of one configuration.
func (s *servers) startCaddies(n int, caddyfile string) (all []*testserver.Caddy, stop func(), err error) {
	stop = func() {
		for _, c := range all {
			c.Stop()
		}
	}
	for range n {
		s.runs++
		dir := filepath.Join(s.dir, fmt.Sprint("caddy-", s.runs))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, stop, err
		}
		c, err := testserver.StartCaddy(s.caddy, dir, caddyfile)
		if err != nil {
			stop()
			return nil, stop, err
		}
		all = append(all, c)
	}
	return all, stop, nil
}
