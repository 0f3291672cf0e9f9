package integration_test

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// keyed is a site with one zone that is keyed by what clients send. That the
// process does not panic is checked at the end of every test, and that headers
// larger than Caddy's default get through is set in trusting and tiered.
const keyed = trusting + `
:{$PORT} {
	rate_limit {
		zone clients {
			key {http.request.header.X-Client}{http.request.uri.query.client}
			limit 2/1d
		}
	}
	respond "welcome"
}`

// hostileValues are keys that break naive encodings.
var hostileValues = map[string]string{
	"spaces":               "   ",
	"a space and a word":   "a b",
	"quotes":               `"'` + "`",
	"braces":               "{}{",
	"a placeholder":        "{http.request.uri}",
	"another client's key": "{k_acme}:global",
	"line ends":            "a\r\nSET x y\r\n",
	"a NUL":                "a\x00b",
	"invalid UTF-8":        "\xff\xfe\xc3",
	"overlong UTF-8":       "\xc0\xaf",
	"a colon":              "a:b",
	"percent signs":        "%00%25%",
	"a backslash":          `\`,
	"wide text":            "日本語🙂",
	"controls":             "\x01\x1b[31m",
	"64 KiB":               strings.Repeat("k", 64<<10),
	"64 KiB and one":       strings.Repeat("k", 64<<10) + "k",
}

func TestHostileKeysInTheQueryEachHaveTheirOwnBucket(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, keyed, backend)
		for round, want := range []int{200, 200, 429} {
			for name, value := range hostileValues {
				if a := c.get("/?client="+url.QueryEscape(value), from("203.0.113.7")); a.status != want {
					t.Errorf("%s, request %d: got %d, want %d", name, round+1, a.status, want)
				}
			}
		}
		for _, bystander := range []string{"acme", "a", "b", "k"} {
			c.get("/", with("X-Client", bystander)).wantStatus(t, 200)
		}
		c.get("/", from("203.0.113.7")).wantStatus(t, 200)
	})
}

// rawHeaderValues are what HTTP/1.1 lets through, or nearly, in a header line.
var rawHeaderValues = map[string]string{
	"64 KiB":            strings.Repeat("h", 64<<10),
	"invalid UTF-8":     "\xff\xfe\xc3",
	"quotes and braces": `"{}"'` + "`",
	"a tab":             "a\tb",
	"latin-1":           "gr\xfc\xdfe",
	"a lone CR":         "a\rb",
	"a NUL":             "a\x00b",
	"an escape":         "a\x1b[31mb",
	"a folded line":     "a\r\n b",
	"another header":    "a\r\nX-Client: b",
	"only spaces":       "    ",
}

func TestHostileKeysInAHeaderAreDecidedOrRefusedClearly(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, keyed, backend)
		for name, value := range rawHeaderValues {
			var statuses []int
			for range 4 {
				statuses = append(statuses, statusOf(t, c.raw("GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\nX-Forwarded-For: 203.0.113.7\r\nX-Client: "+value+"\r\n\r\n")))
			}
			for i, status := range statuses {
				if status != 200 && status != 400 && status != 429 {
					t.Errorf("%s, request %d: got %d", name, i+1, status)
				}
			}
			if passed := len(slices.DeleteFunc(slices.Clone(statuses), func(s int) bool { return s != 200 })); passed > 2 {
				t.Errorf("%s: %v, want at most two to pass", name, statuses)
			}
		}
		c.get("/", with("X-Client", "acme")).wantStatus(t, 200)
	})
}

