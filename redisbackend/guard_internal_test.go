package redisbackend

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
)

// The guard drops connections that the library still holds, and closes in its turn.
func TestAConnectionThatWasDroppedIsClosedWithoutAnError(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	g := newGuard()
	c := &guardedConn{Conn: raw, guard: g}
	g.conns[c] = "somewhere"
	g.drop("somewhere")
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if len(g.conns) != 0 {
		t.Errorf("%d connections are still known", len(g.conns))
	}
}

// The library would give up dialing after as many failures as there may be connections,
// and look once a second: that long a server that is back would not be found.
func TestAServerThatRefusesConnectionsIsTriedByEveryCall(t *testing.T) {
	t.Parallel()
	refused, attempts := errors.New("refused"), 0
	g := newGuard()
	rdb := redis.NewClient(&redis.Options{
		Addr: "192.0.2.1:6379", PoolSize: 1, MaxRetries: -1, DialerRetries: 1,
		Dialer: g.dialer(func(context.Context, string, string) (net.Conn, error) { attempts++; return nil, refused }),
	})
	defer rdb.Close()
	g.watch(rdb, "somewhere")
	for call := 1; call <= 10; call++ {
		if err := rdb.Ping(t.Context()).Err(); !errors.Is(err, refused) {
			t.Fatalf("call %d: got %v", call, err)
		}
		if attempts != call {
			t.Fatalf("%d attempts after %d calls", attempts, call)
		}
	}
	if len(g.conns) > 0 {
		t.Errorf("%d connections are known, none was made", len(g.conns))
	}
}
