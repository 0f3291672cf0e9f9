package testserver

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// Pretender is something that answers in place of a Redis.
type Pretender struct {
	listener net.Listener
	reply    string
	greets   bool
}

// NewPretender starts one for a test, and closes it at the test's end. It gives one
// reply to whatever it is asked; if it greets, it does so only after it has answered
// what a connection and a start begin with, and pings, as a Redis does.
func NewPretender(tb testing.TB, reply string, greets bool) *Pretender {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Pretender{listener: l, reply: reply, greets: greets}
	tb.Cleanup(func() { _ = l.Close() })
	go p.serve()
	return p
}

// Addr is where it listens.
func (p *Pretender) Addr() string { return p.listener.Addr().String() }

// URL is the address as a configuration writes it.
func (p *Pretender) URL() string { return "redis://" + p.Addr() }

func (p *Pretender) serve() {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go p.answer(conn)
		}
	}
}

// answer lives as long as the other end keeps the connection.
func (p *Pretender) answer(conn net.Conn) {
	defer conn.Close()
	for buf := make([]byte, 1<<16); ; {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, p.replyTo(strings.ToLower(string(buf[:n])))); err != nil {
			return
		}
	}
}

func (p *Pretender) replyTo(asked string) string {
	switch {
	case p.greets && strings.Contains(asked, "\nhello\r"):
		return "-ERR unknown command 'hello'\r\n" // as a server of long ago says
	case p.greets && strings.Contains(asked, "\ninfo\r"):
		return "$21\r\nredis_version:7.0.15\n\r\n"
	case p.greets && strings.Contains(asked, "\nping\r"):
		return "+PONG\r\n"
	default:
		return p.reply
	}
}
