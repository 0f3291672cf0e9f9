package integration_test

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// limited is a site with one zone of that limit.
func limited(limit string) string {
	return trusting + `
:{$PORT} {
	rate_limit ` + limit + ` login
	respond "welcome"
}`
}

func TestARaisedLimitIsFreeOnTheNextRequestAndWhatWasUsedStaysUsed(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, limited("10/1d"), backend)
		c.sequence(12, "/").want(t, tally{200: 10, 429: 2})
		c.reload(limited("100/1d"))
		a := c.get("/").wantStatus(t, 200)
		a.wantNumber(t, "X-RateLimit-Limit", 100)
		a.wantNumber(t, "X-RateLimit-Remaining", 89)
		burst(t, 120, "/", nil, c).want(t, tally{200: 89, 429: 31})
	})
}

func TestALoweredLimitHoldsOnTheNextRequest(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, limited("100/1d"), backend)
		c.sequence(10, "/").want(t, tally{200: 10})
		c.reload(limited("10/1d"))
		a := c.get("/").wantStatus(t, 429)
		a.wantNumber(t, "X-RateLimit-Limit", 10)
		a.wantNumber(t, "X-RateLimit-Remaining", 0)
		c.reload(limited("12/1d"))
		c.sequence(4, "/").want(t, tally{200: 2, 429: 2})
	})
}

func TestALimitTakenToZeroAndBackKeepsWhatWasUsed(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, limited("10/1d"), backend)
		c.sequence(4, "/").want(t, tally{200: 4})
		c.reload(limited("0/1d"))
		c.sequence(3, "/").want(t, tally{429: 3})
		c.reload(limited("10/1d"))
		c.sequence(8, "/").want(t, tally{200: 6, 429: 2})
	})
}

func TestCountersSurviveReloads(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, limited("10/1d"), backend)
		for left := int64(9); left >= 0; left-- {
			c.get("/").wantStatus(t, 200).wantNumber(t, "X-RateLimit-Remaining", left)
			c.reload(limited("10/1d"))
		}
		c.get("/").wantStatus(t, 429)
	})
}

func TestCountersInRedisSurviveTheProcess(t *testing.T) {
	t.Parallel()
	backend := redisBackend(testserver.NewRedis(t))
	first := startCaddy(t, limited("10/1d"), backend)
	first.sequence(7, "/").want(t, tally{200: 7})
	first.stop()
	second := startCaddy(t, limited("10/1d"), backend)
	second.sequence(5, "/").want(t, tally{200: 3, 429: 2})
}

// Requests that are under way while configurations change are neither lost
// nor counted twice.
func TestConcurrentRequestsDuringReloadsAreCountedExactly(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, limited("100/1d"), backend)
		var wg sync.WaitGroup
		wg.Go(func() { c.sequence(400, "/").want(t, tally{200: 100, 429: 300}) })
		for range 8 {
			c.reload(limited("100/1d"))
		}
		wg.Wait()
	})
}

func TestAZoneThatDisappearsAndComesBackKeepsItsState(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]string{
		"among other zones": trusting + ":{$PORT} {\n rate_limit 50/1d other\n respond welcome\n }\n",
		"with every limit":  ":{$PORT} {\n respond welcome\n }\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachBackend(t, func(t *testing.T, backend string) {
				c := startCaddy(t, limited("5/1d"), backend)
				c.sequence(3, "/").want(t, tally{200: 3})
				c.reload(without)
				c.sequence(20, "/").want(t, tally{200: 20})
				c.reload(limited("5/1d"))
				c.sequence(4, "/").want(t, tally{200: 2, 429: 2})
			})
		})
	}
}

// A zone keeps its counter wherever its lines move in the file; a limit
// without a name is named by its place.
func TestANamedZoneKeepsItsCounterWhenTheFileIsEdited(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, limited("5/1d"))
	c.sequence(3, "/").want(t, tally{200: 3})
	c.reload(trusting + `
# moved, and in another form


:{$PORT} {
	header X-Edited yes
	rate_limit {
		zone another {
			limit 1000/1d
		}
		zone login {
			limit 5/1d
		}
	}
	respond "welcome"
}`)
	c.sequence(4, "/").want(t, tally{200: 2, 429: 2})
}

// failing are configurations that fail to load, each at another step.
var failing = map[string]string{
	"a syntax error": `
:{$PORT} {
	rate_limit 100/1d login
	respond "welcome"
`,
	"a bad limit": `
:{$PORT} {
	rate_limit 100 login
	respond "welcome"
}`,
	"a handler that cannot be set up": `
:{$PORT} {
	rate_limit 100/1d login
	reverse_proxy {
		dynamic srv
		transport http {
			tls_trust_pool file /does/not/exist.pem
		}
	}
}`,
	"zones that differ": `
:{$PORT} {
	rate_limit 100/1d login
	respond "welcome"
}
:{$PORT2} {
	rate_limit 200/1d login
	respond "welcome"
}`,
	"an address that cannot be listened on": `
:{$PORT} {
	rate_limit 100/1d login
	respond "welcome"
}
:{$PORT2} {
	bind 192.0.2.1
	rate_limit 100/1d login
}`,
}

