package static

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Tier is a named service level.
type Tier struct {
	// Its name, like FREE: 1 to 64 printable ASCII characters without spaces,
	// quotes and backslashes. Case matters. Required.
	Name string `json:"name"`

	// What its clients get, at least one, each for a route of its own. A tier
	// without a policy for the route "*" limits nothing but the routes that it
	// names.
	Policies []Policy `json:"policies"`
}

// Policy is what a tier gets on a route.
type Policy struct {
	// A path pattern as Caddy's path matcher reads it, like /orders/*; or "*"
	// for every route, which without methods is the client's overall ceiling.
	// Required.
	Route string `json:"route"`

	// The methods it applies to, in capitals. None means all.
	Methods []string `json:"methods,omitempty"`

	// Units per window. Required; 0 denies everything.
	Limit *int64 `json:"limit"`

	// The length of the window, from 1ms to 366d. Required.
	Window caddy.Duration `json:"window"`

	// The most units at once. 0 means as many as the limit.
	Burst int64 `json:"burst,omitempty"`

	// How long a request may wait for its turn, up to 10m; of algorithm
	// leaky_bucket alone. 0 means that none waits.
	MaxDelay caddy.Duration `json:"max_delay,omitempty"`

	// How the limit is counted. Default: token_bucket.
	Algorithm policy.Algorithm `json:"algorithm,omitempty"`

	// Units that one request takes. Default: 1; 0 only looks.
	Cost *int64 `json:"cost,omitempty"`

	// enforce refuses requests over the limit, shadow only counts and reports
	// them. Default: enforce.
	Mode policy.Mode `json:"mode,omitempty"`

	// What happens while the backend cannot decide: open, closed or local.
	// Default: as the handler says.
	OnError policy.OnError `json:"on_error,omitempty"`
}

// check reports what compile could not see any more.
func (t Tier) check() error {
	if err := policy.CheckTierName(t.Name); err != nil {
		return err
	}
	if len(t.Policies) == 0 {
		return fmt.Errorf("tier %s has no policies; write at least one, like policy * 600/1m", t.Name)
	}
	for _, p := range t.Policies {
		if p.Limit == nil {
			return fmt.Errorf("tier %s: policy %s: %w", t.Name, p.Route, errNoLimit)
		}
	}
	return nil
}

var errNoLimit = errors.New(`limit is missing; write "limit": 100, or "limit": 0 to deny everything`)

// compile turns checked tiers into a snapshot.
func compile(tiers []Tier) (*policy.Snapshot, error) {
	compiled := make([]policy.Tier, len(tiers))
	for i, t := range tiers {
		compiled[i].Name = t.Name
		for _, p := range t.Policies {
			compiled[i].Policies = append(compiled[i].Policies, p.policy(t.Name))
		}
	}
	return policy.NewSnapshot(compiled, nil)
}

// policy fills in the default cost and an id that is made of the tier and the
// route, so that it stays the same over reloads. The other defaults are the
// vocabulary's.
func (p Policy) policy(tier string) policy.Policy {
	cost := int64(1)
	if p.Cost != nil {
		cost = *p.Cost
	}
	filled := policy.Policy{
		Tier:      tier,
		Route:     p.Route,
		Methods:   p.Methods,
		Limit:     policy.Limit{Count: *p.Limit, Window: time.Duration(p.Window), Burst: p.Burst, MaxDelay: time.Duration(p.MaxDelay)},
		Algorithm: p.Algorithm,
		Cost:      cost,
		Mode:      p.Mode,
		OnError:   p.OnError,
	}
	if scope := filled.Scope(); scope != "" { // else the route is refused
		filled.ID = strings.Replace(policy.HashIdentity(tier, scope), "h_", "p_", 1)
	}
	return filled
}
