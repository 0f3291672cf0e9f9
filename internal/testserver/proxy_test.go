package testserver

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// echo listens and sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// exchange sends a byte and waits for it to come back.
func exchange(c net.Conn, wait time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if _, err := c.Write([]byte{'x'}); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func TestProxyForwards(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	for range 3 {
		if err := exchange(dial(t, p.Addr()), 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if p.Accepted() != 3 {
		t.Errorf("%d connections were counted, not 3", p.Accepted())
	}
}

func TestABlackHoleHoldsBytesUntilItEnds(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	c := dial(t, p.Addr())
	if err := exchange(c, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	p.Blackhole(true)
	p.Blackhole(true) // twice is once
	if err := exchange(c, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a byte passed or the connection broke: %v", err)
	}
	if err := exchange(dial(t, p.Addr()), 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a byte passed on a new connection, or it broke: %v", err)
	}
	p.Blackhole(false)
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("the byte that was held did not come: %v", err)
	}
}

func TestADelayIsWaitedInEachDirection(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	p.Delay(30 * time.Millisecond)
	start := time.Now()
	if err := exchange(dial(t, p.Addr()), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 60*time.Millisecond {
		t.Errorf("there and back took only %s", took)
	}
}

func TestConnectionsCanBeBrokenAndMadeAnew(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	c := dial(t, p.Addr())
	if err := exchange(c, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	p.CloseConnections()
	if err := exchange(c, 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection was not broken: %v", err)
	}
	if err := exchange(dial(t, p.Addr()), 5*time.Second); err != nil {
		t.Errorf("no new connection: %v", err)
	}
}

func TestAClosedProxyLeavesNothingBehind(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := StartProxy(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p.Blackhole(true)
	c := dial(t, p.Addr())
	if _, err := c.Write([]byte{'x'}); err != nil {
		t.Fatal(err)
	}
	p.Close()
}

func TestAReplacedTextArrivesInItsPlaceUntilItEnds(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	p.Replace("7.0", "6.0")
	c := dial(t, p.Addr())
	for _, want := range []string{"v6.0!", "v7.0!"} {
		if _, err := c.Write([]byte("v7.0!")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		p.Replace("", "")
	}
}

func TestOrphansLoseWhatTheySendAndOthersWork(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	orphan := dial(t, p.Addr())
	if err := exchange(orphan, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	p.Orphan()
	if err := exchange(orphan, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a byte passed or the connection broke: %v", err)
	}
	if err := exchange(dial(t, p.Addr()), 5*time.Second); err != nil {
		t.Errorf("a new connection does not work: %v", err)
	}
	if n := p.Received(); n != 3 {
		t.Errorf("%d chunks were counted, not 3", n)
	}
}

func TestAProxyThatHangsUpClosesAllConnectionsUntilItIsEnded(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	p.HangUp(true)
	if err := exchange(dial(t, p.Addr()), 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection was not closed: %v", err)
	}
	p.HangUp(false)
	if err := exchange(dial(t, p.Addr()), 5*time.Second); err != nil {
		t.Error(err)
	}
}

func TestGarbageIsAsLongAsWhatTheServerSaid(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	p.Garbage(true)
	c := dial(t, p.Addr())
	said := make([]byte, 64)
	if _, err := c.Write(said); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(said))
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || bytes.Equal(got, said) {
		t.Errorf("got %x, %v", got, err)
	}
}

// The loading takes long enough to be seen, and ends at once when it is told to.
func TestAServerThatLoadsSaysSo(t *testing.T) {
	t.Parallel()
	p := NewPatient(t)
	for _, f := range Faults {
		if f.Name != "LOADING" {
			continue
		}
		if err := f.Begin(p); err != nil {
			t.Fatal(err)
		}
		if reply, err := p.Redis.inline("GET a"); err != nil || !strings.HasPrefix(reply, "-LOADING") {
			t.Errorf("the reply is %q, %v", reply, err)
		}
		if err := f.End(p); err != nil {
			t.Fatal(err)
		}
		if err := p.Redis.proc.waitReady(p.Redis.ping); err != nil {
			t.Error(err)
		}
		return
	}
	t.Error("there is no such fault")
}
