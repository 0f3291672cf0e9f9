package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Match says of one policy of a client whether it applies to a request, and
// why.
type Match struct {
	*Applied
	Applies bool
	Why     string // a sentence's predicate: "is the tier's ceiling"
}

// Explain lists every policy of a client: first those that apply to a request,
// exactly those that AppendMatches returns, then the others, each with its
// reason. The path is one that CleanPath returned.
func (s *Snapshot) Explain(c Client, method, path string) []Match {
	applied := s.AppendMatches(nil, c, method, path)
	var matches []Match
	for _, p := range applied {
		matches = append(matches, Match{p, true, p.whyApplies()})
	}
	for _, p := range s.policiesOf(c) {
		if !slices.Contains(applied, p) {
			matches = append(matches, Match{p, false, p.whyNot(applied, method, path)})
		}
	}
	return matches
}

// AppendPolicies appends to dst the policies that apply to some request of the
// client: those of its API key, and those of its tier that they do not replace.
func (s *Snapshot) AppendPolicies(dst []*Applied, c Client) []*Applied {
	all := s.policiesOf(c)
	for _, p := range all {
		if !slices.ContainsFunc(all, p.yieldsTo) {
			dst = append(dst, p)
		}
	}
	return dst
}

// yieldsTo reports whether another policy of the client applies in the place of p.
func (p *Applied) yieldsTo(other *Applied) bool {
	switch {
	case p.Scope != other.Scope || (p.APIKeyID == "") == (other.APIKeyID == ""):
		return false
	case p.APIKeyID != "":
		return !p.replaces(other)
	}
	return other.replaces(p)
}

// policiesOf lists the policies of the client's API key, then those of its tier;
// the ceilings first, then the most specific.
func (s *Snapshot) policiesOf(c Client) (all []*Applied) {
	if own := s.keys[c.APIKeyID]; own != nil && c.APIKeyID != "" {
		all = own.appendAll(all)
	}
	tier := s.tiers[c.Tier]
	if tier == nil {
		tier = s.tiers[Anonymous]
	}
	return tier.appendAll(all)
}

func (t *table) appendAll(dst []*Applied) []*Applied {
	if t.ceiling != nil {
		dst = append(dst, t.ceiling)
	}
	return append(dst, t.routes...)
}

func (p *Applied) whyApplies() string {
	owner := "tier's"
	if p.APIKeyID != "" {
		owner = "API key's own"
	}
	if p.route.everything() {
		return "is the " + owner + " ceiling, which every request counts against"
	}
	return "is the most specific policy that matches; the " + owner
}

func (p *Applied) whyNot(applied []*Applied, method, path string) string {
	switch {
	case p.APIKeyID != "" && slices.ContainsFunc(applied, p.yieldsTo):
		return "is in shadow, and replaces no policy of the tier that is enforced"
	case p.route.everything():
		return "is replaced by the API key's own ceiling"
	case !matchPath(p.route.Path, path):
		return fmt.Sprintf("does not match the path %s", path)
	case !p.route.match(method, path):
		return fmt.Sprintf("is only for %s", strings.Join(p.Methods, ", "))
	case applied[0].Scope == p.Scope:
		return "is replaced by the API key's own policy for the same route"
	}
	return fmt.Sprintf("matches, but %s is more specific", applied[0].Name)
}
