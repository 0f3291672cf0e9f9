package integration_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// line is one connection of its own to a process, kept open.
type line struct {
	conn   net.Conn
	reader *bufio.Reader
}

func (c *caddy) dial() (*line, error) {
	conn, err := net.Dial("tcp", c.addr())
	if err != nil {
		return nil, err
	}
	return &line{conn, bufio.NewReaderSize(conn, 1024)}, conn.SetDeadline(time.Now().Add(4 * patience))
}

// send sends a part of a request.
func (l *line) send(text string) error {
	_, err := io.WriteString(l.conn, text)
	return err
}

// status reads the next answer.
func (l *line) status() (int, error) {
	resp, err := http.ReadResponse(l.reader, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// crowd is many connections at once.
type crowd []*line

// gather opens n connections.
func (c *caddy) gather(n int) crowd {
	c.t.Helper()
	all := make(crowd, n)
	all.each(c.t, func(i int) (err error) {
		all[i], err = c.dial()
		return err
	})
	if c.t.Failed() {
		c.t.FailNow()
	}
	return all
}

// each does something for every connection, some at a time, and stops at the first
// failure.
func (all crowd) each(t *testing.T, do func(i int) error) {
	t.Helper()
	var (
		wg     sync.WaitGroup
		next   atomic.Int64
		failed atomic.Bool
	)
	for range 128 {
		wg.Go(func() {
			for i := int(next.Add(1) - 1); i < len(all) && !failed.Load(); i = int(next.Add(1) - 1) {
				if err := do(i); err != nil && !failed.Swap(true) {
					t.Errorf("connection %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
}

// ask sends one request on each connection and counts the answers.
func (all crowd) ask(t *testing.T, head string) tally {
	t.Helper()
	var mu sync.Mutex
	count := make(tally)
	all.each(t, func(i int) error {
		if err := all[i].send("GET / HTTP/1.1\r\nHost: example.com\r\n" + head + "\r\n"); err != nil {
			return err
		}
		status, err := all[i].status()
		mu.Lock()
		defer mu.Unlock()
		count[status]++
		return err
	})
	return count
}

func (all crowd) leave() {
	for _, l := range all {
		l.conn.Close()
	}
}

// enoughFiles insists that the system lets a process have so many connections: Go
// programs take as many as they may have by themselves.
func enoughFiles(t *testing.T, n uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Max < n {
		t.Fatalf("a process may have %d files open here; run ulimit -Hn %d as root before the tests", limit.Max, n)
	}
}

const crowded = trusting + `
:{$PORT} {
	rate_limit {
		zone crowd {
			key {http.request.header.X-Client}
			limit 4000/366d
			algorithm fixed_window
		}
	}
	respond "welcome"
}`

// Ten thousand connections, of one client, that stay open: each is answered, the
// limit is exact, others are let in, and what they held is given back.
func TestTenThousandConnectionsAreCountedExactly(t *testing.T) {
	const n = 10_000
	enoughFiles(t, n+1000)
	for name, backend := range map[string]string{"memory": "BACKEND=memory", "redis": redisBackend(testserver.NewRedis(t))} {
		t.Run(name, func(t *testing.T) {
			c := startCaddy(t, crowded, backend)
			c.get("/", with("X-Client", "first")).wantStatus(t, 200)
			before := c.goroutines()
			all := c.gather(n)
			defer all.leave()
			all.ask(t, "X-Client: one\r\n").want(t, tally{200: 4000, 429: n - 4000})
			all[:1000].ask(t, "X-Client: one\r\n").want(t, tally{429: 1000}) // while nine thousand are idle
			all[9000:].ask(t, "X-Client: other\r\n").want(t, tally{200: 1000})
			c.get("/", with("X-Client", "bystander")).wantStatus(t, 200)
			all.leave()
			eventually(t, "what the connections held is given back", func() bool { return c.goroutines() <= before+20 })
		})
	}
}

// Clients that send their requests byte by byte, or begin them and wait, hold up
// nobody, and are counted once they have asked.
func TestSlowClientsHoldUpNobodyAndAreCountedOnce(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, crowded, backend)
		before := c.goroutines()
		all := c.gather(500)
		defer all.leave()
		const request = "GET / HTTP/1.1\r\nHost: example.com\r\nX-Client: slow\r\nX-Long: " + "x\r\n\r\n"
		for at := range len(request) - 1 {
			if at == len(request)/2 {
				c.sequence(20, "/", with("X-Client", "other")).want(t, tally{200: 20})
			}
			all.each(t, func(i int) error { return all[i].send(request[at : at+1]) })
		}
		if left := c.get("/", with("X-Client", "slow")).remaining(t, "crowd"); left != 3999 {
			t.Errorf("%d are left, though nobody has asked yet but one", left)
		}
		all.each(t, func(i int) error {
			if err := all[i].send("\n"); err != nil {
				return err
			}
			status, err := all[i].status()
			if err == nil && status != 200 {
				err = fmt.Errorf("got %d", status)
			}
			return err
		})
		if left := c.get("/", with("X-Client", "slow")).remaining(t, "crowd"); left != 3498 {
			t.Errorf("%d are left, want 4000 - 502", left)
		}
		all.leave()
		eventually(t, "what they held is given back", func() bool { return c.goroutines() <= before+20 })
	})
}

// Bodies that never come hold up nobody but their senders, whose answers net/http
// keeps back; the requests are counted all the same.
func TestBodiesThatNeverComeHoldUpNobody(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, crowded, backend)
		before := c.goroutines()
		all := c.gather(50)
		defer all.leave()
		all.each(t, func(i int) error {
			return all[i].send("POST / HTTP/1.1\r\nHost: example.com\r\nX-Client: stalled\r\nContent-Length: 1000\r\n\r\n")
		})
		c.sequence(20, "/", with("X-Client", "other")).want(t, tally{200: 20})
		looks := int64(0)
		eventually(t, "all are counted", func() bool {
			looks++
			return c.get("/", with("X-Client", "stalled")).remaining(t, "crowd") == 4000-50-looks
		})
		all.leave()
		eventually(t, "what they held is given back", func() bool { return c.goroutines() <= before+20 })
	})
}

// Who goes away while its request waits for its turn takes its goroutine with it.
// Its place stays used, as docs/algorithms/leaky_bucket.md says.
func TestARequestThatIsAbortedWhileItWaitsLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone queue {
			limit 100/90m
			algorithm leaky_bucket
			max_delay 10m
		}
	}
	respond "welcome"
}`, backend)
		c.get("/").wantStatus(t, 200)
		before := c.goroutines()
		all := c.gather(11) // 54 s apart
		all.each(t, func(i int) error { return all[i].send("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n") })
		eventually(t, "all wait for their turn", func() bool { return c.waiting() == 11 })
		c.get("/").wantStatus(t, 429)
		all.leave()
		eventually(t, "nobody waits any more", func() bool { return c.goroutines() <= before+2 })
		c.get("/").wantProblem(t, 429, "rate_limited", "queue")
	})
}

// multiplexed makes all requests of the process go over one HTTP/2 connection, and
// returns how many it has dialed.
func (c *caddy) multiplexed(encrypted bool) (dialed *atomic.Int64) {
	dialed = new(atomic.Int64)
	protocols := new(http.Protocols)
	protocols.SetHTTP2(encrypted)
	protocols.SetUnencryptedHTTP2(!encrypted)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			dialed.Add(1)
			return new(net.Dialer).DialContext(ctx, "tcp", c.addr())
		},
		Protocols:       protocols,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the authority was made a moment ago
	}
	c.client = &http.Client{Timeout: 4 * patience, Transport: transport}
	if encrypted {
		c.client.Transport = overTLS{transport}
	}
	return dialed
}

// Six hundred streams of one connection race as closely as they can: two hundred at
// a time, since a server takes 250 of one client.
func TestSixHundredStreamsOfOneConnectionAreCountedExactly(t *testing.T) {
	t.Parallel()
	for name, encrypted := range map[string]bool{"TLS": true, "h2c": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachBackend(t, func(t *testing.T, backend string) {
				address := "http://:{$PORT}"
				if encrypted {
					address = "https://localhost:{$PORT}"
				}
				c := startCaddy(t, `
{
	local_certs
	skip_install_trust
	auto_https disable_redirects
	servers {
		protocols h1 h2 h2c
	}
	rate_limit {
		backend {$BACKEND}
	}
}
`+address+` {
	rate_limit /login 100/1d login
	respond "{http.request.proto}"
}`, backend)
				dialed := c.multiplexed(encrypted)
				eventually(t, "the site is there", func() bool { _, err := c.once("/"); return err == nil })
				if a := c.get("/").wantStatus(t, 200); a.body != "HTTP/2.0" {
					t.Fatalf("protocol: got %q", a.body)
				}
				before := dialed.Load()
				count := make(tally)
				for range 3 {
					for status, n := range burst(t, 200, "/login", nil, c) {
						count[status] += n
					}
				}
				count.want(t, tally{200: 100, 429: 500})
				c.get("/login").wantProblem(t, 429, "rate_limited", "login")
				if more := dialed.Load() - before; more != 0 {
					t.Errorf("%d more connections, want all streams on one", more)
				}
			})
		})
	}
}

// Streams that are reset while their requests wait are gone like connections.
func TestStreamsThatAreResetWhileTheyWaitLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
{
	servers {
		protocols h1 h2c
	}
}
http://:{$PORT} {
	rate_limit {
		zone queue {
			limit 100/90m
			algorithm leaky_bucket
			max_delay 10m
		}
		exempt path /free
	}
	respond "welcome"
}`)
	c.multiplexed(false)
	c.get("/free").wantStatus(t, 200)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	_, done := sendAtOnce(ctx, 12, "/", c)
	eventually(t, "all but the first wait for their turn", func() bool { return c.waiting() == 11 })
	c.get("/").wantStatus(t, 429)
	giveUp()
	done.Wait()
	eventually(t, "nobody waits any more", func() bool { return c.waiting() == 0 })
	c.get("/free").wantStatus(t, 200)
}

// waiting is how many requests of the process wait for their turn.
func (c *caddy) waiting() int {
	c.t.Helper()
	resp, err := c.admin.Get("http://localhost/debug/pprof/goroutine?debug=2")
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.Count(string(text), "ratelimit.wait(")
}