// Two parts of a key never run into each other, and no value chosen by one
// client is another client's address, id or shared bucket.
func TestNoValueReachesTheBucketOfAnotherClient(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+`
:{$PORT} {
	rate_limit /pair {
		zone pair {
			key {http.request.header.X-A}{http.request.header.X-B}
			limit 1/1d
		}
	}
	rate_limit /mixed {
		zone mixed {
			key {http.request.header.X-Client}
			limit 2/1d
		}
	}
	rate_limit /identity {
		identify {
			api_key header X-API-Key
			placeholder {http.request.header.X-Client}
		}
		zone identity {
			key {http.rate_limit.identity}
			limit 2/1d
		}
	}
	respond "{http.rate_limit.identity}"
}`, backend)

		taken := make(map[string]bool)
		for _, forged := range []string{"203.0.113.7", "2001:db8::/64", "2001:db8::", "*", "k_acme", "acme", acmeKey} {
			c.sequence(3, "/mixed", from("198.51.100.1"), with("X-Client", forged)).want(t, tally{200: 2, 429: 1})
			taken[c.get("/identity", from("198.51.100.1"), with("X-Client", forged)).body] = true
			c.sequence(2, "/identity", from("198.51.100.1"), with("X-Client", forged)).want(t, tally{200: 1, 429: 1})
		}
		for _, path := range []string{"/mixed", "/identity"} {
			c.get(path, from("203.0.113.7")).wantStatus(t, 200)
			c.get(path, from("2001:db8::1")).wantStatus(t, 200)
		}
		if known := c.get("/identity", with("X-API-Key", acmeKey)).wantStatus(t, 200); taken[known.body] || len(taken) != 7 {
			t.Errorf("identity %q of a known key, %v of forgers: want eight that differ", known.body, taken)
		}
		// and the hash that names a client is not a way to become it
		bob := c.get("/identity", with("X-Client", "bob")).wantStatus(t, 200)
		if again := c.get("/identity", with("X-Client", bob.body)); again.body == bob.body {
			t.Errorf("a client took the identity %q of another", bob.body)
		}

		pairs := [][2]string{{"a", "bc"}, {"ab", "c"}, {"abc", ""}, {"", "abc"}, {"a\tb", "c"}, {"a", "b\tc"}}
		for _, pair := range pairs {
			options := []option{with("X-A", pair[0]), with("X-B", pair[1])}
			c.get("/pair", options...).wantStatus(t, 200)
			c.get("/pair", options...).wantStatus(t, 429)
		}
	})
}

func TestManyAPIKeyHeadersAreNobody(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+tieredSite, backend)
		count := make(tally)
		for i := range 10 {
			var options []option
			for n := range 10 {
				options = append(options, with("X-API-Key", fmt.Sprintf("tg_made-up-%d-%d", i, n)))
			}
			count[c.get("/", append(options, from("203.0.113.7"))...).status]++
		}
		count.want(t, tally{200: 3, 429: 7})

		// whichever of several keys is meant, no limit is escaped by mixing them
		count = make(tally)
		for i := range 100 {
			options := []option{with("X-API-Key", fmt.Sprintf("tg_made-up-%d", i)), with("X-API-Key", acmeKey)}
			if i%2 == 0 {
				slices.Reverse(options)
			}
			count[c.get("/", append(options, from("203.0.113.8"))...).status]++
		}
		if count[200] > 13 || count[200]+count[429]+count[400] != 100 {
			t.Errorf("answers by status: %v, want at most what the address and the key have", count)
		}
	})
}

func TestHostileAPIKeysAreDecided(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, tiered+`
:{$PORT} {
	rate_limit {
		identify {
			api_key header Authorization
			api_key header X-API-Key
			api_key query key
			api_key cookie key
		}
		tiers
	}
	respond "{http.rate_limit.identity}"
}`)
	long := strings.Repeat("x", 64<<10)
	for _, lines := range []string{
		"Authorization: ", "Authorization: Bearer", "Authorization: Bearer ", "Authorization: Bearer  " + acmeKey, "Authorization: Basic " + acmeKey,
		"Authorization: Bearer a\r\nAuthorization: Bearer b", "Authorization: Bearer " + long,
		"X-API-Key: ", "X-API-Key: \xff\xff", "X-API-Key: " + acmeKey + " ", "X-API-Key: " + long,
		"Cookie: key", "Cookie: key=", "Cookie: key=;key=;key=", "Cookie: " + strings.Repeat("key=a; ", 1000), "Cookie: ;;;=;key=\"" + acmeKey,
	} {
		reply := c.raw("GET /?key=%zz&key HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\nX-Forwarded-For: 198.51.100.3\r\n" + lines + "\r\n\r\n")
		if status := statusOf(t, reply); status != 200 && status != 429 && status != 400 {
			t.Errorf("%.40q: got %d", lines, status)
		}
	}
}

