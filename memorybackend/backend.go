package memorybackend

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
	"github.com/caddy-tollgate/ratelimit/policy"
)

func init() {
	caddy.RegisterModule(new(Backend))
}

// Process returns the one store of this process. It lives as long as the process,
// so that counters survive reloads, whatever is loaded in between.
var Process = sync.OnceValue(func() *Store {
	s := NewStore(DefaultMaxKeys)
	s.overflow.tell = func(scope string) { warnFull(caddy.Log().Named("rate_limit.backends.memory"), scope, s.Len()) }
	metrics.Keys.Add(func() float64 { return float64(s.Len()) })
	metrics.MaxKeys.Add(func() float64 { return float64(s.MaxKeys()) })
	return s
})

// warnFull says that a table is too small. A scope is a limit's name, never a secret.
func warnFull(l *zap.Logger, scope string, buckets int) {
	l.Warn("max_keys buckets are in use: of the limit with most clients some are forgotten, and its new clients are held to what those may have used; "+
		"if that is no attack, write a larger max_keys", zap.String("limit", scope), zap.Int("buckets", buckets))
}

// Backend keeps buckets in the memory of this process. It needs no server, and
// every Caddy instance counts by itself. Counters survive a reload, and not a
// restart.
type Backend struct {
	// The most buckets to keep; 0 means 1000000. A bucket takes about 270 bytes
	// while its client is remembered, which is at most the time in which its
	// limit fills up again; one of the algorithm sliding_log takes up to 32 bytes
	// more for each request that counts. A table too small for its clients refuses more than
	// the limits say, never less, and those of the limit that fills it; a warning says so, at
	// most once in ten minutes. Takes effect on the running counters.
	MaxKeys int `json:"max_keys,omitempty"`

	store *Store
}

// CaddyModule describes the module to Caddy.
func (*Backend) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "rate_limit.backends.memory",
		New: func() caddy.Module { return new(Backend) },
	}
}

// Provision finds the store. It changes nothing in it, since the configuration may
// yet fail to load: see Start.
func (b *Backend) Provision(caddy.Context) error {
	if b.MaxKeys == 0 {
		b.MaxKeys = DefaultMaxKeys
	}
	b.store = Process()
	return checkMaxKeys(b.MaxKeys)
}

// running holds the backends of the configurations that have started and not
// ended: during a reload two.
var running struct {
	mu       sync.Mutex
	backends []*Backend
}

// Start makes the settings effective. While another configuration runs too the
// larger bound holds: the new one may yet fail, and what a smaller bound forgets
// does not come back.
func (b *Backend) Start() error {
	running.mu.Lock()
	defer running.mu.Unlock()
	running.backends = append(running.backends, b)
	b.boundLocked()
	return nil
}

// Cleanup ends what Start began. It is harmless without.
func (b *Backend) Cleanup() error {
	running.mu.Lock()
	defer running.mu.Unlock()
	running.backends = slices.DeleteFunc(running.backends, func(o *Backend) bool { return o == b })
	b.boundLocked()
	return nil
}

func (b *Backend) boundLocked() {
	most := 0
	for _, o := range running.backends {
		most = max(most, o.MaxKeys)
	}
	if most > 0 {
		Process().SetMaxKeys(most)
	}
}

// Take decides one request: see Store.Take. It waits for nothing but locks held
// briefly, so it heeds no deadline, and it never returns an error.
func (b *Backend) Take(_ context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	b.store.Take(Now(), buckets, decisions)
	return nil
}

// Reset makes buckets as if they were never seen.
func (b *Backend) Reset(_ context.Context, buckets []policy.Bucket) error {
	b.store.Reset(buckets)
	return nil
}

func checkMaxKeys(n int) error {
	if n < 1 {
		return fmt.Errorf("memory backend: max_keys %d would keep no counters and so switch every limit off; write a whole number from 1, or leave it out for %d", n, DefaultMaxKeys)
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Module       = (*Backend)(nil)
	_ caddy.Provisioner  = (*Backend)(nil)
	_ caddy.CleanerUpper = (*Backend)(nil)
)
