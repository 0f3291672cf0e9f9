package redisbackend

import (
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"
)

func init() { caddy.RegisterModule(new(Backend)) }

// clients holds one client per kind of settings, so that connections and what
// is known of the server survive a reload.
var clients = caddy.NewUsagePool()

// Backend keeps buckets in Redis (6.2 or later), Valkey, a Redis Cluster, or
// behind Redis Sentinel. Placeholders like {env.REDIS_PASSWORD} and
// {file./run/secrets/redis} in texts are replaced when the configuration is loaded.
type Backend struct {
	// Where Redis is: redis://[<username>:<password>@]<host>[:<port>][/<db>],
	// rediss:// for TLS, unix:///<path> for a socket. Several are nodes of one
	// Cluster, of which any may be down. With sentinel, they are the sentinels,
	// and credentials in them are the sentinels'.
	// Default: redis://localhost:6379.
	URLs []string `json:"urls,omitempty"`

	// The name of the master that the sentinels watch. Empty means that the
	// URLs are servers.
	Sentinel string `json:"sentinel,omitempty"`

	// The longest that a request waits for its decision, everything included:
	// 1ms to 10s. Zero means 50ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How the keys begin. Instances that share it share their counters. Empty
	// means "ratelimit".
	KeyPrefix string `json:"key_prefix,omitempty"`

	// Credentials, if the URLs have none. An empty username is Redis's default
	// user; an empty password means that none is asked for.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`

	// The number of the database, 0 by default. A Cluster has only 0.
	DB int `json:"db,omitempty"`

	// Encrypts the connections. Unset means TLS for rediss:// URLs, with the
	// system's certificate authorities.
	TLS *TLS `json:"tls,omitempty"`

	// The most connections to one server, 1 to 10000. Zero means 8: calls
	// that queue up travel together, so more seldom help.
	MaxConnections int `json:"max_connections,omitempty"`

	resolved bool   // placeholders are replaced
	poolKey  string // in clients; empty if not acquired
	client   *client
	prefix   string // of every key, up to the identity
	timeout  time.Duration
	clock    func() int64 // only in tests: the time that scripts use, in microseconds
	observer func(StateChange)
	judged   *judgements // of the servers
	unwatch  func()      // ends the metrics of this configuration; nil before Start
	logger   *zap.Logger

	started bool
	linger  time.Duration // how long the client outlives a configuration that ran
}

// lingering is how long requests of a configuration that has been replaced may
// still ask. Caddy does not wait for them: it cleans up while they are under way.
const lingering = 10 * time.Second

// CaddyModule returns the Caddy module information.
func (*Backend) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "rate_limit.backends.redis",
		New: func() caddy.Module { return new(Backend) },
	}
}

// Provision checks the settings and gets a client for them, without any I/O: a
// Redis that is down is no reason not to start.
func (b *Backend) Provision(ctx caddy.Context) error {
	b.logger = ctx.Logger()
	r, err := b.resolve()
	if err != nil {
		return fmt.Errorf("backend redis: %w", err)
	}
	r.setDefaults()
	s, err := r.settings()
	if err != nil {
		return fmt.Errorf("backend redis: %w", err)
	}
	b.timeout = time.Duration(r.Timeout)
	b.prefix = r.KeyPrefix + ":{"
	b.linger = lingering
	b.judged = newJudgements()
	return b.acquire(s)
}

func (b *Backend) setDefaults() {
	if b.Timeout == 0 {
		b.Timeout = caddy.Duration(defaultTimeout)
	}
	if b.KeyPrefix == "" {
		b.KeyPrefix = defaultKeyPrefix
	}
	if b.MaxConnections == 0 {
		b.MaxConnections = defaultMaxConnections
	}
}

func (b *Backend) acquire(s *settings) error {
	key, err := s.poolKey()
	if err != nil {
		return fmt.Errorf("backend redis: %w", err)
	}
	c, _, err := clients.LoadOrNew(key, func() (caddy.Destructor, error) { return newClient(s) })
	if err != nil {
		return fmt.Errorf("backend redis: %w", err)
	}
	b.poolKey, b.client = key, c.(*client)
	return nil
}

// Cleanup gives the client back; once the configuration has run, and Caddy goes
// on, after a while. It may be called without a Provision, after one that failed,
// and twice.
func (b *Backend) Cleanup() error {
	if b.poolKey == "" {
		return nil
	}
	key := b.poolKey
	b.poolKey = ""
	b.client.leave(b)
	b.endMetrics()
	if b.started && b.linger > 0 && !caddy.Exiting() {
		time.AfterFunc(b.linger, func() { _, _ = clients.Delete(key) })
		return nil
	}
	_, err := clients.Delete(key)
	return err
}

// Start is called once the configuration really runs. It makes this
// configuration's logger and observer the ones that hear of outages, and looks
// at the server in the background; what is wrong there is logged, and never
// keeps Caddy from starting.
func (b *Backend) Start() error {
	b.started = true
	b.client.enter(b)
	b.beginMetrics()
	return nil
}

// SetObserver sets what is told when Redis becomes unavailable and when it is
// back, in that order and never at the same time. It is called before Start,
// and replaces the observer of the configuration that ran before. The observer
// returns at once: while it runs, no configuration starts or ends, and nothing
// looks whether Redis is back.
func (b *Backend) SetObserver(observer func(StateChange)) { b.observer = observer }

// Health reports whether Redis is available as far as is known, since when,
// and the last failure. In a Cluster, every master must be available.
func (b *Backend) Health() (up bool, since time.Time, lastErr error) { return b.client.health() }

// Interface guards
var (
	_ caddy.Provisioner     = (*Backend)(nil)
	_ caddy.CleanerUpper    = (*Backend)(nil)
	_ caddyfile.Unmarshaler = (*Backend)(nil)
)