func TestACostThatIsNoNumberIsRefusedAndNeverAFreePass(t *testing.T) {
	t.Parallel()
	const site = `
:{$PORT} {
	rate_limit {
		zone heavy {
			key {http.request.header.X-Client}
			limit 10/1d
			cost {http.request.header.X-Cost}
		}
	}
	respond "welcome"
}`
	cases := []struct {
		cost   string
		status int // of the first request
		passes int // of thirty
	}{
		{"", 200, 10},
		{"1", 200, 10},
		{"3", 200, 3},
		{"10", 200, 1},
		{"11", 400, 0},
		{"1000000000", 400, 0},
		{"9223372036854775807", 400, 0},
		{"9223372036854775808", 400, 0},
		{"99999999999999999999999999", 400, 0},
		{"-1", 400, 0},
		{"-9223372036854775808", 400, 0},
		{"abc", 400, 0},
		{"1.5", 400, 0},
		{"1e1", 400, 0},
		{"0x2", 400, 0},
		{"1_0", 400, 0},
		{"NaN", 400, 0},
		{"٣", 400, 0},
		{"2 2", 400, 0},
	}
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+site, backend)
		for i, tc := range cases {
			client := with("X-Client", fmt.Sprint(i))
			first := c.get("/", client, with("X-Cost", tc.cost)).wantStatus(t, tc.status)
			if first.status == 400 {
				first.problem(t)
			}
			count := c.sequence(29, "/", client, with("X-Cost", tc.cost))
			count[first.status]++
			if count[200] != tc.passes || count[200]+count[400]+count[429] != 30 {
				t.Errorf("cost %q: answers by status %v, want %d of 30 to pass", tc.cost, count, tc.passes)
			}
		}
		// a cost below zero gives nothing back
		spender := with("X-Client", "spender")
		c.sequence(6, "/", spender).want(t, tally{200: 6})
		for _, cost := range []string{"-5", "-1000000", "18446744073709551611"} {
			c.get("/", spender, with("X-Cost", cost)).wantStatus(t, 400)
		}
		c.sequence(6, "/", spender).want(t, tally{200: 4, 429: 2})
	})
}

// A cost of zero only looks.
func TestACostOfZeroTakesNothing(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone heavy {
			limit 2/1d
			cost {http.request.header.X-Cost}
		}
	}
	respond "welcome"
}`, backend)
		c.sequence(5, "/", with("X-Cost", "0")).want(t, tally{200: 5})
		c.get("/", with("X-Cost", "0")).wantNumber(t, "X-RateLimit-Remaining", 2)
		c.sequence(3, "/").want(t, tally{200: 2, 429: 1})
	})
}

// On a unix socket a client has no address. It is limited all the same, and a
// header that it sends is not believed.
func TestClientsWithoutAnAddressAreLimited(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
http:// {
	bind unix/{$SOCKET}
	rate_limit /zone 5/1d login
	rate_limit /header {http.request.header.X-Client} 5/1d client
	respond "welcome"
}`, backend)
		nobody := c.at("unix", c.socket())
		count := make(tally)
		for i := range 20 {
			count[nobody.get("/zone", from(fmt.Sprintf("203.0.113.%d", i))).status]++
		}
		count.want(t, tally{200: 5, 429: 15})
		nobody.sequence(20, "/header").want(t, tally{200: 5, 429: 15})
	})
}

func TestTiersLimitClientsWithoutAnAddress(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+`
http:// {
	bind unix/{$SOCKET}
	rate_limit {
		tiers
	}
	respond "{http.rate_limit.identity}"
}`, backend)
		nobody := c.at("unix", c.socket())
		nobody.sequence(10, "/").want(t, tally{200: 3, 429: 7})
		nobody.get("/", with("X-API-Key", acmeKey)).wantStatus(t, 200)
	})
}

