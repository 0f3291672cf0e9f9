package topk

import (
	"cmp"
	"slices"
)

// Entry is how often a key occurred. AtLeast and AtMost are equal while there are
// no more keys than counters.
type Entry[K comparable] struct {
	Key             K
	AtLeast, AtMost int64
}

// Summary is what sketches have counted. Its zero value is empty.
type Summary[K comparable] struct {
	entries []Entry[K]
	floor   int64 // the most that any other key occurred
}

// merge adds what a sketch counted in another part of the stream, and keeps the
// sketch's number of entries.
func (s *Summary[K]) merge(sketch *Sketch[K]) {
	other := Summary[K]{floor: sketch.floor(), entries: make([]Entry[K], len(sketch.counters))}
	for i, c := range sketch.counters {
		other.entries[i] = Entry[K]{Key: c.key, AtLeast: c.count - c.before, AtMost: c.count}
	}
	s.add(&other)
	s.trim(sketch.most)
}

// add adds another part of the stream, in which the same keys may have occurred.
func (s *Summary[K]) add(other *Summary[K]) {
	if len(other.entries) == 0 {
		return
	}
	theirs := make(map[K]Entry[K], len(other.entries))
	for _, e := range other.entries {
		theirs[e.Key] = e
	}
	sum := make([]Entry[K], 0, len(s.entries)+len(other.entries))
	for _, e := range s.entries {
		if t, ok := theirs[e.Key]; ok {
			e.AtLeast, e.AtMost = e.AtLeast+t.AtLeast, e.AtMost+t.AtMost
			delete(theirs, e.Key)
		} else {
			e.AtMost += other.floor
		}
		sum = append(sum, e)
	}
	for _, e := range other.entries {
		if _, ok := theirs[e.Key]; ok { // not met above
			e.AtMost += s.floor
			sum = append(sum, e)
		}
	}
	s.entries, s.floor = sum, s.floor+other.floor
}

// trim keeps the most frequent entries.
func (s *Summary[K]) trim(most int) {
	if len(s.entries) <= most {
		return
	}
	slices.SortFunc(s.entries, func(a, b Entry[K]) int { return cmp.Compare(b.AtMost, a.AtMost) })
	s.floor = max(s.floor, s.entries[most].AtMost)
	clear(s.entries[most:])
	s.entries = slices.Clip(s.entries[:most])
}

// join adds a summary of other keys: none of them occurred in both.
func (s *Summary[K]) join(other Summary[K]) {
	s.entries = append(s.entries, other.entries...)
	s.floor = max(s.floor, other.floor)
}

// Top returns the n most frequent entries, by what is certain of them, the most
// frequent first.
func (s *Summary[K]) Top(n int) []Entry[K] {
	top := slices.Clone(s.entries)
	slices.SortStableFunc(top, func(a, b Entry[K]) int {
		return cmp.Or(cmp.Compare(b.AtLeast, a.AtLeast), cmp.Compare(b.AtMost, a.AtMost))
	})
	return top[:min(n, len(top))]
}
