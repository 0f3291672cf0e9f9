package redisbackend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// guard stands between the library and the network. It knows the connections, so
// that those to a server that does not answer can be dropped, and keeps what is
// not Redis from crashing this process.
type guard struct {
	single string // what all connections lead to, unless it is a Cluster

	mu    sync.Mutex
	conns map[net.Conn]string // the address that each leads to
}

func newGuard() *guard { return &guard{conns: make(map[net.Conn]string)} }

// watch makes a client of the library, and in a Cluster that of every node, use
// the guard.
func (g *guard) watch(rdb redis.UniversalClient, address string) {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(g) })
		return
	}
	g.single = address
	rdb.AddHook(g)
}

// dialer is what all connections are made with, those to sentinels included.
func (g *guard) dialer(dial redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			// After some failures the library would try only once a second. It does
			// not take a connection that fails at once for one.
			return &stillborn{err: err}, nil
		}
		guarded := &guardedConn{Conn: conn, guard: g, lengths: lengths{resp3: true}}
		if raw, ok := conn.(syscall.Conn); ok {
			return &guardedSocket{guarded, raw}, nil
		}
		return guarded, nil
	}
}

// drop closes the connections to an address. Those whose other end has vanished
// would otherwise each cost a call its timeout.
func (g *guard) drop(address string) {
	g.mu.Lock()
	var dropped []net.Conn
	for conn, to := range g.conns {
		if to == address {
			dropped = append(dropped, conn)
		}
	}
	g.mu.Unlock()
	for _, conn := range dropped {
		_ = conn.Close() // the library finds it closed and makes another
	}
}

// count is how many connections there are.
func (g *guard) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

// DialHook notes each connection until it is closed.
func (g *guard) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if g.single != "" {
			addr = g.single
		}
		if guarded, ok := conn.(interface{ lead(to string) }); ok {
			guarded.lead(addr)
		}
		return conn, nil
	}
}

// ProcessHook turns a panic of the library into an error: it believes lengths that
// the other end sends.
func (g *guard) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = notRedis(p)
				cmd.SetErr(err)
			}
		}()
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook does the same for calls that travel together.
func (g *guard) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = notRedis(p)
				for _, cmd := range cmds {
					if cmd.Err() == nil {
						cmd.SetErr(err)
					}
				}
			}
		}()
		return next(ctx, cmds)
	}
}

// notRedis is the error of a reply that is none.
func notRedis(what any) error { return fmt.Errorf("the reply is not Redis's: %v", what) }

// guardedConn tells the guard when it is closed, and believes no impossible length.
type guardedConn struct {
	net.Conn
	guard   *guard
	lengths lengths // of what was read
	heard   bool    // something was read
}

// refusal is what a server says first, and last, to a connection for which it has no
// room. The library would take it for one that does not know the command HELLO, and
// send the call all the same; this way it is certain that the call was not sent.
var refusal = []byte("-ERR max number of clients")

// lead has the guard know the connection, and where it leads to: to a server, which
// is spoken with in the second version of the protocol.
func (c *guardedConn) lead(to string) {
	c.lengths.resp3 = false
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	c.guard.conns[c] = to
}

// Read reads, and ends the connection at what Redis never sends.
func (c *guardedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.heard && n > 0 {
		c.heard = true
		if bytes.HasPrefix(b[:n], refusal) {
			_ = c.Close()
			return 0, errNoRoom
		}
	}
	if wrong := c.lengths.check(b[:n]); wrong != nil {
		_ = c.Close()
		return 0, wrong
	}
	return n, err
}

// Close closes the connection. That the guard has closed it already is no error:
// the library, which holds it still, closes it once more.
func (c *guardedConn) Close() error {
	c.guard.mu.Lock()
	delete(c.guard.conns, c)
	c.guard.mu.Unlock()
	if err := c.Conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// guardedSocket is one without TLS, of which the library can look whether the
// other end has closed it.
type guardedSocket struct {
	*guardedConn
	syscall.Conn
}

// stillborn is what a connection that could not be made is for the library.
type stillborn struct{ err error }

// Read fails with the error of the attempt.
func (s *stillborn) Read([]byte) (int, error) { return 0, s.err }

// Write fails with it, too.
func (s *stillborn) Write([]byte) (int, error) { return 0, s.err }

// Close has nothing to close.
func (*stillborn) Close() error { return nil }

// LocalAddr is nowhere.
func (*stillborn) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr is nowhere.
func (*stillborn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SetDeadline waits for nothing.
func (*stillborn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline waits for nothing.
func (*stillborn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline waits for nothing.
func (*stillborn) SetWriteDeadline(time.Time) error { return nil }

// Interface guards
var (
	_ net.Conn     = (*stillborn)(nil)
	_ redis.Hook   = (*guard)(nil)
	_ net.Conn     = (*guardedConn)(nil)
	_ net.Conn     = (*guardedSocket)(nil)
	_ syscall.Conn = (*guardedSocket)(nil)
)
