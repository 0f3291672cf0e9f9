package metrics

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// maxPairs bounds the pairs of a zone and a tier that have series. Names are given
// by operators, but policies come and go, and their series stay until the process
// ends: a counter that vanished and came back would read as a restart.
const maxPairs = 10_000

// Other stands for the zone and the tier of everything beyond that bound.
const Other = "other"

// table finds the counters of a zone and a tier. It is read on every request without
// a lock, and copied on the few that bring a new pair.
type table struct {
	vec  *prometheus.CounterVec
	most int // pairs

	mostExpected int // pairs, before their first request

	zones atomic.Pointer[map[string]zoneCounters]

	mu    sync.Mutex // held while zones is replaced
	pairs int
}

// zoneCounters is the counters of one zone: of few tiers, so looking through them is
// fastest.
type zoneCounters struct {
	outcomes Outcomes // that the zone can have, as far as a configuration has said
	pairs    []*pairCounters
}

// pairCounters is the counters of one pair. Those that were never needed are nil.
type pairCounters struct {
	zone, tier string
	byStatus   [statuses]atomic.Pointer[prometheus.Counter]
}

var byPair = newTable(requests, maxPairs, maxExpected)

func newTable(vec *prometheus.CounterVec, most, mostExpected int) *table {
	t := &table{vec: vec, most: most, mostExpected: mostExpected}
	t.zones.Store(&map[string]zoneCounters{})
	return t
}

// CountRequest counts what a limit decided about a request. zone is the name of the
// zone or policy, or empty if none did; tier is the client's. It allocates nothing
// but for the first of its kind.
func CountRequest(zone, tier string, s Status) { byPair.count(zone, tier, s) }

func (t *table) count(zone, tier string, s Status) {
	p := (*t.zones.Load())[zone].find(tier)
	if p == nil {
		p = t.add(zone, tier)
	}
	c := p.byStatus[s].Load()
	if c == nil {
		c = t.open(p, s)
	}
	(*c).Inc()
}

func (z zoneCounters) find(tier string) *pairCounters {
	for _, p := range z.pairs {
		if p.tier == tier {
			return p
		}
	}
	return nil
}

// add makes a new pair known, or answers with the one that stands for all others.
// What its zone can do begins at 0 together: alerts compare it.
func (t *table) add(zone, tier string) *pairCounters {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pairs >= t.most && (*t.zones.Load())[zone].find(tier) == nil {
		zone, tier = Other, Other
	}
	outcomes := (*t.zones.Load())[zone].outcomes
	if zone != "" {
		outcomes |= OutcomesOf(Allowed, Blocked)
	}
	return t.addLocked(zone, tier, outcomes)
}

// addLocked returns a pair, and makes it if need be.
func (t *table) addLocked(zone, tier string, outcomes Outcomes) *pairCounters {
	zones := *t.zones.Load()
	p := zones[zone].find(tier)
	if p == nil {
		p = &pairCounters{zone: zone, tier: tier}
		next := maps.Clone(zones)
		next[zone] = zoneCounters{outcomes, append(slices.Clip(zones[zone].pairs), p)}
		t.zones.Store(&next)
		t.pairs++
	}
	for s := range statuses {
		if outcomes.has(s) && p.byStatus[s].Load() == nil {
			t.open(p, s)
		}
	}
	return p
}

// open makes the counter of a status.
func (t *table) open(p *pairCounters, s Status) *prometheus.Counter {
	c := t.vec.WithLabelValues(strings.ToValidUTF8(p.zone, "?"), strings.ToValidUTF8(p.tier, "?"), s.String())
	p.byStatus[s].Store(&c)
	return &c
}
