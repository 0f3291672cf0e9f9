package policy

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/netip"
	"strings"
)

// An identity names a client in a bucket's key, and a scope the limit. Both are
// built by the functions below, so that no two different inputs meet in one
// key, no secret stands in one, and no input can break out of its place:
//
//	203.0.113.7, 2001:db8::/64   an address (AddressIdentity)
//	k_<id>                       an API key, by its id (KeyIdentity)
//	h_<hash>                     anything else (HashIdentity)
//	unknown                      an address that could not be read (AddressIdentity)
//	*                            everybody (SharedIdentity)
//
//	<zone>                       a zone of the Caddyfile (ZoneScope)
//	global                       a policy for every route (Route.Scope)
//	route:<path>[:<methods>]     a policy for one route (Route.Scope)
//
// Addresses hold colons but never a letter followed by an underscore, ids are
// escaped, hashes are base64url: the kinds cannot meet.

// SharedIdentity is the identity of a bucket that all clients share.
const SharedIdentity = "*"

// Prefix lengths that group addresses into one client. A single host commonly
// holds a whole IPv6 /64, so counting each of its addresses would count nothing.
const (
	DefaultIPv4Prefix = 32
	DefaultIPv6Prefix = 64
)

// AddressIdentity names a client by its address, cut to the prefix length of
// its family (IPv4 in IPv6 counts as IPv4). Whole addresses come without a
// length. Lengths out of range leave the address whole. The zero Addr, an
// address that could not be read, is "unknown": one client for all of them.
func AddressIdentity(addr netip.Addr, ipv4Prefix, ipv6Prefix int) string {
	if !addr.IsValid() {
		return "unknown"
	}
	addr = addr.Unmap().WithZone("")
	bits := ipv6Prefix
	if addr.Is4() {
		bits = ipv4Prefix
	}
	prefix, err := addr.Prefix(bits)
	if err != nil || bits == addr.BitLen() { // err: out of range
		return addr.String()
	}
	return prefix.String()
}

// KeyIdentity names a client by the id of its API key: a public name, never
// the key itself.
func KeyIdentity(id string) string { return "k_" + escape(id) }

// HashIdentity names a client by any text that may be a secret or hostile, in
// parts: ("a", "bc") and ("ab", "c") are different clients. It keeps 128 bits of
// SHA-256: enough that nobody can find a value that lands on another client's
// bucket; two values that somebody built to collide share a bucket, to their
// own loss.
func HashIdentity(parts ...string) string {
	buf := make([]byte, 0, 128)
	for _, p := range parts {
		buf = binary.AppendUvarint(buf, uint64(len(p)))
		buf = append(buf, p...)
	}
	sum := sha256.Sum256(buf)
	return "h_" + base64.RawURLEncoding.EncodeToString(sum[:16])
}

// globalScope is the scope of a policy for every route: the client's overall
// ceiling.
const globalScope = "global"

// ZoneScope names a zone in a bucket's key.
func ZoneScope(name string) string {
	scope := escape(name)
	if scope == globalScope { // a zone of that name is not the policies' ceiling
		return "%67" + scope[1:]
	}
	return scope
}

// escape percent-encodes every byte that has a meaning in keys or terminals,
// injectively, and leaves the usual names readable.
func escape(s string) string {
	const keep = "-._~/*@+!,="
	clean := func(c byte) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(keep, c) >= 0
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; clean(c) {
			b.WriteByte(c)
		} else {
			b.WriteString(string([]byte{'%', hex[c>>4], hex[c&15]}))
		}
	}
	return b.String()
}
