package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

const (
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 10 * time.Second

	// lookTimeout bounds a comparison of the epoch and what is read after it.
	lookTimeout = 5 * time.Second
)

// listen keeps what is known current until the client ends.
func (c *client) listen() {
	backoff := firstBackoff
	for c.ctx.Err() == nil {
		began := time.Now()
		listened, err := c.session()
		if c.ctx.Err() != nil {
			return
		}
		if listened && time.Since(began) > time.Second { // perhaps only this connection broke
			backoff = firstBackoff
			continue
		}
		c.noteLost(err)
		c.hasLooked()
		select { // instances that lost the database together do not return together
		case <-time.After(backoff/2 + rand.N(backoff)):
		case <-c.kicks:
		case <-c.ctx.Done():
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

// noteLost notes that nobody listens. If the database answers otherwise, that
// costs no more than time.
func (c *client) noteLost(err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.ctx, minPollTimeout)
	defer cancel()
	var lost *listenError
	if _, asked := readEpoch(ctx, c.pool); asked != nil || !errors.As(err, &lost) {
		c.note(began, err)
		return
	}
	c.logger().Warn("nobody listens for changes; they arrive within cache_ttl until the connection is back", zap.Error(err))
}

// listenError is a failure of the connection that listens, not of what is read.
type listenError struct{ error }

func (e *listenError) Unwrap() error { return e.error }

// session listens on one connection until it breaks. It reports whether it got
// so far as to listen.
func (c *client) session() (listened bool, err error) {
	c.migrateOnce()
	conn, err := c.openListener()
	if err != nil {
		return false, &listenError{err}
	}
	defer closeSoon(conn)
	if err := c.look(conn); err != nil {
		return false, err
	}
	c.hasLooked()
	for {
		if err := c.wait(conn); err != nil {
			return true, &listenError{err}
		}
		if err := c.look(conn); err != nil {
			return true, err
		}
	}
}

// openListener connects and listens. What is read afterwards is not missed by
// anybody: a change in between is noticed.
func (c *client) openListener() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, connectTimeout+lookTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, c.connConfig.Copy())
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		closeSoon(conn)
		return nil, err
	}
	return conn, nil
}

// migrateOnce brings the schema up to date, if that is wanted. If it fails, the
// schema may still be good enough.
func (c *client) migrateOnce() {
	p := c.inCharge()
	if p == nil || p.SkipMigrations || c.migrated.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
	defer cancel()
	applied, err := migrate(ctx, c.connConfig)
	if err != nil {
		if up := c.up(); up && c.ctx.Err() == nil {
			p.logger.Warn("the database's schema could not be brought up to date", zap.Error(err))
		}
		return
	}
	c.migrated.Store(true)
	if len(applied) > 0 {
		p.logger.Info("the database's schema is up to date", zap.Int64s("applied", applied))
	}
}

// hasLooked lets the start of Caddy go on.
func (c *client) hasLooked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.looked:
	default:
		close(c.looked)
	}
}

// wait waits for a notice, a kick or cache_ttl.
func (c *client) wait(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(c.ctx, c.cacheTTL())
	defer cancel()
	kicked := make(chan struct{})
	go func() {
		defer close(kicked)
		select {
		case <-c.kicks:
			cancel()
		case <-ctx.Done():
		}
	}()
	_, err := conn.WaitForNotification(ctx)
	cancel()
	<-kicked
	if err != nil && (conn.IsClosed() || c.ctx.Err() != nil) {
		return errors.Join(err, c.ctx.Err())
	}
	return nil
}

// look makes what is known current.
func (c *client) look(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(c.ctx, lookTimeout)
	defer cancel()
	began := time.Now()
	err := c.update(ctx, conn)
	if err == nil {
		c.note(began, nil)
		c.measure(ctx, conn)
	}
	return err
}

func closeSoon(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx) // broken or not, it is over
}

// schemaMissing reports whether the tables are not there yet.
func schemaMissing(err error) bool { return hasCode(err, "42P01") } // undefined_table

func hasCode(err error, code string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == code
}

// explain adds to an error what to do about it.
func explain(err error) error {
	if schemaMissing(err) {
		return fmt.Errorf("%w; the schema is missing: run caddy rate-limit migrate, or leave migrate off out", err)
	}
	if hasCode(err, "42703") { // undefined_column
		return fmt.Errorf("%w; the schema is of an earlier version: run caddy rate-limit migrate, or leave migrate off out", err)
	}
	return err
}
