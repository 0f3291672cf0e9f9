package testserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy is a TCP proxy that makes the network between a client and a server
// fail on demand.
type Proxy struct {
	target   string
	listener net.Listener
	delay    atomic.Int64 // nanoseconds that each chunk waits
	accepted atomic.Int64
	received atomic.Int64 // chunks that clients have sent
	hangUp   atomic.Bool
	garbage  atomic.Bool
	wg       sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	orphans *atomic.Bool  // set for the connections that were there when it was
	replace [2][]byte     // what the server says, and what is passed on in its place
	hole    chan struct{} // closed while bytes pass; open in a black hole
	closing bool
}

// StartProxy listens on a free port of 127.0.0.1 and forwards to target. The
// caller closes it.
func StartProxy(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{target: target, listener: l, conns: make(map[net.Conn]struct{}), orphans: new(atomic.Bool), hole: make(chan struct{})}
	close(p.hole)
	p.wg.Go(p.accept)
	return p, nil
}

// NewProxy starts a proxy for a test and closes it at the test's end.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p, err := StartProxy(target)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Accepted is how many connections came in so far.
func (p *Proxy) Accepted() int64 { return p.accepted.Load() }

// Received is how many chunks of bytes clients have sent so far. A chunk holds one
// command or several that travel together.
func (p *Proxy) Received() int64 { return p.received.Load() }

// Delay makes every chunk of bytes wait before it is passed on; zero ends it.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// Blackhole starts or ends a black hole: connections are accepted and stay
// open, and no byte passes in either direction. Bytes are held, not lost, as a
// network that comes back delivers them in the end.
func (p *Proxy) Blackhole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := isClosed(p.hole)
	switch {
	case on && open && !p.closing:
		p.hole = make(chan struct{})
	case !on && !open:
		close(p.hole)
	}
}

// Orphan leaves the connections that are open now without another end, as when
// the server's machine was switched off: what is sent is lost, nothing comes back,
// and nobody is told. New connections work.
func (p *Proxy) Orphan() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.orphans.Store(true)
	p.orphans = new(atomic.Bool)
}

// HangUp breaks all connections and closes new ones at once, until it is ended.
func (p *Proxy) HangUp(on bool) {
	p.hangUp.Store(on)
	if on {
		p.CloseConnections()
	}
}

// Garbage makes the server say random bytes, as many as it said, until it is ended.
func (p *Proxy) Garbage(on bool) { p.garbage.Store(on) }

// Replace changes what the server says wherever it says old, as if another
// server stood there. Both texts have the same length. An empty one ends it.
func (p *Proxy) Replace(old, text string) {
	if len(old) != len(text) {
		panic("testserver: Proxy.Replace needs two texts of one length")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replace = [2][]byte{[]byte(old), []byte(text)}
}

// replaced is a chunk from the server as it is passed on. A text that is cut in
// two by the end of a chunk passes unchanged.
func (p *Proxy) replaced(chunk []byte) []byte {
	if p.garbage.Load() {
		for i := range chunk {
			chunk[i] = byte(rand.Int())
		}
		return chunk
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.replace[0]) == 0 {
		return chunk
	}
	return bytes.ReplaceAll(chunk, p.replace[0], p.replace[1])
}

// CloseConnections breaks every connection that is open now. New ones are
// accepted as before.
func (p *Proxy) CloseConnections() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Close ends the proxy and all its connections.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Blackhole(false)
	p.CloseConnections()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.accepted.Add(1)
		if p.hangUp.Load() {
			_ = client.Close()
			continue
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.forget(client)
	if !p.keep(client) {
		return
	}
	p.passable()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.forget(server)
	if !p.keep(server) {
		return
	}
	orphaned := p.living()
	p.wg.Go(func() { p.forward(client, server, orphaned, p.replaced) })
	p.forward(server, counted{client, &p.received}, orphaned, func(chunk []byte) []byte { return chunk })
}

// counted is a connection whose chunks are counted as they come in.
type counted struct {
	net.Conn
	chunks *atomic.Int64
}

// Read counts a chunk.
func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.chunks.Add(1)
	}
	return n, err
}

// living is what becomes true when the connections that are open now are orphaned.
func (p *Proxy) living() *atomic.Bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.orphans
}

// forward copies until one side ends, and then ends both.
func (p *Proxy) forward(dst, src net.Conn, orphaned *atomic.Bool, change func([]byte) []byte) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		p.passable()
		if d := time.Duration(p.delay.Load()); d > 0 && n > 0 {
			time.Sleep(d)
		}
		if n > 0 {
			chunk := change(buf[:n])
			if orphaned.Load() {
				continue
			}
			if _, werr := dst.Write(chunk); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// passable waits for the end of a black hole.
func (p *Proxy) passable() {
	p.mu.Lock()
	hole := p.hole
	p.mu.Unlock()
	<-hole
}

// keep registers a connection, so that closing the proxy ends it.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) forget(c net.Conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
		return // a broken connection is as good as a closed one
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
