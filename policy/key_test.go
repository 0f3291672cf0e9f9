package policy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestAnAddressIsCutToThePrefixOfItsFamily(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		addr       string
		ipv4, ipv6 int
		want       string
	}{
		{"203.0.113.7", 32, 64, "203.0.113.7"},
		{"203.0.113.7", 24, 64, "203.0.113.0/24"},
		{"203.0.113.7", 31, 64, "203.0.113.6/31"},
		{"203.0.113.7", 0, 64, "0.0.0.0/0"},
		{"203.0.113.7", 33, 64, "203.0.113.7"},
		{"203.0.113.7", 128, 64, "203.0.113.7"},
		{"203.0.113.7", -1, 64, "203.0.113.7"},
		{"2001:db8:1:2:3:4:5:6", 32, 64, "2001:db8:1:2::/64"},
		{"2001:db8:1:2:ffff:ffff:ffff:ffff", 32, 64, "2001:db8:1:2::/64"},
		{"2001:DB8:1:2:0:0:0:1", 32, 64, "2001:db8:1:2::/64"},
		{"2001:db8:1:3::1", 32, 64, "2001:db8:1:3::/64"},
		{"2001:db8:1:2:3:4:5:6", 32, 56, "2001:db8:1::/56"},
		{"2001:db8:1:2:3:4:5:6", 32, 127, "2001:db8:1:2:3:4:5:6/127"},
		{"2001:db8:1:2:3:4:5:6", 32, 128, "2001:db8:1:2:3:4:5:6"},
		{"2001:db8:1:2:3:4:5:6", 32, 0, "::/0"},
		{"2001:db8:1:2:3:4:5:6", 32, 129, "2001:db8:1:2:3:4:5:6"},
		{"2001:db8:1:2:3:4:5:6", 32, -1, "2001:db8:1:2:3:4:5:6"},
		{"::ffff:203.0.113.7", 32, 64, "203.0.113.7"},
		{"::ffff:203.0.113.7", 24, 64, "203.0.113.0/24"},
		{"::ffff:203.0.113.7%eth0", 32, 64, "203.0.113.7"},
		{"fe80::1%eth0", 32, 128, "fe80::1"},
		{"fe80::1%eth0", 32, 64, "fe80::/64"},
		{"fe80::1%}:{ ", 32, 128, "fe80::1"},
		{"::1", 32, 64, "::/64"},
	} {
		if got := policy.AddressIdentity(netip.MustParseAddr(tt.addr), tt.ipv4, tt.ipv6); got != tt.want {
			t.Errorf("%s with /%d and /%d: got %q, want %q", tt.addr, tt.ipv4, tt.ipv6, got, tt.want)
		}
	}
}

func TestAnAddressThatCouldNotBeReadHasABucketOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, bits := range []int{-1, 0, 32, 129} {
		if got := policy.AddressIdentity(netip.Addr{}, bits, bits); got != "unknown" {
			t.Errorf("/%d: got %q, want unknown", bits, got)
		}
	}
}

// A client that moves through its own network stays one client; one outside of
// it is another.
func TestAddressesShareAnIdentityExactlyWhenTheyShareThePrefix(t *testing.T) {
	t.Parallel()
	addr := rapid.Custom(func(t *rapid.T) netip.Addr {
		var b [16]byte
		copy(b[:], rapid.SliceOfN(rapid.ByteRange(0, 3), 16, 16).Draw(t, "bytes")) // few values, so that prefixes meet
		if rapid.Bool().Draw(t, "ipv4") {
			return netip.AddrFrom4([4]byte(b[:4]))
		}
		return netip.AddrFrom16(b)
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := addr.Draw(t, "a"), addr.Draw(t, "b")
		v4, v6 := rapid.IntRange(0, 32).Draw(t, "ipv4 prefix"), rapid.IntRange(0, 128).Draw(t, "ipv6 prefix")
		bits := v6
		if a.Unmap().Is4() {
			bits = v4
		}
		prefix, err := a.Unmap().Prefix(bits)
		if err != nil {
			t.Fatal(err)
		}
		same := policy.AddressIdentity(a, v4, v6) == policy.AddressIdentity(b, v4, v6)
		if want := prefix.Contains(b.Unmap()); same != want {
			t.Fatalf("%s and %s in /%d: one client: %t, want %t", a, b, bits, same, want)
		}
	})
}

