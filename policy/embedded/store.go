package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

// Where the store keeps what, in Caddy's storage.
const (
	folder      = "rate_limit/embedded"
	documentKey = folder + "/store.json"
	noticeKey   = folder + "/epoch"
	usageKey    = folder + "/last_used.json"
	auditFolder = folder + "/audit"
)

const (
	readTimeout   = 5 * time.Second  // of what nobody waits for in particular
	changeTimeout = 5 * time.Second  // a change once it is its turn; less than any lock takes to be stale
	lockTimeout   = 30 * time.Second // the longest that a change waits for its turn
	stuckAfter    = 15 * time.Second // with a lock, before it counts as stuck
	lockRetry     = 50 * time.Millisecond
)

// store is the document in a storage, as one configuration sees it.
type store struct {
	storage   certmagic.Storage
	shared    *shared
	retention time.Duration
	logger    *zap.Logger
}

// transaction is a change while it is made.
type transaction struct {
	doc *document
	now time.Time
}

// errUnchanged ends a transaction that found nothing to do; it is no failure.
var errUnchanged = errors.New("unchanged")

// errVanished keeps a store from being replaced by a new one because a folder is
// not mounted.
var errVanished = fmt.Errorf("the stored document %s is gone; restore it, or restart Caddy to start with a new one", documentKey)

// change runs f on what is stored now and stores the result, alone among all
// instances. If f fails, nothing is stored.
func (s *store) change(ctx context.Context, f func(*transaction) error) error {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	select {
	case s.shared.changing <- struct{}{}:
		defer func() { <-s.shared.changing }()
	case <-ctx.Done():
		return fmt.Errorf("wait for other changes: %w", ctx.Err())
	}
	began := time.Now()
	lock, err := s.takeTurn(ctx)
	if err != nil {
		s.noteTurn(ctx, err, time.Since(began))
		return err
	}
	// What has begun is finished, whether or not the admin still waits.
	ctx, finish := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer finish()
	err = s.changeLocked(ctx, f)
	ended := s.endTurn(ctx, lock)
	s.noteWrite(errors.Join(err, ended)) // what is stored is stored, even if the turn cannot be ended
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

// noteWrite notes whether the storage took a change and the end of its turn. A
// failure to read is noted elsewhere.
func (s *store) noteWrite(err error) {
	var failed *storageError
	if !errors.As(err, &failed) {
		err = nil
	}
	s.shared.writes.note(err, s.logger)
}

// noteTurn notes that no turn was to be had, unless it is only that an admin has
// gone.
func (s *store) noteTurn(ctx context.Context, err error, waited time.Duration) {
	var failed *storageError
	if errors.As(err, &failed) && (ctx.Err() == nil || waited > stuckAfter) {
		s.shared.writes.note(err, s.logger)
	}
}

// storageError is a failure of the storage to keep a change.
type storageError struct{ error }

func (e *storageError) Unwrap() error { return e.error }

// changeLocked is change, with the lock held.
func (s *store) changeLocked(ctx context.Context, f func(*transaction) error) error {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	tx := &transaction{now: now()}
	var err error
	if tx.doc, err = s.loadLocked(ctx); err != nil {
		return err
	}
	if tx.doc == nil {
		if v := s.shared.view.Load(); v != nil && v.stored {
			return errVanished
		}
		tx.doc = newDocument(tx.now)
	}
	if err := f(tx); err != nil {
		return err
	}
	tx.doc.Epoch++
	tx.doc.sort()
	next, err := newView(tx.doc, s.shared.usage)
	if err != nil {
		return fmt.Errorf("the change would leave policies that contradict each other: %w", err)
	}
	if err := s.writeLocked(ctx, tx); err != nil {
		return err
	}
	next.stored = true
	s.shared.show(next)
	return nil
}

// writeLocked stores the document, after the notice of it and the audit that it
// refers to.
func (s *store) writeLocked(ctx context.Context, tx *transaction) error {
	if err := s.moveAudit(ctx, tx.doc); err != nil {
		return err
	}
	dropped := tx.doc.expire(tx.now, s.retention)
	b, err := json.Marshal(tx.doc)
	if err != nil {
		return err
	}
	if err := s.storage.Store(ctx, noticeKey, []byte(tx.doc.mark())); err != nil {
		return &storageError{fmt.Errorf("announce the change: %w", err)}
	}
	if ctx.Err() != nil { // whether or not the storage heeds it
		return &storageError{errLateTurn}
	}
	if err := s.storage.Store(ctx, documentKey, b); err != nil {
		return &storageError{fmt.Errorf("store the change: %w", err)}
	}
	for _, g := range dropped {
		if err := s.storage.Delete(ctx, g.key()); err != nil {
			s.logger.Warn("an old part of the audit could not be deleted", zap.String("key", g.key()), zap.Error(err))
		}
	}
	return nil
}

// seed stores the tiers that a new store starts with, if there is none; in any
// case it takes a turn.
func (s *store) seed(ctx context.Context) {
	err := s.change(ctx, func(tx *transaction) error {
		if tx.doc.Epoch > 1 || len(tx.doc.Audit) > 0 {
			return errUnchanged
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.logger.Debug("the store of policies could not be changed; it will be tried again", zap.Error(err))
	}
}

// read returns what is stored now. The document is shared: it is not changed.
func (s *store) read(ctx context.Context) (*document, error) {
	if err := s.refresh(ctx, false); err != nil {
		return nil, err
	}
	return s.shared.view.Load().doc, nil
}

// refresh makes the view current. Unless it is thorough, it trusts the notice.
func (s *store) refresh(ctx context.Context, thorough bool) error {
	began := time.Now()
	err := s.refreshView(ctx, thorough)
	if err == nil {
		s.shared.current.Store(began.UnixNano())
	}
	s.shared.reads.note(err, s.logger)
	return err
}

func (s *store) refreshView(ctx context.Context, thorough bool) error {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	v := s.shared.view.Load()
	if !thorough && v != nil && v.stored {
		b, err := s.storage.Load(ctx, noticeKey)
		if err == nil && string(b) == v.doc.mark() {
			return nil
		}
	}
	d, err := s.loadLocked(ctx)
	if err != nil {
		return err
	}
	stored := d != nil
	switch {
	case stored && v != nil && v.doc.mark() == d.mark():
		v.stored = true
		return nil
	case !stored && v != nil:
		if v.stored {
			return errVanished
		}
		return nil
	case !stored:
		d = newDocument(now())
	}
	next, err := newView(d, s.shared.usage)
	if err != nil {
		return fmt.Errorf("the stored policies are not usable: %w", err)
	}
	next.stored = stored
	s.shared.show(next)
	return nil
}

// loadLocked returns the stored document; nil if there is none.
func (s *store) loadLocked(ctx context.Context) (*document, error) {
	b, err := s.storage.Load(ctx, documentKey)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the store of policies: %w", err)
	}
	return readDocument(b)
}

// now is the time that records are given: in UTC and whole microseconds, as
// every store keeps it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// mark names a state of a store.
func (d *document) mark() string { return fmt.Sprintf("%s %d", d.Store, d.Epoch) }
