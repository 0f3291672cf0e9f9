package embedded

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
	"github.com/caddy-tollgate/ratelimit/policy"
)

func init() { caddy.RegisterModule(new(Provider)) }

// Defaults and bounds of the settings.
const (
	defaultPollInterval = 500 * time.Millisecond
	minPollInterval     = 50 * time.Millisecond
	maxPollInterval     = time.Hour
	minAuditRetention   = 24 * time.Hour

	usageInterval    = 5 * time.Second // between exchanges of when keys were last used
	thoroughInterval = time.Minute     // between reads that do not trust the notice
	proofInterval    = time.Minute     // between proofs that the store can be changed
	retryInterval    = 5 * time.Second // the same, while it cannot
)

// stores holds one shared state per storage, so that what was read survives a
// reload.
var stores = caddy.NewUsagePool()

// Provider keeps tiers, policies and API keys in Caddy's storage.
type Provider struct {
	// How often to look for changes that other instances made: 50ms to 1h. Zero
	// means 500ms.
	PollInterval caddy.Duration `json:"poll_interval,omitempty"`

	// How long the audit is kept: 24h or more. Zero means 9600h (400 days).
	AuditRetention caddy.Duration `json:"audit_retention,omitempty"`

	*store  // nil before Provision
	poolKey string

	cancel  context.CancelFunc // ends what Start began; nil before
	unwatch func()             // ends its metrics
	wg      sync.WaitGroup
}

// CaddyModule returns the Caddy module information.
func (*Provider) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "rate_limit.providers.embedded",
		New: func() caddy.Module { return new(Provider) },
	}
}

// Provision reads the store and writes nothing. A storage that cannot be read is
// no reason not to start.
func (p *Provider) Provision(ctx caddy.Context) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("provider embedded: %w", err)
	}
	p.setDefaults()
	p.open(ctx.Storage(), ctx.Logger())
	ready, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := p.refresh(ready, true); err != nil && p.shared.view.Load() == nil {
		p.logger.Error("no policies could be read yet: every client has the strictest built-in limit, and every API key counts as unknown",
			zap.Error(err))
	}
	return nil
}

func (p *Provider) open(storage certmagic.Storage, logger *zap.Logger) {
	p.poolKey = storageName(storage)
	s, _ := stores.LoadOrStore(p.poolKey, newShared())
	p.store = &store{storage: storage, shared: s.(*shared), retention: time.Duration(p.AuditRetention), logger: logger}
}

// storageName names what a storage refers to: equal for the same storage of two
// configurations, different for different ones.
func storageName(storage certmagic.Storage) string {
	if s, ok := storage.(fmt.Stringer); ok {
		return fmt.Sprintf("%T %s", storage, s)
	}
	if b, err := json.Marshal(storage); err == nil && len(b) > len("{}") {
		return fmt.Sprintf("%T %x", storage, sha256.Sum256(b)) // may hold a password
	}
	return fmt.Sprintf("%T %p", storage, storage)
}

// Start stores the first tiers if the store is new, and begins to look for
// changes by other instances.
func (p *Provider) Start() error {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.unwatch = metrics.PolicyAge.Add(p.shared.age)
	p.wg.Go(func() { p.run(ctx) })
	p.wg.Go(func() { p.keepWritable(ctx) })
	return nil
}

// Cleanup ends what Start began and gives back what Provision took. It may be
// called without a Provision, after one that failed, and twice.
func (p *Provider) Cleanup() error {
	if p.cancel != nil {
		p.cancel()
		p.wg.Wait()
		p.unwatch()
		p.cancel = nil
		p.exchangeUsage()
	}
	if p.poolKey == "" {
		return nil
	}
	key := p.poolKey
	p.poolKey = ""
	_, err := stores.Delete(key)
	return err
}

// run keeps the view current until ctx ends.
func (p *Provider) run(ctx context.Context) {
	usage, thorough := time.Now(), time.Now()
	for {
		whole := time.Since(thorough) > thoroughInterval
		if p.look(ctx, whole) && whole {
			thorough = time.Now()
		}
		if time.Since(usage) > usageInterval {
			p.exchangeUsage()
			usage = time.Now()
		}
		// instances that started together do not stay in step
		wait := time.Duration(p.PollInterval)
		select {
		case <-time.After(wait - rand.N(wait/5+1)):
		case <-ctx.Done():
			return
		}
	}
}

func (p *Provider) look(ctx context.Context, thorough bool) bool {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return p.refresh(ctx, thorough) == nil
}

// keepWritable stores the first tiers if the store is new, and then proves now
// and then that the store can be changed: a change of nothing takes a turn. It
// is apart from run, since it may wait for long.
func (p *Provider) keepWritable(ctx context.Context) {
	var tried time.Time
	for {
		unseeded := !p.shared.isStored() && time.Since(tried) > retryInterval
		if unseeded || p.shared.writes.due() {
			p.seed(ctx)
			tried = time.Now()
		}
		select {
		case <-time.After(time.Duration(p.PollInterval)):
		case <-ctx.Done():
			return
		}
	}
}

func (p *Provider) exchangeUsage() {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	if err := p.saveUsage(ctx); err != nil {
		p.logger.Debug("when keys were last used could not be exchanged", zap.Error(err))
	}
}

func (s *shared) isStored() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.view.Load()
	return v != nil && v.stored
}

// CheckAPIKey reports whether a text can be an API key at all; one that is not
// whole is unknown without a look-up.
func (*Provider) CheckAPIKey(presented string) bool { return policy.CheckKey(presented) }

// Health reports whether the storage can be read and written, since when, and
// the last failure.
func (p *Provider) Health() (up bool, since time.Time, lastErr error) {
	if up, since, lastErr = p.shared.reads.state(); !up {
		return up, since, lastErr
	}
	if up, since, err := p.shared.writes.state(); !up {
		return up, since, err
	}
	return up, since, lastErr
}

func (p *Provider) setDefaults() {
	if p.PollInterval == 0 {
		p.PollInterval = caddy.Duration(defaultPollInterval)
	}
	if p.AuditRetention == 0 {
		p.AuditRetention = caddy.Duration(policy.DefaultAuditRetention)
	}
}

func (p *Provider) check() error {
	poll, retention := time.Duration(p.PollInterval), time.Duration(p.AuditRetention)
	if poll != 0 && (poll < minPollInterval || poll > maxPollInterval) {
		return fmt.Errorf("poll_interval %s is out of range; write a duration from %s to %s, like %s", poll, minPollInterval, maxPollInterval, defaultPollInterval)
	}
	if retention != 0 && retention < minAuditRetention {
		return fmt.Errorf("audit_retention %s is too short; write a duration of 1d or more, like 400d", retention)
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner     = (*Provider)(nil)
	_ caddy.CleanerUpper    = (*Provider)(nil)
	_ caddyfile.Unmarshaler = (*Provider)(nil)
	_ caddy.Destructor      = (*shared)(nil)
)
