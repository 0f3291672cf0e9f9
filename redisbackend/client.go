package redisbackend

import (
	"context"
	"slices"
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
// shared by all configurations with equal settings, and holds nothing of any.
type client struct {
	rdb     redis.UniversalClient
	cluster *redis.ClusterClient // the same, if it is a Cluster
	address string

	socketTimeout time.Duration
	created       time.Time
	queue         chan *call
	lastReply     atomic.Int64 // nanoseconds since created at which Redis last answered
	tooOld        atomic.Bool  // the server was, when last asked

	breakers breakers
	tenancy  tenancy
	looking  sync.Mutex // held while a look at the server is on

	ctx    context.Context // ends with the client
	cancel context.CancelFunc

	mu    sync.Mutex
	ended bool           // nothing is started any more
	wg    sync.WaitGroup // what was started
}

// newClient prepares a client; no connection is made before it is needed.
func newClient(s *settings) (*client, error) {
	rdb, err := connect(s)
	if err != nil {
		return nil, err
	}
	c := &client{
		rdb: rdb, address: s.address(), socketTimeout: s.SocketTimeout,
		created: time.Now(), queue: make(chan *call, maxWaiting),
	}
	c.cluster, _ = rdb.(*redis.ClusterClient)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.breakers.init(c)
	// One connection is left for probes, so that they do not wait behind calls
	// that a dead server keeps.
	for range max(1, s.Connections-1) {
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
func connect(s *settings) (redis.UniversalClient, error) {
	quietLibrary()
	tlsConfig, err := s.TLS.config()
	if err != nil {
		return nil, err
	}
	u := &redis.UniversalOptions{
		Addrs: s.Addrs, MasterName: s.Sentinel, DB: s.DB, TLSConfig: tlsConfig,
		Username: s.Username, Password: s.Password, SentinelUsername: s.SentinelUser, SentinelPassword: s.SentinelPass,
		Protocol: 2, DisableIdentity: true, // nothing of RESP3 is used; fewer commands per connection
		MaxRetries: -1, DialerRetries: 1, // a call that may have run is never sent again
		ReadTimeout: s.SocketTimeout, WriteTimeout: s.SocketTimeout, DialTimeout: s.SocketTimeout,
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

// maxBatch is the most calls that travel together.
const maxBatch = 64

// sender sends calls until the client ends: one that comes alone at once, and
// those that have queued up meanwhile together, which costs Redis and this process
// a fraction.
func (c *client) sender() {
	batch := make([]*call, 0, maxBatch)
	for {
		select {
		case call := <-c.queue:
			batch = c.gather(append(batch[:0], call))
			c.send(batch)
			for _, call := range batch {
				if !call.end() {
					call.release() // its caller has gone; the answer came too late
				}
			}
		case <-c.ctx.Done():
			return
		}
	}
}

// gather adds the calls that are queued already, and drops those whose callers have
// gone: they are not sent. In a Cluster each call travels alone, to its own master.
func (c *client) gather(batch []*call) []*call {
	for c.cluster == nil && len(batch) < cap(batch) && len(c.queue) > 0 {
		select {
		case call := <-c.queue:
			batch = append(batch, call)
		default: // another sender was faster
			return begin(batch)
		}
	}
	return begin(batch)
}

func begin(batch []*call) []*call {
	return slices.DeleteFunc(batch, func(call *call) bool {
		if call.begin() {
			return false
		}
		call.release()
		return true
	})
}

// send is the one place where calls leave for Redis.
func (c *client) send(batch []*call) {
	if len(batch) == 1 {
		batch[0].reply, batch[0].err = c.run(c.ctx, batch[0])
	} else if len(batch) > 1 {
		c.runAll(batch)
	}
	for _, call := range batch {
		if call.err == nil {
			c.answered()
			break
		}
	}
}

// answered remembers that Redis works.
func (c *client) answered() {
	c.lastReply.Store(int64(time.Since(c.created)))
	if c.cluster != nil {
		c.breakers.known.Store(true)
	}
}

// run sends a call and, if the server does not know its script, sends it once
// more with the script's text: a call that answers NOSCRIPT has not run.
func (c *client) run(ctx context.Context, call *call) (string, error) {
	cmd := onceCmd{redis.NewStringCmd(ctx, call.args...)}
	err := c.rdb.Process(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return c.runText(ctx, call)
	}
	return cmd.Val(), err
}

func (c *client) runText(ctx context.Context, call *call) (string, error) {
	cmd := onceCmd{redis.NewStringCmd(ctx, call.withText()...)}
	err := c.rdb.Process(ctx, cmd)
	return cmd.Val(), err
}

// runAll is run for calls that travel together. They are independent: each has its
// own answer or error.
func (c *client) runAll(batch []*call) {
	pipe := c.rdb.Pipeline()
	cmds := make([]*redis.StringCmd, len(batch))
	for i, call := range batch {
		cmds[i] = redis.NewStringCmd(c.ctx, call.args...)
		_ = pipe.Process(c.ctx, onceCmd{cmds[i]}) // only queues it
	}
	_, _ = pipe.Exec(c.ctx) // each command has its own error
	for i, call := range batch {
		call.reply, call.err = cmds[i].Result()
		if redis.HasErrorPrefix(call.err, "NOSCRIPT") {
			call.reply, call.err = c.runText(c.ctx, call)
		}
	}
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
