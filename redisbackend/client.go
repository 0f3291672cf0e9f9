package redisbackend

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/zap"
)

const (
	// maxWaiting bounds the calls that wait for a connection. More could not be
	// served in time anyway.
	maxWaiting = 4096

	// topologyInterval is how stale the map of a Cluster may be if nothing
	// tells of a change.
	topologyInterval = 10 * time.Second
)

// client is the connections to one Redis and what is known of its state. It is
// shared by all configurations with equal settings, and holds nothing of any. What was
// told of the server is shared with clients of other settings for it.
type client struct {
	rdb     redis.UniversalClient
	cluster *redis.ClusterClient // the same, if it is a Cluster
	address string

	socketTimeout time.Duration
	created       time.Time
	queue         *queue
	senders       int32        // how many goroutines send calls
	working       atomic.Int32 // how many of them do not stand aside
	pending       atomic.Int32 // calls that wait, be it for a connection or for an answer
	crowded       atomic.Int64 // nanoseconds since created at which it was last said that Redis takes no more connections
	lastReply     atomic.Int64 // nanoseconds since created at which Redis last answered
	doubtful      atomic.Bool  // Redis has not answered since a call was sent directly in vain

	breakers breakers
	tenancy  *tenancy
	guard    *guard
	looking  sync.Mutex   // held while a look at the server is on
	rounds   atomic.Int64 // how often idle and unknown servers were looked after
	idling   sync.Once    // has begun to look after idle servers

	ctx    context.Context // ends with the client
	cancel context.CancelFunc

	mu    sync.Mutex
	ended bool           // nothing is started any more
	wg    sync.WaitGroup // what was started
}

// newClient prepares a client; no connection is made before it is needed.
func newClient(s *settings) (*client, error) {
	c := &client{
		address: s.address(), socketTimeout: s.SocketTimeout,
		created: time.Now(), queue: newQueue(), guard: newGuard(),
	}
	rdb, err := connect(s, c.guard)
	if err != nil {
		return nil, err
	}
	c.rdb = rdb
	c.guard.watch(rdb, c.address)
	c.cluster, _ = rdb.(*redis.ClusterClient)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.breakers.init(c)
	c.tenancy = joinTenancy(s.place())
	c.inherit()
	// One connection is left for probes, so that they do not wait behind calls
	// that a dead server keeps.
	c.senders = int32(max(1, s.Connections-1))
	c.working.Store(c.senders)
	for range c.senders {
		c.spawn(c.sender)
	}
	return c, nil
}

// Destruct ends the client and waits for everything that it started.
func (c *client) Destruct() error {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.cancel()
	err := c.rdb.Close() // wakes senders that wait for an answer
	c.wg.Wait()
	c.tenancy.quit()
	return err
}

// spawn runs f in the background, unless the client has ended.
func (c *client) spawn(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.wg.Go(f)
	}
}

// connect builds the library's client for the settings.
func connect(s *settings, g *guard) (redis.UniversalClient, error) {
	quietLibrary()
	tlsConfig, err := s.TLS.config()
	if err != nil {
		return nil, err
	}
	// Attempts that outlast the probes for which they are made would be in the way of
	// the one that succeeds.
	dialTimeout := min(s.SocketTimeout, longestProbe)
	u := &redis.UniversalOptions{
		Addrs: s.Addrs, MasterName: s.Sentinel, DB: s.DB, TLSConfig: tlsConfig,
		Username: s.Username, Password: s.Password, SentinelUsername: s.SentinelUser, SentinelPassword: s.SentinelPass,
		Dialer:   g.dialer(redis.NewDialer(&redis.Options{DialTimeout: dialTimeout, TLSConfig: tlsConfig})),
		Protocol: 2, DisableIdentity: true, // nothing of RESP3 is used; fewer commands per connection
		MaxRetries: -1, DialerRetries: 1, // a call that may have run is never sent again
		ReadTimeout: s.SocketTimeout, WriteTimeout: s.SocketTimeout, DialTimeout: dialTimeout,
		ContextTimeoutEnabled: true,
		PoolSize:              s.Connections, MaxActiveConns: s.Connections, PipelinePoolSize: -1, PoolTimeout: s.SocketTimeout, // senders never wait there
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	switch {
	case s.Sentinel != "":
		return redis.NewFailoverClient(u.Failover()), nil
	case len(s.Addrs) > 1:
		o := u.Cluster()
		o.DisableRoutingPolicies = true // one kind of command, with its keys at a known place
		o.ClusterStateReloadInterval = topologyInterval
		return redis.NewClusterClient(o), nil
	default:
		o := u.Simple()
		o.Network = s.Network
		return redis.NewClient(o), nil
	}
}

// quietLibrary sends what the library would print to standard error, a line
// for every failed connection, to Caddy's log at the level debug.
var quietLibrary = sync.OnceFunc(func() { redis.SetLogger(libraryLog{}) })

type libraryLog struct{}

func (libraryLog) Printf(_ context.Context, format string, v ...any) {
	caddy.Log().Named("redis").WithOptions(zap.AddCallerSkip(1)).Sugar().Debugf(format, v...)
}

// answered remembers that Redis works.
func (c *client) answered() {
	c.lastReply.Store(int64(time.Since(c.created)))
	if c.doubtful.Load() {
		c.doubtful.Store(false)
	}
	if c.cluster != nil {
		c.breakers.known.Store(true)
	}
}

// run is the one place where calls are sent. If the server does not know the script,
// it sends the script's text: what answers NOSCRIPT has not run.
func (c *client) run(ctx context.Context, s *script, command []any) (string, error) {
	cmd := onceCmd{redis.NewStringCmd(ctx, command...)}
	err := c.rdb.Process(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = onceCmd{redis.NewStringCmd(ctx, s.withText(command)...)}
		if err = c.rdb.Process(ctx, cmd); redis.HasErrorPrefix(err, "NOSCRIPT") {
			err = notRedis(err)
		}
	}
	return cmd.Val(), notNil(err)
}

// notNil tells an error that means nothing at all, which the library takes for an
// answer. Nothing that we ask for is answered so.
func notNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return notRedis("it is empty")
	}
	return err
}

// onceCmd is a command that the library does not repeat after a failure in
// which it may have run.
type onceCmd struct{ *redis.StringCmd }

// NoRetry tells the library.
func (onceCmd) NoRetry() bool { return true }

// silentFor is how long Redis has not answered anything.
func (c *client) silentFor() time.Duration {
	return time.Since(c.created) - time.Duration(c.lastReply.Load())
}

var (
	_ caddy.Destructor = (*client)(nil)
	_ redis.Cmder      = onceCmd{}
)
