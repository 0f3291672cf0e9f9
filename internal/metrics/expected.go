package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// maxExpected bounds the pairs of a zone and a tier that have series before they have
// requests: a fifth of all that there may be, so that those with requests always find
// room.
const maxExpected = maxPairs / 5

// Outcomes is a set of statuses.
type Outcomes uint16

// OutcomesOf makes a set.
func OutcomesOf(all ...Status) (o Outcomes) {
	for _, s := range all {
		o |= 1 << s
	}
	return o
}

func (o Outcomes) has(s Status) bool { return o&(1<<s) != 0 }

// Expected tells of a limit that requests may meet: what metrics call it, of which
// tier its clients are, and what can come of it.
type Expected func(zone, tier string, outcomes Outcomes)

// expectations are the limits of the configurations that run.
var expectations struct {
	mu      sync.Mutex
	sources map[*func(Expected)]struct{}
}

// Expect makes the series of a configuration's limits begin at 0 before their first
// request, so that the first increase is seen. list tells of the limits whenever
// somebody reads the metrics, and waits for nothing; it need not be complete. Past
// 2,000 pairs of zone and tier, series begin with their first request. remove ends it,
// and may be called twice; series that have begun stay.
func Expect(list func(Expected)) (remove func()) {
	expectations.mu.Lock()
	defer expectations.mu.Unlock()
	if expectations.sources == nil {
		expectations.sources = make(map[*func(Expected)]struct{})
	}
	expectations.sources[&list] = struct{}{}
	return func() {
		expectations.mu.Lock()
		defer expectations.mu.Unlock()
		delete(expectations.sources, &list)
	}
}

// expect begins the series of a limit, if there is room.
func (t *table) expect(zone, tier string, outcomes Outcomes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pairs < t.mostExpected || (*t.zones.Load())[zone].find(tier) != nil {
		t.addLocked(zone, tier, outcomes)
	}
}

// openedRequests is the decisions as they are read: with every series that is expected.
type openedRequests struct{ *prometheus.CounterVec }

// Collect begins the series and reads all.
func (r openedRequests) Collect(ch chan<- prometheus.Metric) {
	expectations.mu.Lock()
	for list := range expectations.sources {
		(*list)(byPair.expect)
	}
	expectations.mu.Unlock()
	r.CounterVec.Collect(ch)
}

// Interface guards
var _ prometheus.Collector = openedRequests{}
