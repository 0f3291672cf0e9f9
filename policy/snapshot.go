package policy

import (
	"fmt"
	"slices"
	"time"
)

// Anonymous is the tier of every client that no valid API key or token names.
const Anonymous = "anonymous"

// strictest is what anonymous clients get when nobody configured their ceiling:
// they are never unlimited.
var strictest = Policy{Tier: Anonymous, Route: "*", Limit: Limit{Count: 30, Window: time.Minute}, Cost: 1}

// Policy is what a tier, or one API key, gets on a route.
type Policy struct {
	ID        string
	Tier      string // of the tier; or
	APIKeyID  string // of this API key, in place of its tier's policy for the same route
	Route     string // as NewRoute reads it
	Methods   []string
	Limit     Limit
	Algorithm Algorithm // empty is TokenBucket
	Cost      int64     // units that one request takes; 0 only looks
	Mode      Mode      // empty is Enforce
	OnError   OnError   // empty is the handler's
}

// Tier is a named service level.
type Tier struct {
	Name     string
	Policies []Policy
}

// Client is who sends a request, as far as policies care.
type Client struct {
	// Identity is the identity of the client's buckets.
	Identity string
	// Tier is the name of its tier.
	Tier string
	// APIKeyID is the id of its API key; empty if it has none.
	APIKeyID string
}

// APIKey is what a provider knows of an API key. The key itself is not in it.
type APIKey struct {
	ID   string // public; names the key in buckets, logs and the admin API
	Tier string
}

// Applied is a policy made ready for requests.
type Applied struct {
	Policy
	Name   string // what headers, logs and errors call it: "FREE /login POST"
	Series string // what metrics call it: its name without the id of an API key
	Scope  string
	Rule   *Rule
	route  Route
}

// Snapshot is an immutable set of tiers and policies, compiled for look-up.
// Providers swap it whole.
type Snapshot struct {
	tiers map[string]*table
	keys  map[string]*table
}

// table holds the policies of one tier or API key.
type table struct {
	ceiling *Applied   // for every route; nil if there is none
	routes  []*Applied // the others, most specific first
}

// NewSnapshot compiles tiers and the policies of single API keys. The tier
// anonymous always has a ceiling: without one of its own, 30/1m. Its error
// names the policy that is wrong.
func NewSnapshot(tiers []Tier, keyPolicies []Policy) (*Snapshot, error) {
	s := &Snapshot{tiers: make(map[string]*table), keys: make(map[string]*table)}
	for _, t := range tiers {
		if err := CheckTierName(t.Name); err != nil {
			return nil, err
		}
		if s.tiers[t.Name] != nil {
			return nil, fmt.Errorf("tier %s is defined twice; write all its policies in one place", t.Name)
		}
		s.tiers[t.Name] = new(table)
		for _, p := range t.Policies {
			p.Tier = t.Name
			if err := s.tiers[t.Name].add(t.Name, p); err != nil {
				return nil, fmt.Errorf("tier %s: %w", t.Name, err)
			}
		}
	}
	for _, p := range keyPolicies {
		if p.APIKeyID == "" {
			return nil, fmt.Errorf("policy %s names no API key; write its api_key_id, or put it into a tier", p.place())
		}
		if s.keys[p.APIKeyID] == nil {
			s.keys[p.APIKeyID] = new(table)
		}
		if err := s.keys[p.APIKeyID].add("api_key "+p.APIKeyID, p); err != nil {
			return nil, fmt.Errorf("api_key %s: %w", p.APIKeyID, err)
		}
	}
	if err := s.ensureAnonymous(); err != nil {
		return nil, err
	}
	for _, tables := range []map[string]*table{s.tiers, s.keys} {
		for _, t := range tables {
			t.sort()
		}
	}
	return s, nil
}

// CheckTierName reports a name that a tier cannot have.
func CheckTierName(name string) error {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return fmt.Errorf("tier %q: a name is printable ASCII without spaces, quotes and backslashes, like FREE", name)
		}
	}
	if name == "" || len(name) > 64 {
		return fmt.Errorf("tier %q: a name has 1 to 64 characters, like FREE", name)
	}
	return nil
}

