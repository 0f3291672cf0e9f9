package topk

// Sketch counts the occurrences of keys, by a fixed number of counters. It is not
// safe for concurrent use.
type Sketch[K comparable] struct {
	most     int
	counters []counter[K]
	index    map[K]int // where a key's counter is

	// Which counters there are, the one with the smallest count first, and where in
	// heap each counter is. Moving a counter there moves two numbers.
	heap   []int
	places []int
}

// counter is how often a key occurred: at most count times, and at least
// count-before.
type counter[K comparable] struct {
	key    K
	count  int64
	before int64
}

// NewSketch makes an empty sketch of so many counters.
func NewSketch[K comparable](counters int) *Sketch[K] {
	return &Sketch[K]{
		most: counters, counters: make([]counter[K], 0, counters), index: make(map[K]int, counters),
		heap: make([]int, 0, counters), places: make([]int, 0, counters),
	}
}

// Add counts occurrences, which follow one another. Once all counters are in use, it
// allocates nothing.
func (s *Sketch[K]) Add(key K, times int64) {
	i, ok := s.index[key]
	switch {
	case ok:
		s.counters[i].count += times
	case len(s.counters) < s.most:
		s.append(key, times)
		return
	default:
		i = s.heap[0]
		smallest := s.counters[i].count
		delete(s.index, s.counters[i].key)
		s.counters[i] = counter[K]{key: key, count: smallest + times, before: smallest}
		s.index[key] = i
	}
	s.down(s.places[i])
}

// append takes a counter that was not in use.
func (s *Sketch[K]) append(key K, times int64) {
	i := len(s.counters)
	s.counters = append(s.counters, counter[K]{key: key, count: times})
	s.index[key] = i
	s.heap, s.places = append(s.heap, i), append(s.places, i)
	s.up(i)
}

// Reset forgets everything.
func (s *Sketch[K]) Reset() {
	clear(s.index)
	clear(s.counters) // keys hold memory
	s.counters, s.heap, s.places = s.counters[:0], s.heap[:0], s.places[:0]
}

// floor is the most that a key without a counter can have occurred.
func (s *Sketch[K]) floor() int64 {
	if len(s.counters) < s.most {
		return 0
	}
	return s.counters[s.heap[0]].count
}

// up and down move the counter at a place of the heap to where it belongs.

func (s *Sketch[K]) up(place int) {
	for place > 0 {
		parent := (place - 1) / 2
		if !s.less(place, parent) {
			return
		}
		s.swap(place, parent)
		place = parent
	}
}

func (s *Sketch[K]) down(place int) {
	for {
		child := 2*place + 1
		if child >= len(s.heap) {
			return
		}
		if right := child + 1; right < len(s.heap) && s.less(right, child) {
			child = right
		}
		if !s.less(child, place) {
			return
		}
		s.swap(place, child)
		place = child
	}
}

func (s *Sketch[K]) less(a, b int) bool {
	return s.counters[s.heap[a]].count < s.counters[s.heap[b]].count
}

func (s *Sketch[K]) swap(a, b int) {
	s.heap[a], s.heap[b] = s.heap[b], s.heap[a]
	s.places[s.heap[a]], s.places[s.heap[b]] = a, b
}
