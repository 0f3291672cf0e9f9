package ratelimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Placeholders that a key treats as what they are, not as text.
const (
	clientIPVar    = "http.vars.client_ip"
	remoteHostVar  = "http.request.remote.host"
	identityVar    = "http.rate_limit.identity"
	defaultZoneKey = "{" + clientIPVar + "}"
)

// What a zone does with a request whose key comes out empty; any other text is
// the key in its place.
const (
	missingAddress = "address"
	missingSkip    = "skip"
	missingReject  = "reject"
)

// keyTemplate makes the identity of a zone's bucket from a request. Values of
// placeholders become an identity one by one and hashed, so that no value, and no
// boundary between two values, can be chosen to meet another client's bucket.
// Addresses are cut to the zone's prefix lengths wherever they stand in the key.
type keyTemplate struct {
	text       string
	only       string // the placeholder that is the whole key, if one is
	shared     bool   // no placeholders: one bucket for all
	missing    string
	ipv4, ipv6 int
}

var wholePlaceholder = regexp.MustCompile(`^\{([^{}]+)\}$`)

func newKeyTemplate(text, missing string, ipv4, ipv6 int) (keyTemplate, error) {
	if text == "" {
		text = defaultZoneKey
	}
	if missing == "" {
		missing = missingAddress
	}
	k := keyTemplate{text: text, missing: missing, ipv4: ipv4, ipv6: ipv6}
	if strings.Contains(missing, "{") {
		return k, fmt.Errorf("missing_key %q has a placeholder, but it is a text, the same for all; write address to count by address, skip or reject", missing)
	}
	if strings.Count(text, "{") != strings.Count(text, "}") && !strings.Contains(text, `\`) {
		return k, fmt.Errorf("key %q has a brace without its partner; write placeholders like {client_ip}", text)
	}
	names, err := placeholders(text)
	if err == nil {
		err = checkPlaceholders(text)
	}
	if err != nil {
		return k, fmt.Errorf("key: %w", err)
	}
	k.shared = len(names) == 0
	if m := wholePlaceholder.FindStringSubmatch(text); m != nil {
		k.only = m[1]
	}
	return k, nil
}

// isAddress reports whether a placeholder is the address of a client.
func isAddress(variable string) bool {
	return variable == clientIPVar || variable == remoteHostVar
}

// keyResult says what became of a key.
type keyResult int

const (
	keyFound  keyResult = iota
	keySkip             // the zone does not count this request
	keyReject           // the request must say its key
)

// identity makes the identity of the request's bucket.
func (k *keyTemplate) identity(e *evaluation) (string, keyResult) {
	switch {
	case k.shared:
		return policy.SharedIdentity, keyFound
	case k.only == clientIPVar:
		return e.address.identity(k.ipv4, k.ipv6), keyFound
	case k.only == identityVar:
		return e.report.identity(), keyFound
	case k.only != "":
		return k.identityOfOnly(e)
	}
	parts, filled := k.values(e.r, e.repl)
	switch {
	case filled == len(parts):
		return policy.HashIdentity(parts...), keyFound
	case filled > 0 && k.missing == missingAddress:
		return policy.HashIdentity(append(parts, e.address.identity(k.ipv4, k.ipv6))...), keyFound
	case filled > 0:
		return policy.HashIdentity(parts...), keyFound
	}
	return k.whenMissing(e, parts)
}

// identityOfOnly is identity for a key that is one placeholder, which needs no parsing.
func (k *keyTemplate) identityOfOnly(e *evaluation) (string, keyResult) {
	value, _ := e.repl.Get(k.only)
	switch text := k.value(e.r, k.only, value); {
	case text == "":
		return k.whenMissing(e, []string{""})
	case isAddress(k.only):
		return text, keyFound // it was cut already
	default:
		return policy.HashIdentity(text), keyFound
	}
}

// whenMissing answers for a key of which all parts are empty.
func (k *keyTemplate) whenMissing(e *evaluation, parts []string) (string, keyResult) {
	switch k.missing {
	case missingAddress:
		return e.address.identity(k.ipv4, k.ipv6), keyFound
	case missingSkip:
		return "", keySkip
	case missingReject:
		return "", keyReject
	}
	// one part more than any request's values make, so none of those meets it
	return policy.HashIdentity(append(parts, k.missing)...), keyFound
}

// values returns the values of the key's placeholders, in order, and how many of
// them are not empty.
func (k *keyTemplate) values(r *http.Request, repl *caddy.Replacer) (parts []string, filled int) {
	_, _ = repl.ReplaceFunc(k.text, func(variable string, value any) (any, error) {
		text := k.value(r, variable, value)
		if text != "" {
			filled++
		}
		parts = append(parts, text)
		return "", nil
	})
	return parts, filled
}

// value is the text of a placeholder that the key is made of.
func (k *keyTemplate) value(r *http.Request, variable string, value any) string {
	text := caddy.ToString(value)
	switch {
	case isAddress(variable):
		return k.cut(text)
	case describesNobody(r, variable):
		return ""
	}
	return text
}

// cut shortens an address to the zone's prefix lengths, and leaves other text.
func (k *keyTemplate) cut(text string) string {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	return policy.AddressIdentity(addr, k.ipv4, k.ipv6)
}
