package integration_test

import (
	"fmt"
	"testing"
)

func TestWhoeverIsNotTrustedCannotChooseItsAddress(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 3/1d login
	respond "welcome"
}`)
	count := make(tally)
	for i := range 10 {
		count[c.get("/", from(fmt.Sprintf("203.0.113.%d", i)), with("X-Real-IP", fmt.Sprintf("203.0.113.%d", i)),
			with("Forwarded", fmt.Sprintf("for=203.0.113.%d", i))).status]++
	}
	count.want(t, tally{200: 3, 429: 7})
}

func TestAddressesAreGroupedByPrefix(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name        string
		lines       string
		first       string
		same, other []string
	}{
		{
			"a whole /64 by default", "", "2001:db8:1:2::1",
			[]string{"2001:db8:1:2::2", "2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:DB8:1:2:0:0:0:3"},
			[]string{"2001:db8:1:3::1", "2001:db8:2:2::1", "203.0.113.7"},
		},
		{
			"single IPv4 addresses by default", "", "203.0.113.7",
			[]string{"203.0.113.7", "::ffff:203.0.113.7"},
			[]string{"203.0.113.8", "203.0.113.70"},
		},
		{
			"a /48 when the zone says so", "ipv6_prefix 48", "2001:db8:1:2::1",
			[]string{"2001:db8:1:ffff::1"},
			[]string{"2001:db8:2:2::1"},
		},
		{
			"single IPv6 addresses when the zone says so", "ipv6_prefix 128", "2001:db8:1:2::1",
			[]string{"2001:db8:1:2:0::1"},
			[]string{"2001:db8:1:2::2"},
		},
		{
			"an IPv4 /24 when the zone says so", "ipv4_prefix 24", "203.0.113.7",
			[]string{"203.0.113.255", "::ffff:203.0.113.9"},
			[]string{"203.0.114.7"},
		},
		{
			"an address within a longer key", "key {client_ip}-{http.request.method}", "2001:db8:1:2::1",
			[]string{"2001:db8:1:2::2"},
			[]string{"2001:db8:1:3::2"},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			onEachBackend(t, func(t *testing.T, backend string) {
				c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone address {
			limit 1/1d
			`+tc.lines+`
		}
	}
	respond "welcome"
}`, backend)
				c.get("/", from(tc.first)).wantStatus(t, 200)
				for _, address := range tc.same {
					if a := c.get("/", from(address)); a.status != 429 {
						t.Errorf("%s after %s: got %d, want 429", address, tc.first, a.status)
					}
				}
				for _, address := range tc.other {
					if a := c.get("/", from(address)); a.status != 200 {
						t.Errorf("%s after %s: got %d, want 200", address, tc.first, a.status)
					}
				}
			})
		})
	}
}

func TestARequestWithoutItsKeyIsTreatedAsTheZoneSays(t *testing.T) {
	t.Parallel()
	cases := []struct {
		line      string
		sameIP    tally // five requests of one address without the key
		anotherIP int   // one of another address after that
	}{
		{"", tally{200: 2, 429: 3}, 200},
		{"missing_key address", tally{200: 2, 429: 3}, 200},
		{"missing_key skip", tally{200: 5}, 200},
		{"missing_key reject", tally{400: 5}, 400},
		{"missing_key nobody", tally{200: 2, 429: 3}, 429},
	}
	for _, tc := range cases {
		t.Run(tc.line, func(t *testing.T) {
			t.Parallel()
			onEachBackend(t, func(t *testing.T, backend string) {
				c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone clients {
			key {http.request.header.X-Client}
			limit 2/1d
			`+tc.line+`
		}
	}
	respond "welcome"
}`, backend)
				c.sequence(5, "/", from("203.0.113.7")).want(t, tc.sameIP)
				c.get("/", from("203.0.113.8")).wantStatus(t, tc.anotherIP)
				c.sequence(3, "/", from("203.0.113.7"), with("X-Client", "acme")).want(t, tally{200: 2, 429: 1})
				// the text that stands in the key's place is nobody's key
				c.get("/", with("X-Client", "nobody")).wantStatus(t, 200)
				// and a header without a value is as missing as no header
				c.get("/", from("203.0.113.8"), with("X-Client", "")).wantStatus(t, tc.anotherIP)
			})
		})
	}
}
