package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const (
	// turnKey holds the random name of the turn that is next.
	turnKey = folder + "/turn"

	// lockPrefix and the turn are the name of a lock.
	lockPrefix = "rate_limit_embedded"
)

// errLateTurn is when a change took so long that the storage may take its lock
// for stale.
var errLateTurn = errors.New("the change took too long, and somebody else may change the store now; nothing was stored, so try it again")

// A change is made under a lock of the storage that is named after the turn, and
// ends with a new turn. So no process ever takes a lock of one name twice: one
// that still keeps a lock of its own fresh for a while, as that of the file
// system does for some seconds after it was released, does not keep the lock of
// somebody who was killed fresh, which would last for ever.

// takeTurn waits until it is this instance's turn, and returns the name of the
// lock that it holds then.
func (s *store) takeTurn(ctx context.Context) (string, error) {
	for {
		turn, err := s.readTurn(ctx)
		if err != nil {
			return "", err
		}
		lock := lockPrefix + turn
		if err := s.lock(ctx, lock); err != nil {
			return "", err
		}
		now, err := s.readTurn(ctx)
		if err == nil && now == turn {
			return lock, nil
		}
		s.unlock(ctx, lock)
		if err != nil {
			return "", err
		}
	}
}

// endTurn lets the next one have its turn. What happens to ctx meanwhile does not
// keep it from that.
func (s *store) endTurn(ctx context.Context, lock string) error {
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	defer s.unlock(ctx, lock)
	if err := s.storage.Store(ending, turnKey, []byte(policy.NewID("_"))); err != nil {
		return &storageError{fmt.Errorf("end the change of the store: %w", err)}
	}
	return nil
}

// readTurn is the name of the turn that is next; empty before the first.
func (s *store) readTurn(ctx context.Context) (string, error) {
	b, err := s.storage.Load(ctx, turnKey)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read whose turn it is to change the store: %w", err)
	}
	return string(b), nil
}

// lock takes the storage's lock. That of the file system fails, for a moment,
// when it reads a lock that somebody is just writing.
func (s *store) lock(ctx context.Context, name string) error {
	for attempt := 0; ; attempt++ {
		err := s.storage.Lock(ctx, name)
		if err == nil {
			return nil
		}
		if attempt == 10 || ctx.Err() != nil {
			return &storageError{fmt.Errorf("lock the store: %w", err)}
		}
		select {
		case <-time.After(lockRetry):
		case <-ctx.Done():
		}
	}
}

func (s *store) unlock(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	if err := s.storage.Unlock(ctx, name); err != nil {
		s.logger.Warn("the lock of the store of policies could not be released; others wait until it is stale", zap.Error(err))
	}
}