// Redis is shared, backed up and looked at by many: nothing in it tells a
// secret, and nothing stays for ever.
func TestRedisHoldsNoSecretAndForgetsEveryKey(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	looker := inspect(t, server)
	c := startCaddy(t, tiered+`
:{$PORT} {
	rate_limit {
		identify {
			api_key header X-API-Key
			placeholder {http.request.header.X-User}
		}
		tiers
		zone by-header {
			key {http.request.header.X-Client}
			limit 5/250ms
		}
		zone by-account {
			key {http.rate_limit.identity}
			limit 5/366d
		}
	}
	respond "welcome"
}`, redisBackend(server))
	secrets := []string{acmeKey, "s3cr3t-user", "s3cr3t-client", "made-up-s3cr3t"}
	c.get("/", with("X-API-Key", acmeKey), with("X-Client", "s3cr3t-client")).wantStatus(t, 200)
	c.get("/", with("X-User", "s3cr3t-user")).wantStatus(t, 200)
	c.get("/", with("X-API-Key", "made-up-s3cr3t"), from("203.0.113.7")).wantStatus(t, 200)
	c.get("/login", method("POST"), with("X-API-Key", acmeKey)).wantStatus(t, 200)
	keys := storedKeys(t, looker)
	for _, want := range []string{"ratelimit:{k_acme}:global", "ratelimit:{k_acme}:route:/login:POST", "ratelimit:{203.0.113.7}:global", "ratelimit:{k_acme}:by-account"} {
		if !slices.Contains(keys, want) {
			t.Errorf("keys %q: want %q among them", keys, want)
		}
	}
	for _, key := range keys {
		value, err := looker.Dump(t.Context(), key).Result()
		if err != nil {
			continue // it has just expired
		}
		for _, secret := range append(secrets, "s3cr3t") {
			if strings.Contains(key+value, secret) {
				t.Errorf("key %q holds the secret %q", key, secret)
			}
		}
	}
}

func TestTheLogTellsNoKeyUnlessAsked(t *testing.T) {
	t.Parallel()
	for line, told := range map[string]bool{"": false, "log_key": true} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			c := startCaddy(t, `
{
	debug
}
:{$PORT} {
	rate_limit {
		zone clients {
			key {http.request.header.X-Client}
			limit 1/1d
		}
		`+line+`
	}
	respond "welcome"
}`)
			c.sequence(3, "/", with("X-Client", "s3cr3t-client")).want(t, tally{200: 1, 429: 2})
			eventually(t, "the refusal is logged", func() bool { return len(c.log.lines("rate limit exceeded")) > 0 })
			c.stop()
			if got := len(c.log.lines("s3cr3t-client")) > 0; got != told {
				t.Errorf("the key is in the log: %t, want %t", got, told)
			}
		})
	}
}

// Under attack there are as many refusals as requests; the log must not be.
func TestRefusalsAreSampledInTheLog(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 0/1d never
	respond "welcome"
}`)
	burst(t, 500, "/", nil, c).want(t, tally{429: 500})
	c.stop()
	if lines := len(c.log.lines("rate limit exceeded")); lines == 0 || lines > 250 {
		t.Errorf("%d lines for 500 refusals, want some", lines)
	}
}

// Requests that are odd and yet well-formed, or nearly, are counted like all
// others.
func TestOddRequestsAreCountedLikeOthers(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+`
:{$PORT} {
	rate_limit {
		tiers
		zone odd {
			limit 2/1d
			key {http.request.method}{http.request.uri}
		}
	}
	respond "welcome"
}`, backend)
		for i, line := range []string{
			"GET http://elsewhere.test/path HTTP/1.1", "GET / HTTP/1.0", "GET /%2e%2e/%00 HTTP/1.1", "GET /a%zz HTTP/1.1",
			"GET //// HTTP/1.1", "GET /\xff\xfe HTTP/1.1", "M-SEARCH / HTTP/1.1", "get / HTTP/1.1", "PRI / HTTP/1.1", "GET /?%zz&;;= HTTP/1.1", "GET /{http.request.uri} HTTP/1.1",
		} {
			var statuses []int
			for range 4 {
				statuses = append(statuses, statusOf(t, c.raw(fmt.Sprintf("%s\r\nHost: example.com\r\nConnection: close\r\nX-Forwarded-For: 203.0.113.%d\r\n\r\n", line, i))))
			}
			refused := slices.Equal(statuses, []int{400, 400, 400, 400}) // by Caddy, which does not take it for HTTP
			if counted := slices.Equal(statuses, []int{200, 200, 429, 429}); !counted && !refused {
				t.Errorf("%s: got %v, want two to pass", line, statuses)
			}
		}
	})
}

// A client that goes away in the middle of its request must not take anything
// down with it.
func TestClientsThatHangUpAreHarmless(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit 100/1d login
	respond "welcome"
}`, backend)
		for i := range 100 {
			conn, err := net.Dial("tcp", c.addr())
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"[:13+i%25])
			conn.Close()
		}
		c.get("/", from("203.0.113.7")).wantStatus(t, 200)
	})
}
