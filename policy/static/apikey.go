package static

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// APIKey is one client's key, known by its hash.
type APIKey struct {
	// Its public id, used in logs and in the backend's keys: 1 to 64 printable
	// ASCII characters without spaces. Case matters. Required.
	Name string `json:"name"`

	// The SHA-256 of the key, as 64 hexadecimal digits:
	// printf %s "$KEY" | sha256sum. Required.
	SHA256 string `json:"sha256"`

	// The tier it belongs to: one of the provider's, or anonymous. Required.
	Tier string `json:"tier"`
}

// sum decodes the hash. Its errors never repeat what was written: it may be
// the key itself.
func (k APIKey) sum() (sum [32]byte, err error) {
	const how = `hash the key with printf %s "$KEY" | sha256sum and write the 64 hexadecimal digits it prints`
	b, err := hex.DecodeString(k.SHA256)
	switch {
	case strings.HasPrefix(k.SHA256, "{"):
		return sum, fmt.Errorf("api_key %s: a hash takes no placeholders; write it out, or {$NAME} in a Caddyfile for the environment variable NAME", k.Name)
	case err != nil || len(b) != len(sum):
		return sum, fmt.Errorf("api_key %s: what should be its SHA-256 is not one; write a hash, never the key: %s", k.Name, how)
	case [32]byte(b) == sha256.Sum256(nil):
		return sum, fmt.Errorf("api_key %s: this is the SHA-256 of nothing, so the variable was empty when it was hashed; %s", k.Name, how)
	}
	return [32]byte(b), nil
}

func checkKeyName(name string) error {
	outside := func(c rune) bool { return c <= ' ' || c >= 0x7f }
	if name == "" || len(name) > 64 || strings.ContainsFunc(name, outside) {
		return fmt.Errorf("api_key %q: a name is 1 to 64 printable ASCII characters without spaces, like acme", name)
	}
	return nil
}

// keyring finds keys by the SHA-256 of what a client presents.
type keyring struct {
	bySum  map[[32]byte]policy.APIKey
	byName map[string]bool
}

func newKeyring() *keyring {
	return &keyring{bySum: make(map[[32]byte]policy.APIKey), byName: make(map[string]bool)}
}

// add checks everything about a key but its tier, which may not be known yet.
func (r *keyring) add(k APIKey) error {
	if err := checkKeyName(k.Name); err != nil {
		return err
	}
	if r.byName[k.Name] {
		return fmt.Errorf("api_key %s is defined twice; a second key of one client takes a name of its own, like %s-2", k.Name, k.Name)
	}
	sum, err := k.sum()
	if err != nil {
		return err
	}
	if other, taken := r.bySum[sum]; taken {
		return fmt.Errorf("api_key %s has the same hash as api_key %s; give each a key of its own, or delete one", k.Name, other.ID)
	}
	r.byName[k.Name] = true
	r.bySum[sum] = policy.APIKey{ID: k.Name, Tier: k.Tier}
	return nil
}

func (r *keyring) find(sum [32]byte) (policy.APIKey, bool) {
	k, ok := r.bySum[sum]
	return k, ok
}

// checkTierOf reports a key whose tier nobody defined.
func (p *Provider) checkTierOf(k APIKey) error {
	names := make([]string, len(p.Tiers))
	for i, t := range p.Tiers {
		names[i] = t.Name
	}
	if k.Tier == policy.Anonymous || slices.Contains(names, k.Tier) {
		return nil
	}
	return fmt.Errorf("api_key %s: there is no tier %q; define it, or write one of: %s", k.Name, k.Tier, strings.Join(names, ", "))
}
