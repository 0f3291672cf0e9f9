package embedded

import (
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/internal/storetest"
)

// instance opens a storage as one Caddy process does: nothing is shared with the
// others but what is stored.
func instance(t *testing.T, storage certmagic.Storage) *Provider {
	t.Helper()
	p := opened(t, storage)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// opened is an instance that does nothing by itself.
func opened(t *testing.T, storage certmagic.Storage) *Provider {
	t.Helper()
	p := &Provider{PollInterval: caddy.Duration(minPollInterval)}
	p.setDefaults()
	p.store = &store{storage: storage, shared: newShared(), retention: time.Duration(p.AuditRetention), logger: zap.NewNop()}
	if err := p.refresh(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestTheEmbeddedStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Open {
		storage := &certmagic.FileStorage{Path: t.TempDir()}
		return func(t *testing.T) storetest.Store { return instance(t, storage) }
	})
}