func TestAKeyIsNamedByItsIDReadably(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ id, want string }{
		{"acme", "k_acme"},
		{"8Fq2-x_Z.9", "k_8Fq2-x_Z.9"},
		{"", "k_"},
		{"a:b", "k_a%3Ab"},
		{"a}b{", "k_a%7Db%7B"},
		{"a%3Ab", "k_a%253Ab"},
	} {
		if got := policy.KeyIdentity(tt.id); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.id, got, tt.want)
		}
	}
}

// Joined with any separator, parts like these land on one another's counter.
func TestAHashKnowsWhereItsPartsEnd(t *testing.T) {
	t.Parallel()
	seen := make(map[string][]string)
	for _, parts := range [][]string{
		{},
		{""},
		{"", ""},
		{"abc"},
		{"a", "bc"},
		{"ab", "c"},
		{"", "abc"},
		{"abc", ""},
		{"a", "b", "c"},
		{"a_b", "c"},
		{"a", "b_c"},
		{"a\x00b"},
		{"a", "\x00b"},
		{"\x01a"},
		{"\x01", "a"},
		{"a\x02bc"},                         // what the second one looks like inside, if lengths stood between
		{"\x7f" + strings.Repeat("y", 127)}, // would meet the next one if a length had but seven bits
		{"", strings.Repeat("y", 127)},
		{strings.Repeat("x", 127)},
		{strings.Repeat("x", 128)},
		{strings.Repeat("x", 127), "x"},
		{strings.Repeat("x", 300)},
	} {
		id := policy.HashIdentity(parts...)
		if other, taken := seen[id]; taken {
			t.Errorf("%q and %q are one client", parts, other)
		}
		seen[id] = parts
	}
}

// Buckets outlive a process, so the hash of a value must be the same in every
// version: this one was computed outside of Go.
func TestAHashStaysWhatItIs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		parts []string
		want  string
	}{
		{[]string{"user-42"}, "h_2WBzyJdTL1WsnqVpmdymTQ"},
		{[]string{"a", "bc"}, "h_6hzGcrF6XJnSc1A6KYll7w"},
	} {
		if got := policy.HashIdentity(tt.parts...); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.parts, got, tt.want)
		}
	}
}

func TestAHashShowsNothingOfWhatItNames(t *testing.T) {
	t.Parallel()
	id := policy.HashIdentity("tg_s3cret")
	if len(id) != len("h_")+22 || strings.Contains(id, "s3cret") {
		t.Errorf("got %q, want 22 characters of base64url", id)
	}
}

func TestAZoneIsNamedReadablyAndNeverBreaksOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, want string }{
		{"login", "login"},
		{"api/v1-get.all_of~it", "api/v1-get.all_of~it"},
		{"Caddyfile:12", "Caddyfile%3A12"},
		{"a}:{b", "a%7D%3A%7Bb"},
		{"100%", "100%25"},
		{"two words", "two%20words"},
		{"tab\tnul\x00del\x7f", "tab%09nul%00del%7F"},
		{"é", "%C3%A9"},
		{"\xff\xfe", "%FF%FE"},
		{"\xef\xbf\xbd", "%EF%BF%BD"},
		{"", ""},
		{"route:/x", "route%3A/x"},
		{"global", "%67lobal"},
		{"Global", "Global"},
		{"%67lobal", "%2567lobal"},
	} {
		if got := policy.ZoneScope(tt.name); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// named is an identity or a scope, beside all that it was made of.
type named struct{ name, source string }

// clients draws a client of any kind, from few values so that they nearly meet.
func clients() *rapid.Generator[named] {
	return rapid.Custom(func(t *rapid.T) named {
		text := hostile().Draw(t, "text")
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			return named{policy.KeyIdentity(text), "key " + text}
		case 1:
			more := hostile().Draw(t, "more")
			return named{policy.HashIdentity(text, more), fmt.Sprintf("hash %q %q", text, more)}
		case 2:
			return named{policy.HashIdentity(text), fmt.Sprintf("hash %q", text)}
		case 3:
			return named{policy.SharedIdentity, "everybody"}
		}
		b := rapid.SliceOfN(rapid.ByteRange(0, 2), 4, 4).Draw(t, "address")
		a := netip.AddrFrom4([4]byte(b))
		return named{policy.AddressIdentity(a, 32, 64), "address " + a.String()}
	})
}

