package memorybackend

// idleHeap orders the entries of a family by when they may be forgotten,
// soonest first.
//
// It is lazy. Nearly every write makes an entry's expiry later, and moving the
// entry at each of them would cost more than the decision. So its key in the
// heap stays as it is, a lower bound of the true one, and is put right when it
// comes to the top. Only an expiry that became earlier (the limit was changed)
// is put right at once, for which each entry knows its position.
type idleHeap []heapItem

type heapItem struct {
	due   int64 // at most the entry's expiry
	entry *entry
}

func (h *idleHeap) push(e *entry) {
	*h = append(*h, heapItem{e.expiry(), e})
	h.up(len(*h) - 1)
}

// advance moves a stale top to its place and reports whether it was stale.
func (h idleHeap) advance() bool {
	expiry := h[0].entry.expiry()
	if expiry <= h[0].due {
		return false
	}
	h[0].due = expiry
	h.down(0)
	return true
}

// pop removes the top.
func (h *idleHeap) pop() *entry {
	old := *h
	top := old[0].entry
	last := len(old) - 1
	old[0] = old[last]
	old[last] = heapItem{}
	*h = old[:last]
	if last > 0 {
		h.down(0)
	}
	return top
}

// sooner moves an entry up if its expiry became earlier than its key.
func (h idleHeap) sooner(e *entry) {
	if expiry := e.expiry(); expiry < h[e.position].due {
		h[e.position].due = expiry
		h.up(int(e.position))
	}
}

func (h idleHeap) up(i int) {
	item := h[i]
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].due <= item.due {
			break
		}
		h.place(i, h[parent])
		i = parent
	}
	h.place(i, item)
}

func (h idleHeap) down(i int) {
	item := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if right := child + 1; right < len(h) && h[right].due < h[child].due {
			child = right
		}
		if item.due <= h[child].due {
			break
		}
		h.place(i, h[child])
		i = child
	}
	h.place(i, item)
}

func (h idleHeap) place(i int, item heapItem) {
	h[i] = item
	item.entry.position = int32(i)
}
