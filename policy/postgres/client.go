package postgres

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// startTimeout bounds how long the start of Caddy waits for the database.
const startTimeout = 3 * time.Second

// client is the connections to one database and what is known of it. It is
// shared by all configurations of the database, and holds nothing of any but
// the list of those that run.
type client struct {
	pool       *pgxpool.Pool
	connConfig *pgx.ConnConfig
	place      string
	keys       *keys

	known  atomic.Pointer[knowledge] // nil until something could be read
	health health

	ctx    context.Context // ends with the client
	cancel context.CancelFunc
	wg     sync.WaitGroup

	migrated atomic.Bool // the schema is up to date

	kicks chan struct{} // makes the listener look at once
	saves chan struct{} // makes the housekeeper save the policies

	last     lastSave // used by the housekeeper alone
	measured measured // used by the listener alone

	learning sync.Mutex // held while changes are read, so that what is known never goes back

	saving sync.Mutex // held while policies are saved in Caddy's storage

	mu      sync.Mutex
	tenants []*Provider       // the configurations that run; the last one is in charge
	started bool              // the goroutines run
	blamed  map[string]string // of which rows that cannot be used an error was logged, by id
	looked  chan struct{}     // closed when the listener has connected or failed once
	news    chan struct{}     // closed and made anew when an epoch was read
}

// newClient prepares a client; no connection is made before it is needed.
func newClient(config *pgxpool.Config) (*client, error) {
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	c := &client{
		pool: pool, connConfig: config.ConnConfig.Copy(), place: place(config),
		kicks: make(chan struct{}, 1), saves: make(chan struct{}, 1),
		looked: make(chan struct{}), news: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.health.up, c.health.since = true, time.Now()
	if c.keys, err = newKeys(c); err != nil {
		pool.Close()
		return nil, err
	}
	return c, nil
}

// Destruct ends the client and waits for everything that it started.
func (c *client) Destruct() error {
	c.keys.lookups.end()
	c.cancel()
	c.wg.Wait()
	c.keys.close()
	c.pool.Close()
	return nil
}

// enter makes p the configuration in charge, and starts the client with the
// first one.
func (c *client) enter(p *Provider) {
	c.mu.Lock()
	c.tenants = append(c.tenants, p)
	first := !c.started
	c.started = true
	c.mu.Unlock()
	c.keys.resize(p.MaxKeys)
	if !first {
		c.kick()
		return
	}
	c.wg.Go(c.listen)
	c.wg.Go(c.poll)
	c.wg.Go(c.keepHouse)
	select {
	case <-c.looked:
	case <-time.After(startTimeout):
	}
}

// leave ends what enter began. It is harmless without.
func (c *client) leave(p *Provider) {
	c.mu.Lock()
	c.tenants = slices.DeleteFunc(c.tenants, func(t *Provider) bool { return t == p })
	c.mu.Unlock()
	c.saving.Lock() // what is being saved is saved, and nothing after that
	defer c.saving.Unlock()
}

// inCharge is the configuration that runs; nil if none does.
func (c *client) inCharge() *Provider {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tenants) == 0 {
		return nil
	}
	return c.tenants[len(c.tenants)-1]
}

// logger is that of the configuration that runs.
func (c *client) logger() *zap.Logger {
	if p := c.inCharge(); p != nil {
		return p.logger
	}
	return zap.NewNop()
}

// cacheTTL is how often to compare the epoch.
func (c *client) cacheTTL() time.Duration {
	if p := c.inCharge(); p != nil {
		return time.Duration(p.CacheTTL)
	}
	return defaultCacheTTL
}

// kick makes the listener look at the database at once.
func (c *client) kick() {
	select {
	case c.kicks <- struct{}{}:
	default: // it is about to
	}
}

// Snapshot returns the policies as they are now.
func (c *client) Snapshot() *policy.Snapshot {
	if k := c.known.Load(); k != nil {
		return k.snapshot
	}
	return strictest
}

// strictest decides until something could be read.
var strictest = policy.Strictest()

// health is whether the database answers.
type health struct {
	mu    sync.Mutex
	up    bool
	since time.Time
	last  error

	answered time.Time // the database, last
}

// Health reports whether the database answers, as far as is known, since when,
// and the last failure.
func (c *client) Health() (up bool, since time.Time, lastErr error) {
	c.health.mu.Lock()
	defer c.health.mu.Unlock()
	return c.health.up, c.health.since, c.health.last
}

// note takes the outcome of a try, and logs when it is another than before. A
// failure of a try that began before the database answered another is old news.
func (c *client) note(began time.Time, err error) {
	c.health.mu.Lock()
	defer c.health.mu.Unlock()
	switch {
	case err == nil:
		c.health.answered = time.Now()
	case began.Before(c.health.answered):
		return
	default:
		c.health.last = err
	}
	if c.health.up == (err == nil) {
		return
	}
	c.health.up, c.health.since = err == nil, time.Now()
	if err == nil {
		c.logger().Info("postgres is back", zap.String("database", c.address()))
		return
	}
	c.logger().Error("postgres is unavailable; policies and known API keys stay as they were, others count as anonymous",
		zap.String("database", c.address()), zap.Error(err))
}

// up reports whether a query has a chance.
func (c *client) up() bool {
	up, _, _ := c.Health()
	return up
}

// address is how logs call the database: it never holds a secret.
func (c *client) address() string { return c.connConfig.Host + "/" + c.connConfig.Database }

var _ caddy.Destructor = (*client)(nil)
