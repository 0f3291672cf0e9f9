package memorybackend

import "sort"

// family is the entries of one scope in a shard: the clients of one limit.
type family struct {
	scope string
	heap  idleHeap

	// Entries that were forgotten before they were idle are idle at this time.
	// Nobody can tell a newcomer of the scope from one of them, so it is in debt
	// until then.
	debt int64

	rank int     // in the shard's ranking
	next *family // in the ring of those that take turns
}

// owe remembers until when forgotten entries are in debt.
func (f *family) owe(until int64) { f.debt = max(f.debt, until) }

// settled reports whether nothing is known of the scope that is worth keeping.
func (f *family) settled(now int64) bool { return len(f.heap) == 0 && f.debt <= now }

// ranking orders families by how many entries they have, most first. Sizes change
// by one at a time, so a family changes places with the first or last of its equals.
type ranking []*family

func (r *ranking) add(f *family) {
	f.rank = len(*r)
	*r = append(*r, f)
}

// remove takes out a family without entries: they are all at the end.
func (r *ranking) remove(f *family) {
	last := len(*r) - 1
	r.swap(f.rank, last)
	(*r)[last] = nil
	*r = (*r)[:last]
}

func (r ranking) grew(f *family) {
	r.swap(f.rank, sort.Search(f.rank, func(i int) bool { return len(r[i].heap) < len(f.heap) }))
}

func (r ranking) shrank(f *family) {
	behind := r[f.rank+1:]
	r.swap(f.rank, f.rank+sort.Search(len(behind), func(i int) bool { return len(behind[i].heap) <= len(f.heap) }))
}

func (r ranking) swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].rank, r[j].rank = i, j
}
