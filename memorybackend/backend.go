package memorybackend

import (
	"context"
	"fmt"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func init() {
	caddy.RegisterModule(new(Backend))
}

// stores holds the one store of this process, so that counters survive reloads
// of the configuration.
var stores = caddy.NewUsagePool()

// storeKey is the store's key in the pool. No setting is in it: a new max_keys
// is no reason to forget what was counted.
const storeKey = "memory"

// Backend keeps buckets in the memory of this process. It needs no server, and
// every Caddy instance counts by itself. Counters survive a reload, and not a
// restart.
type Backend struct {
	// The most buckets to keep; 0 means 1000000. A bucket takes about 270 bytes
	// while its client is remembered, which is at most the time in which its
	// limit fills up again; one of the algorithm sliding_log takes up to 32 bytes
	// more for each request that counts. A table too small for its clients refuses more than
	// the limits say, never less. Takes effect on the running counters.
	MaxKeys int `json:"max_keys,omitempty"`

	// store stays set after Cleanup: a request that outlives its configuration
	// may still ask.
	store    *Store
	acquired bool
}

// CaddyModule describes the module to Caddy.
func (*Backend) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "rate_limit.backends.memory",
		New: func() caddy.Module { return new(Backend) },
	}
}

// Provision acquires the store. It changes nothing in it, since the
// configuration may yet fail to load: see Start.
func (b *Backend) Provision(caddy.Context) error {
	if b.MaxKeys == 0 {
		b.MaxKeys = DefaultMaxKeys
	}
	if err := checkMaxKeys(b.MaxKeys); err != nil {
		return err
	}
	value, _, err := stores.LoadOrNew(storeKey, func() (caddy.Destructor, error) {
		return pooled{NewStore(b.MaxKeys)}, nil
	})
	if err != nil {
		return err
	}
	b.store, b.acquired = value.(pooled).Store, true
	return nil
}

// Start makes the settings effective, once the configuration runs.
func (b *Backend) Start() error {
	b.store.SetMaxKeys(b.MaxKeys)
	return nil
}

// Cleanup releases the store. Caddy also calls it after a Provision that
// failed, and then there is nothing to release.
func (b *Backend) Cleanup() error {
	if !b.acquired {
		return nil
	}
	b.acquired = false
	_, err := stores.Delete(storeKey)
	return err
}

// Take decides one request: see Store.Take. It waits for nothing but locks held
// briefly, so it heeds no deadline, and it never returns an error.
func (b *Backend) Take(_ context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	b.store.Take(Now(), buckets, decisions)
	return nil
}

func checkMaxKeys(n int) error {
	if n < 1 {
		return fmt.Errorf("memory backend: max_keys %d would keep no counters and so switch every limit off; write a whole number from 1, or leave it out for %d", n, DefaultMaxKeys)
	}
	return nil
}

// pooled is a store in the pool.
type pooled struct{ *Store }

// Destruct has nothing to stop: a store is memory and nothing else.
func (pooled) Destruct() error { return nil }

// Interface guards.
var (
	_ caddy.Module       = (*Backend)(nil)
	_ caddy.Provisioner  = (*Backend)(nil)
	_ caddy.CleanerUpper = (*Backend)(nil)
	_ caddy.Destructor   = pooled{}
)
