package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Compile makes the snapshot of what a store holds.
func Compile(tiers []TierRecord, policies []PolicyRecord) (*Snapshot, error) {
	compiled := make([]Tier, len(tiers))
	index := make(map[string]int, len(tiers))
	for i, t := range tiers {
		compiled[i].Name, index[t.Name] = t.Name, i
	}
	var ofKeys []Policy
	for _, p := range policies {
		if p.APIKeyID != "" {
			ofKeys = append(ofKeys, p.Policy)
			continue
		}
		i, ok := index[p.Tier]
		if !ok {
			return nil, fmt.Errorf("policy %s: %w", p.ID, UnknownTier(p.Tier, nil))
		}
		compiled[i].Policies = append(compiled[i].Policies, p.Policy)
	}
	return NewSnapshot(compiled, ofKeys)
}

// Strictest is the snapshot of a store of which nothing is known: every client
// has the built-in limit of anonymous ones.
func Strictest() *Snapshot {
	s, err := NewSnapshot(nil, nil)
	if err != nil {
		panic(errors.Join(errors.New("the built-in limit is wrong"), err))
	}
	return s
}

// Sound is what of the rows of a database can be used. Nobody keeps others from
// writing what no store would.
type Sound struct {
	Snapshot *Snapshot
	Policies []PolicyRecord // those that apply, with what stands in for refused ones
	Refused  []Refused
}

// Refused is a stored policy that cannot be used.
type Refused struct {
	ID      string
	Version int64
	Err     error  // what is wrong, and what to write
	Instead string // what applies in its place, for people
}

// CompileSound compiles the policies that can be used. In the place of one that
// cannot, the policy applies that was used before under its id or for its route,
// or else the strictest built-in limit, for every method if its methods cannot be
// read: a row that is refused never loosens a limit. Only a row whose route
// cannot be read, and that was never used, has nothing in its place: it limits
// no request. Of two policies for one route the one that was used before stays.
func CompileSound(tiers []TierRecord, stored, before []PolicyRecord) (*Sound, error) {
	c := &soundCompiler{taken: make(map[ownedScope]string), before: before}
	ordered := slices.Clone(stored)
	slices.SortStableFunc(ordered, func(a, b PolicyRecord) int { return cmp.Compare(c.age(a), c.age(b)) })
	var wrong []PolicyRecord
	for _, p := range ordered {
		if err := c.use(p); err != nil {
			wrong = append(wrong, p)
			c.sound.Refused = append(c.sound.Refused, Refused{ID: p.ID, Version: p.Version, Err: err})
		}
	}
	for i, p := range wrong {
		c.sound.Refused[i].Instead = c.replace(p)
	}
	var err error
	c.sound.Snapshot, err = Compile(tiers, c.sound.Policies)
	return &c.sound, err
}

// soundCompiler collects what can be used.
type soundCompiler struct {
	sound  Sound
	before []PolicyRecord
	taken  map[ownedScope]string // by the id of a policy
}

// ownedScope is what there is one policy for.
type ownedScope struct{ tier, key, scope string }

func (p Policy) owned() ownedScope { return ownedScope{p.Tier, p.APIKeyID, p.Scope()} }

// age puts those that were used before first.
func (c *soundCompiler) age(p PolicyRecord) int {
	if slices.ContainsFunc(c.before, func(b PolicyRecord) bool { return b.ID == p.ID && b.owned() == p.owned() }) {
		return 0
	}
	return 1
}

// use takes a policy if it can be used.
func (c *soundCompiler) use(p PolicyRecord) (err error) {
	if p.Policy, err = CheckPolicy(p.Policy); err != nil {
		return err
	}
	if other, ok := c.taken[p.owned()]; ok {
		return RouteTaken(p.Policy, other)
	}
	c.taken[p.owned()] = p.ID
	c.sound.Policies = append(c.sound.Policies, p)
	return nil
}

// replace takes what applies in the place of a policy that cannot be used, and
// says what that is.
func (c *soundCompiler) replace(p PolicyRecord) string {
	if old, ok := c.last(p); ok && c.use(old) == nil {
		return fmt.Sprintf("what applied before: %s %s", old.place(), old.Limit)
	}
	methods := [][]string{p.Methods, nil}
	for _, m := range methods {
		s := p
		s.Methods, s.Limit, s.Algorithm, s.Cost, s.Mode, s.OnError = m, strictest.Limit, TokenBucket, strictest.Cost, Enforce, ""
		if other, ok := c.taken[s.owned()]; ok && s.Scope() != "" {
			return "the policy " + other
		}
		if c.use(s) == nil {
			return fmt.Sprintf("the strictest built-in limit: %s %s", s.place(), s.Limit)
		}
	}
	return "nothing, since no request can be on its route"
}

// last is the policy that was used before under the id, or for the route.
func (c *soundCompiler) last(p PolicyRecord) (PolicyRecord, bool) {
	i := slices.IndexFunc(c.before, func(b PolicyRecord) bool { return b.ID == p.ID })
	if i < 0 && p.Scope() != "" {
		i = slices.IndexFunc(c.before, func(b PolicyRecord) bool { return b.owned() == p.owned() })
	}
	if i < 0 {
		return PolicyRecord{}, false
	}
	old := c.before[i]
	old.ID, old.Tier, old.APIKeyID = p.ID, p.Tier, p.APIKeyID // its tier may have another name now
	return old, true
}
