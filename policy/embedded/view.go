package embedded

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// shared is what all configurations of this process with one storage share, so
// that it survives a reload.
type shared struct {
	changing chan struct{} // holds one token while a change is made
	view     atomic.Pointer[view]
	usage    *usage
	reads    *health
	writes   *health
	current  atomic.Int64 // when the view was last known to be current, in nanoseconds since 1970; 0 is never

	// mu is held while the storage is read into the view or changed, so that the
	// view never goes back.
	mu sync.Mutex
}

func newShared() *shared {
	return &shared{
		changing: make(chan struct{}, 1), usage: newUsage(),
		reads:  newHealth("the store of policies cannot be read; what was read last goes on", "the store of policies is back"),
		writes: newHealth("the store of policies cannot be changed; it is tried again and again", "the store of policies can be changed again"),
	}
}

// Destruct has nothing to end: all goroutines belong to configurations.
func (*shared) Destruct() error { return nil }

// view is a state of the store, ready for requests. Nothing in it changes, but
// when its keys were last used.
type view struct {
	doc      *document
	stored   bool // not only what a store would start with; guarded by shared.mu
	snapshot *policy.Snapshot
	keys     map[[32]byte]knownKey
}

type knownKey struct {
	policy.APIKey
	until time.Time // when it ceases to work; zero means never
	used  *lastUse
}

func newView(d *document, u *usage) (*view, error) {
	snapshot, err := policy.Compile(d.Tiers, d.Policies)
	if err != nil {
		return nil, err
	}
	v := &view{doc: d, snapshot: snapshot, keys: make(map[[32]byte]knownKey, len(d.Keys))}
	uses := u.of(d.Keys)
	for i, k := range d.Keys {
		for _, sum := range k.Sums() {
			until, _ := k.WorksUntil(sum)
			v.keys[sum] = knownKey{APIKey: policy.APIKey{ID: k.ID, Tier: k.Tier}, until: until, used: uses[i]}
		}
	}
	return v, nil
}

// Snapshot returns the policies as they are now.
func (s *store) Snapshot() *policy.Snapshot {
	if v := s.shared.view.Load(); v != nil {
		return v.snapshot
	}
	return strictest
}

// strictest decides until something could be read.
var strictest = policy.Strictest()

// APIKey looks an API key up by its SHA-256, in memory. It reports false for a
// key that is unknown, expired or revoked.
func (s *store) APIKey(_ context.Context, sum [32]byte) (policy.APIKey, bool) {
	v := s.shared.view.Load()
	if v == nil {
		return policy.APIKey{}, false
	}
	k, ok := v.keys[sum]
	countLookUp(ok)
	if !ok {
		return policy.APIKey{}, false
	}
	at := time.Now()
	if !k.until.IsZero() && !at.Before(k.until) {
		return policy.APIKey{}, false
	}
	k.used.note(at)
	return k.APIKey, true
}

// health is whether the storage can be read, or written.
type health struct {
	bad, good string // what is logged

	mu    sync.Mutex
	up    bool
	since time.Time
	last  error
	tried time.Time
}

func newHealth(bad, good string) *health {
	return &health{bad: bad, good: good, up: true, since: time.Now(), tried: time.Now()}
}

// note takes the outcome of a try, and logs when it is another than before.
func (h *health) note(err error, logger *zap.Logger) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.last = err
	}
	h.tried = time.Now()
	if h.up == (err == nil) {
		return
	}
	h.up, h.since = err == nil, time.Now()
	if h.up {
		logger.Info(h.good)
		return
	}
	logger.Error(h.bad, zap.Error(err))
}

func (h *health) state() (up bool, since time.Time, last error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.up, h.since, h.last
}

// due reports whether it was tried too long ago to be still true. While it is
// bad, that is soon.
func (h *health) due() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	interval := proofInterval
	if !h.up {
		interval = retryInterval
	}
	return time.Since(h.tried) > interval
}
