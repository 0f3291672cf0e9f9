package integration_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// echo is a server behind Caddy that takes over connections and sends back
// what it is sent, as a WebSocket server does.
func echo(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			fmt.Fprint(w, "plain")
			return
		}
		conn, stream, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Errorf("taking the connection over: %v", err)
			return
		}
		defer conn.Close()
		fmt.Fprint(stream, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		stream.Flush()
		io.Copy(conn, stream)
	}))
	t.Cleanup(server.Close)
	return server
}

// upgrade asks for a WebSocket and returns the connection and the answer's
// head.
func upgrade(t *testing.T, c *caddy) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := net.Dial("tcp", c.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(conn, "GET /chat HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatalf("upgrading: %v", err)
	}
	return conn, reader, resp
}

func TestAWebSocketThroughALimitedProxyWorks(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 2/1d chat
	reverse_proxy {$UPSTREAM}
}`, "UPSTREAM="+echo(t).Listener.Addr().String())
	for range 2 {
		conn, reader, resp := upgrade(t, c)
		if resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("status: got %d, want 101", resp.StatusCode)
		}
		for i := range 3 {
			// one connection is one request, however much is said on it
			fmt.Fprintf(conn, "message %d\n", i)
			if line, err := reader.ReadString('\n'); err != nil || line != fmt.Sprintf("message %d\n", i) {
				t.Fatalf("got %q (%v)", line, err)
			}
		}
		conn.Close()
	}
	if _, _, resp := upgrade(t, c); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("the third: got %d %v, want 429", resp.StatusCode, resp.Header)
	}
}

func TestTheHeadersStandBesideThoseOfTheServerBehind(t *testing.T) {
	t.Parallel()
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Behind", "yes")
		w.WriteHeader(http.StatusCreated)
		io.Copy(w, r.Body)
	}))
	t.Cleanup(behind.Close)
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 5/1d api
	reverse_proxy {$UPSTREAM}
}`, "UPSTREAM="+behind.Listener.Addr().String())
	a := c.get("/").wantStatus(t, 201)
	a.wantNumber(t, "X-RateLimit-Remaining", 4)
	if a.header.Get("X-Behind") != "yes" {
		t.Errorf("the headers of the server behind are gone: %v", a.header)
	}
}

// One connection carries all requests at once here, so they race as closely
// as they can.
func TestConcurrentStreamsOfOneHTTP2ConnectionAreCountedExactly(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, `
{
	local_certs
	skip_install_trust
	auto_https disable_redirects
	servers {
		protocols h1 h2
	}
	rate_limit {
		backend {$BACKEND}
	}
}
https://localhost:{$PORT} {
	rate_limit 10/1d login
	respond "{http.request.proto}"
}`, backend)
		c.speakHTTP2()
		eventually(t, "the certificate is there", func() bool {
			_, err := c.try("/", method("TRACE"))
			return err == nil
		})
		a := c.get("/").wantStatus(t, 200)
		if a.body != "HTTP/2.0" {
			t.Fatalf("protocol: got %q", a.body)
		}
		a.wantNumber(t, "X-RateLimit-Remaining", 8)
		burst(t, 50, "/", nil, c).want(t, tally{200: 8, 429: 42})
		c.get("/").wantProblem(t, 429, "rate_limited", "login")
	})
}

// speakHTTP2 makes the requests of the process go over one TLS connection.
func (c *caddy) speakHTTP2() {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", c.addr())
		},
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the authority was made a moment ago
		ForceAttemptHTTP2: true,
	}
	c.client = &http.Client{Timeout: patience, Transport: overTLS{transport}}
}

// overTLS sends requests to https://localhost, whatever they name.
type overTLS struct{ transport *http.Transport }

func (o overTLS) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host, r.Host = "https", "localhost", "localhost"
	return o.transport.RoundTrip(r)
}

func (o overTLS) CloseIdleConnections() { o.transport.CloseIdleConnections() }

// A refusal leaves the body of a request unread; the next request of the same
// connection must not find it in its way.
func TestARefusedUploadDoesNotDisturbTheConnection(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 1/1d once
	respond "welcome"
}`)
	body := strings.Repeat("x", 100_000)
	post := fmt.Sprintf("POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	reader := bufio.NewReader(strings.NewReader(c.raw(post + post + post + "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")))
	for i, want := range []int{200, 429, 429, 429} {
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", i+1, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatalf("answer %d: %v", i+1, err)
		}
		if resp.StatusCode != want {
			t.Errorf("answer %d: got %d, want %d", i+1, resp.StatusCode, want)
		}
	}
}