func TestAFailedReloadChangesNothing(t *testing.T) {
	t.Parallel()
	for name, broken := range failing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachBackend(t, func(t *testing.T, backend string) {
				c := startCaddy(t, limited("10/1d"), backend)
				c.sequence(4, "/").want(t, tally{200: 4})
				// more than once: Caddy starts its apps in no fixed order
				for range 4 {
					if problem := c.load(trusting + broken); problem == "" {
						t.Fatal("the configuration was taken")
					}
				}
				c.get("/").wantStatus(t, 200).wantNumber(t, "X-RateLimit-Limit", 10)
				c.sequence(7, "/").want(t, tally{200: 5, 429: 2})
				c.reload(limited("11/1d"))
				c.sequence(3, "/").want(t, tally{200: 1, 429: 2})
			})
		})
	}
}

// bounded is a site whose memory backend holds at most that many buckets.
func bounded(maxKeys int, more string) string {
	return fmt.Sprintf(`
{
	servers {
		trusted_proxies static 127.0.0.1/32 ::1/128
	}
	rate_limit {
		backend memory {
			max_keys %d
		}
	}
}
:{$PORT} {
	rate_limit 2/1d login
	respond "welcome"
}
%s`, maxKeys, more)
}

// useUp lets clients first to last-1 use up a limit of two.
func useUp(t *testing.T, c *caddy, first, last int) {
	t.Helper()
	for i := first; i < last; i++ {
		c.sequence(3, "/", from(fmt.Sprintf("198.51.100.%d", i))).want(t, tally{200: 2, 429: 1})
		if t.Failed() {
			t.FailNow() // one client says it all
		}
	}
}

func TestChangingMaxKeysKeepsTheCounters(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, bounded(1000, ""))
	useUp(t, c, 0, 20)
	for _, maxKeys := range []int{5000, 500, 1_000_000} {
		c.reload(bounded(maxKeys, ""))
		for i := range 20 {
			c.get("/", from(fmt.Sprintf("198.51.100.%d", i))).wantStatus(t, 429)
		}
	}
	useUp(t, c, 20, 30)
}

// A reload that fails must not leave its max_keys behind: with room for one
// client only, newcomers would inherit what others used.
func TestAFailedReloadDoesNotChangeMaxKeys(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{
		"at set-up": ":{$PORT2} {\n rate_limit 3/1d login\n respond other\n }\n",
		"at start":  ":{$PORT2} {\n bind 192.0.2.1\n respond other\n }\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCaddy(t, bounded(1000, ""))
			useUp(t, c, 0, 10)
			for i := range 8 {
				if problem := c.load(bounded(1, more)); problem == "" {
					t.Fatal("the configuration was taken")
				}
				useUp(t, c, 10+10*i, 20+10*i)
			}
			for i := range 90 {
				c.get("/", from(fmt.Sprintf("198.51.100.%d", i))).wantStatus(t, 429)
			}
		})
	}
}

// A table that is too small for its clients refuses rather than forgets: a
// flood of made-up clients, who owe more than the first, frees nobody.
func TestAFullTableNeverForgetsWhoIsOverTheLimit(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, bounded(100, ""))
	c.sequence(2, "/", from("198.51.100.0")).want(t, tally{200: 2}) // and no refusal, which would be remembered by itself
	for i := range 400 {
		for range 2 {
			c.get("/", from(fmt.Sprintf("10.0.%d.%d", i/250, i%250)))
		}
	}
	c.get("/", from("198.51.100.0")).wantStatus(t, 429)
}

func TestManyReloadsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, limited("1000/1d"), backend)
		reloads := func(n int) {
			for i := range n {
				c.reload(limited(fmt.Sprintf("%d/1d", 1000+i)))
				c.get("/").wantStatus(t, 200)
			}
		}
		reloads(10)
		before := c.goroutines()
		reloads(60)
		eventually(t, "goroutines of earlier configurations end", func() bool {
			return c.goroutines() <= before+10
		})
	})
}

func TestReloadsOpenNoFurtherConnectionsToRedis(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	looker := inspect(t, server)
	c := startCaddy(t, limited("1000/1d"), redisBackend(server))
	c.get("/").wantStatus(t, 200)
	for i := range 30 {
		c.reload(limited(fmt.Sprintf("%d/1d", 1000+i)))
		burst(t, 5, "/", nil, c).want(t, tally{200: 5})
	}
	info, err := looker.InfoMap(t.Context(), "clients").Result()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.Atoi(info["Clients"]["connected_clients"]); err != nil || n > 20 {
		t.Errorf("%d connections after 30 reloads (%v), want the few of one pool", n, err)
	}
}

// goroutineStacks finds in a profile how many goroutines stand alike, and where.
var goroutineStacks = regexp.MustCompile(`(?m)^(\d+) @ .*\n((?:#.*\n)*)`)

var goroutineTotal = regexp.MustCompile(`goroutine profile: total (\d+)`)

// goroutines counts those of the process.
func (c *caddy) goroutines() int {
	c.t.Helper()
	c.client.CloseIdleConnections()
	text := c.goroutineProfile()
	m := goroutineTotal.FindStringSubmatch(text)
	if m == nil {
		c.t.Fatalf("no count in %.100q", text)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// goroutinesIn counts those that a function is on the stack of.
func (c *caddy) goroutinesIn(function string) (n int) {
	c.t.Helper()
	for _, m := range goroutineStacks.FindAllStringSubmatch(c.goroutineProfile(), -1) {
		if strings.Contains(m[2], function) {
			same, _ := strconv.Atoi(m[1])
			n += same
		}
	}
	return n
}

func (c *caddy) goroutineProfile() string {
	c.t.Helper()
	resp, err := c.admin.Get("http://localhost/debug/pprof/goroutine?debug=1")
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}
