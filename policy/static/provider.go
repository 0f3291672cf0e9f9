package static

import (
	"context"
	"errors"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
	"github.com/caddy-tollgate/ratelimit/policy"
)

func init() { caddy.RegisterModule(new(Provider)) }

// Provider knows the tiers, policies and API keys that the configuration
// spells out. It never changes while a configuration runs.
type Provider struct {
	// The service levels, at least one, each under a name of its own. A client
	// without a known API key is in the tier "anonymous"; if that tier is not
	// here, or has no policy for the route "*", it is limited to 30/1m in all.
	Tiers []Tier `json:"tiers,omitempty"`

	// The API keys, each under a name and with a hash of its own. None means
	// that every client without a token is anonymous.
	APIKeys []APIKey `json:"api_keys,omitempty"`

	snapshot *policy.Snapshot
	keys     *keyring
}

// CaddyModule names the module to Caddy.
func (*Provider) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "rate_limit.providers.static",
		New: func() caddy.Module { return new(Provider) },
	}
}

// Provision checks the configuration and compiles it. Its error names the
// tier, policy or key that is wrong and says what to write.
func (p *Provider) Provision(caddy.Context) error {
	if err := p.checkTiers(); err != nil {
		return err
	}
	snapshot, err := compile(p.Tiers)
	if err != nil {
		return err
	}
	keys := newKeyring()
	for _, k := range p.APIKeys {
		if err := keys.add(k); err != nil {
			return err
		}
		if err := p.checkTierOf(k); err != nil {
			return err
		}
	}
	p.snapshot, p.keys = snapshot, keys
	return nil
}

// Snapshot returns the compiled tiers and policies: the same one for as long
// as the configuration runs.
func (p *Provider) Snapshot() *policy.Snapshot { return p.snapshot }

// APIKey finds a key by the SHA-256 of what the client presented. It reports
// false for a key that the configuration does not hold. It never waits.
//
// The look-up is by hash, so its timing can tell at most about hashes, and
// nobody can choose a key by the hash it will have.
func (p *Provider) APIKey(_ context.Context, sum [32]byte) (policy.APIKey, bool) {
	k, ok := p.keys.find(sum)
	if ok {
		metrics.CountLookUp(metrics.LookUpHit)
	} else {
		metrics.CountLookUp(metrics.LookUpNegative)
	}
	return k, ok
}

func (p *Provider) checkTiers() error {
	if len(p.Tiers) == 0 {
		return errors.New("the static provider has no tiers; write at least one, like tier anonymous { policy * 30/1m }")
	}
	for _, t := range p.Tiers {
		if err := t.check(); err != nil {
			return err
		}
	}
	return nil
}

// Interface guards
var (
	_ caddy.Module          = (*Provider)(nil)
	_ caddy.Provisioner     = (*Provider)(nil)
	_ caddyfile.Unmarshaler = (*Provider)(nil)
)
