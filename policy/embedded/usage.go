package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"
)

// usage is when keys were last used, to the second. Requests note it in memory;
// now and then it is merged with what other instances noted.
type usage struct {
	mu   sync.RWMutex
	keys map[string]*lastUse // by the key's id
}

// lastUse is when one key was last used, in seconds since 1970; 0 is never.
type lastUse struct{ at atomic.Int64 }

func newUsage() *usage { return &usage{keys: make(map[string]*lastUse)} }

// note is called on requests: nearly always it is one load.
func (l *lastUse) note(at time.Time) {
	now := at.Unix()
	for old := l.at.Load(); old < now; old = l.at.Load() {
		if l.at.CompareAndSwap(old, now) {
			return
		}
	}
}

// of returns the entries of the keys, and forgets those of all others.
func (u *usage) of(keys []storedKey) []*lastUse {
	u.mu.Lock()
	defer u.mu.Unlock()
	uses, kept := make([]*lastUse, len(keys)), make(map[string]*lastUse, len(keys))
	for i, k := range keys {
		l := u.keys[k.ID]
		if l == nil {
			l = new(lastUse)
		}
		uses[i], kept[k.ID] = l, l
	}
	u.keys = kept
	return uses
}

// lastUsed is when a key was last used, as far as is known here.
func (u *usage) lastUsed(id string) time.Time {
	u.mu.RLock()
	defer u.mu.RUnlock()
	if l := u.keys[id]; l != nil && l.at.Load() > 0 {
		return time.Unix(l.at.Load(), 0).UTC()
	}
	return time.Time{}
}

// merge takes over what others noted, and returns everything if that lacks
// something that was noted here; else nil.
func (u *usage) merge(stored map[string]int64) map[string]int64 {
	u.mu.RLock()
	defer u.mu.RUnlock()
	merged, news := make(map[string]int64, len(u.keys)), false
	for id, l := range u.keys {
		l.note(time.Unix(stored[id], 0))
		if at := l.at.Load(); at > 0 {
			merged[id] = at
			news = news || at > stored[id]
		}
	}
	if !news {
		return nil
	}
	return merged
}

// saveUsage exchanges with the storage when keys were last used. No lock is
// taken: if two instances store at once, the one whose news were lost sees that
// they are missing the next time.
func (s *store) saveUsage(ctx context.Context) error {
	stored := make(map[string]int64)
	b, err := s.storage.Load(ctx, usageKey)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("read when keys were last used: %w", err)
	default:
		if err := json.Unmarshal(b, &stored); err != nil {
			clear(stored) // nothing that is worth an error: it is written anew
		}
	}
	merged := s.shared.usage.merge(stored)
	if merged == nil {
		return nil
	}
	if b, err = json.Marshal(merged); err != nil {
		return err
	}
	return s.storage.Store(ctx, usageKey, b)
}
