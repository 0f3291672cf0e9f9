package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
	"github.com/caddy-tollgate/ratelimit/policy"
)

func init() { caddy.RegisterModule(new(Provider)) }

// clients holds one client per database and size of the pool, so that
// connections, policies and known keys survive a reload.
var clients = caddy.NewUsagePool()

// Provider keeps tiers, policies and API keys in PostgreSQL (13 or later).
type Provider struct {
	// Where the database is: a URL like postgres://user@host:5432/database, or
	// words like host=localhost dbname=tollgate. Placeholders like
	// {env.DATABASE_URL} are replaced when the configuration is loaded. Required.
	DSN string `json:"dsn,omitempty"`

	// How stale a policy or a known API key may be if notices of changes are
	// lost: 100ms to 1h. Zero means 5s.
	CacheTTL caddy.Duration `json:"cache_ttl,omitempty"`

	// The most API keys to remember, of the known and of the unknown ones each: 1
	// to 10000000. Zero means 100000.
	MaxKeys int `json:"max_keys,omitempty"`

	// The longest that the first request of an API key waits to have it looked
	// up, before it counts as anonymous: 1ms to 10s. Zero means 50ms.
	LookupTimeout caddy.Duration `json:"lookup_timeout,omitempty"`

	// The most connections, 1 to 1000, beside the one that listens for changes.
	// Zero means 8.
	MaxConnections int `json:"max_connections,omitempty"`

	// How long the audit is kept: 24h or more. Zero means 9600h (400 days).
	AuditRetention caddy.Duration `json:"audit_retention,omitempty"`

	// Leaves the schema alone at the start; `caddy rate-limit migrate` brings it
	// up to date. Default: the schema is migrated at the start.
	SkipMigrations bool `json:"skip_migrations,omitempty"`

	*client        // nil before Provision
	unwatch func() // ends the metrics of this configuration; nil before Start
	poolKey string
	storage certmagic.Storage
	logger  *zap.Logger

	started bool
	linger  time.Duration // how long the client outlives a configuration that ran
}

// lingering is how long requests of a configuration that has been replaced may
// still look keys up. Caddy does not wait for them: it cleans up while they are
// under way.
const lingering = 10 * time.Second

// CaddyModule returns the Caddy module information.
func (*Provider) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "rate_limit.providers.postgres",
		New: func() caddy.Module { return new(Provider) },
	}
}

// Provision checks the settings and reads the policies, unless an earlier
// configuration has. It writes nothing. A database that is down is no reason not
// to start.
func (p *Provider) Provision(ctx caddy.Context) error {
	return p.provision(ctx, ctx.Storage(), ctx.Logger())
}

func (p *Provider) provision(ctx context.Context, storage certmagic.Storage, logger *zap.Logger) error {
	p.storage, p.logger = storage, logger
	if err := p.check(); err != nil {
		return fmt.Errorf("provider postgres: %w", err)
	}
	p.setDefaults()
	config, err := p.resolve()
	if err != nil {
		return fmt.Errorf("provider postgres: %w", err)
	}
	key := poolKey(config)
	c, _, err := clients.LoadOrNew(key, func() (caddy.Destructor, error) { return newClient(config) })
	if err != nil {
		return fmt.Errorf("provider postgres: %w", err)
	}
	p.poolKey, p.client = key, c.(*client)
	p.linger = lingering
	p.prepare(ctx, p)
	return nil
}

// Start migrates the schema unless told not to, and begins to listen for
// changes. If the database does not answer soon, that goes on in the background.
func (p *Provider) Start() error {
	p.started = true
	p.enter(p)
	p.unwatch = metrics.PolicyAge.Add(p.age)
	return nil
}

// Cleanup gives back what Provision took; once the configuration has run, and
// Caddy goes on, after a while. It may be called without a Provision, after one
// that failed, and twice.
func (p *Provider) Cleanup() error {
	if p.poolKey == "" {
		return nil
	}
	key := p.poolKey
	p.poolKey = ""
	p.leave(p)
	if p.unwatch != nil {
		p.unwatch()
	}
	if p.started && p.linger > 0 && !caddy.Exiting() {
		time.AfterFunc(p.linger, func() { _, _ = clients.Delete(key) })
		return nil
	}
	_, err := clients.Delete(key)
	return err
}

// APIKey looks an API key up by its SHA-256: in memory, and the first time in
// the database. It reports false for a key that is unknown, expired or revoked,
// and if the database does not answer within the lookup timeout.
func (p *Provider) APIKey(ctx context.Context, sum [32]byte) (policy.APIKey, bool) {
	return p.keys.find(ctx, sum, time.Duration(p.LookupTimeout))
}

// CheckAPIKey reports whether a text can be an API key at all; one that is not
// whole is unknown without a look-up.
func (*Provider) CheckAPIKey(presented string) bool { return policy.CheckKey(presented) }

// Interface guards
var (
	_ caddy.Provisioner     = (*Provider)(nil)
	_ caddy.CleanerUpper    = (*Provider)(nil)
	_ caddyfile.Unmarshaler = (*Provider)(nil)
)