func (s *Snapshot) ensureAnonymous() error {
	t := s.tiers[Anonymous]
	if t == nil {
		t = new(table)
		s.tiers[Anonymous] = t
	}
	if t.ceiling != nil {
		return nil
	}
	return t.add(Anonymous, strictest)
}

// HasTier reports whether the snapshot defines a tier. Anonymous always is.
func (s *Snapshot) HasTier(name string) bool { return s.tiers[name] != nil }

// AppendMatches appends to dst the policies that apply to a request: the
// ceiling of the client's tier, and of the others the most specific one that
// matches. A policy of the client's own API key replaces its tier's for the
// same route, unless it is in shadow and the tier's is not. A tier that the snapshot does not know counts as anonymous.
// The path is one that CleanPath returned.
func (s *Snapshot) AppendMatches(dst []*Applied, c Client, method, path string) []*Applied {
	tier := s.tiers[c.Tier]
	if tier == nil {
		tier = s.tiers[Anonymous]
	}
	ceiling, special := tier.ceiling, tier.find(method, path)
	if own := s.keys[c.APIKeyID]; own != nil && c.APIKeyID != "" {
		if own.ceiling != nil && own.ceiling.replaces(ceiling) {
			ceiling = own.ceiling
		}
		if p := own.find(method, path); p != nil && p.goesBefore(special) {
			special = p
		}
	}
	if special != nil {
		dst = append(dst, special)
	}
	if ceiling != nil {
		dst = append(dst, ceiling)
	}
	return dst
}

// goesBefore reports whether an API key's own policy applies rather than its tier's:
// the more specific one does.
func (p *Applied) goesBefore(tiers *Applied) bool {
	if tiers == nil {
		return true
	}
	order := moreSpecific(p.route, tiers.route)
	return order < 0 || order == 0 && p.replaces(tiers)
}

// replaces reports whether an API key's own policy takes the place of its tier's for
// the same route. One in shadow, which refuses nobody, would lift a limit so.
func (p *Applied) replaces(tiers *Applied) bool {
	return tiers == nil || p.Mode != Shadow || tiers.Mode == Shadow
}

func (t *table) find(method, path string) *Applied {
	for _, p := range t.routes {
		if p.route.match(method, path) {
			return p
		}
	}
	return nil
}

func (t *table) add(owner string, p Policy) error {
	applied, err := p.apply(owner)
	if err != nil {
		return fmt.Errorf("policy %s: %w", p.place(), err)
	}
	taken := t.ceiling != nil && applied.Scope == t.ceiling.Scope ||
		slices.ContainsFunc(t.routes, func(o *Applied) bool { return o.Scope == applied.Scope })
	if taken {
		return fmt.Errorf("two policies for %s; a route takes one, so merge them or make one route more specific", applied.route)
	}
	if applied.route.everything() {
		t.ceiling = applied
		return nil
	}
	t.routes = append(t.routes, applied)
	return nil
}

func (t *table) sort() {
	slices.SortFunc(t.routes, func(a, b *Applied) int { return moreSpecific(a.route, b.route) })
}

// place names the policy as a configuration does: "/login POST".
func (p Policy) place() string {
	return Route{Path: p.Route, Methods: p.Methods}.String()
}

// apply checks a policy, fills its defaults in and compiles it.
func (p Policy) apply(owner string) (*Applied, error) {
	route, err := NewRoute(p.Route, p.Methods...)
	if err != nil {
		return nil, err
	}
	if p.Algorithm, err = ParseAlgorithm(string(p.Algorithm)); err != nil {
		return nil, err
	}
	if p.Mode, err = ParseMode(string(p.Mode)); err != nil {
		return nil, err
	}
	if p.OnError != "" {
		if _, err := ParseOnError(string(p.OnError)); err != nil {
			return nil, err
		}
	}
	rule, err := NewRule(p.Limit, p.Algorithm)
	if err != nil {
		return nil, err
	}
	if err := rule.CheckCost(p.Cost); err != nil {
		return nil, err
	}
	p.Methods = route.Methods // the caller's slice stays the caller's
	name := owner + " " + route.String()
	series := name
	if p.APIKeyID != "" {
		series = "api_key " + route.String()
	}
	return &Applied{Policy: p, Name: name, Series: series, Scope: route.Scope(), Rule: rule, route: route}, nil
}
