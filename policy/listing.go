package policy

import (
	"iter"
	"maps"
	"slices"
)

// TierNames lists the tiers in the order of their names. Anonymous always is one.
func (s *Snapshot) TierNames() []string { return slices.Sorted(maps.Keys(s.tiers)) }

// All goes through all policies, each with the tier that it belongs to: empty for one
// of a single API key, whose client may be of any tier. Tiers come in the order of
// their names.
func (s *Snapshot) All() iter.Seq2[string, *Applied] {
	return func(yield func(string, *Applied) bool) {
		for _, name := range s.TierNames() {
			for _, p := range s.tiers[name].appendAll(nil) {
				if !yield(name, p) {
					return
				}
			}
		}
		for _, t := range s.keys {
			for _, p := range t.appendAll(nil) {
				if !yield("", p) {
					return
				}
			}
		}
	}
}