// scopes draws a zone or a route.
func scopes() *rapid.Generator[named] {
	return rapid.Custom(func(t *rapid.T) named {
		text := hostile().Draw(t, "text")
		if rapid.Bool().Draw(t, "zone") {
			return named{policy.ZoneScope(text), "zone " + text}
		}
		methods := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"GET", "POST", "GET-POST"}), func(m string) string { return m }).Draw(t, "methods")
		pattern := rapid.SampledFrom([]string{"/" + text, "*" + text, "*"}).Draw(t, "pattern")
		r, err := policy.NewRoute(pattern, methods...)
		if err != nil {
			r, _ = policy.NewRoute("*")
		}
		return named{r.Scope(), "route " + r.String()}
	})
}

func hostile() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringOfN(rapid.RuneFrom([]rune(":{}%/*_,h 7gé\x00")), 0, 4, -1),
		rapid.SampledFrom([]string{"global", "%67lobal", "route:/", "route:*:GET", "k_", "h_", "*", "0.0.0.1", "\xff", "\xfe", "\xef\xbf\xbd"}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 3), func(b []byte) string { return string(b) }),
	)
}

func bucketKey(identity, scope string) string { return "ratelimit:{" + identity + "}:" + scope }

func TestNoTwoBucketsMeetInOneKey(t *testing.T) {
	t.Parallel()
	type bucket struct{ client, scope string }
	rapid.Check(t, func(t *rapid.T) {
		seen := make(map[string]bucket)
		for range 20 {
			c, s := clients().Draw(t, "client"), scopes().Draw(t, "scope")
			key, of := bucketKey(c.name, s.name), bucket{c.source, s.source}
			if other, taken := seen[key]; taken && other != of {
				t.Fatalf("%q and %q meet in %q", of, other, key)
			}
			seen[key] = of
			checkPlain(t, c.name)
			checkPlain(t, s.name)
		}
	})
}

// checkPlain holds for every identity and scope, so that neither a hash tag,
// a log line nor a terminal can be broken out of.
func checkPlain(t interface{ Errorf(string, ...any) }, name string) {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == '{' || c == '}' {
			t.Errorf("%q holds byte %#x", name, c)
		}
	}
}

func FuzzKeysNeverMeet(f *testing.F) {
	f.Add("a", "b:c", "a:b", "c")
	f.Add("a", "global", "a", "%67lobal")
	f.Add("a}:{b", "", "a", "{b}:")
	f.Add("\xff", "x", "\xfe", "x")
	f.Fuzz(func(t *testing.T, client1, zone1, client2, zone2 string) {
		type makeIdentity func(string) string
		hash := func(s string) string { return policy.HashIdentity(s) }
		var seen []string
		for _, identity := range []makeIdentity{policy.KeyIdentity, hash} {
			id1, id2 := identity(client1), identity(client2)
			scope1, scope2 := policy.ZoneScope(zone1), policy.ZoneScope(zone2)
			same := client1 == client2 && zone1 == zone2
			if key1, key2 := bucketKey(id1, scope1), bucketKey(id2, scope2); (key1 == key2) != same {
				t.Errorf("%q and %q of %q and %q: keys %q and %q", zone1, zone2, client1, client2, key1, key2)
			}
			for _, name := range []string{id1, id2, scope1, scope2} {
				checkPlain(t, name)
			}
			seen = append(seen, id1)
		}
		if seen[0] == seen[1] {
			t.Errorf("the key and the hash %q are one client", client1)
		}
	})
}
