package metrics

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func newTestTable(most int) *table {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests"}, []string{"zone", "tier", "status"})
	return newTable(vec, most, most)
}

func (t *table) value(zone, tier string, s Status) float64 {
	m := new(dto.Metric)
	if err := t.vec.WithLabelValues(zone, tier, s.String()).Write(m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

// exposed is what a scrape finds: the series of each metric.
func exposed(t *testing.T, collectors ...prometheus.Collector) map[string][]*dto.Metric {
	t.Helper()
	registry := prometheus.NewRegistry()
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]*dto.Metric)
	for _, f := range families {
		found[f.GetName()] = f.GetMetric()
	}
	return found
}

func TestConcurrentCountsOfNewPairsAreExact(t *testing.T) {
	t.Parallel()
	const workers, rounds, zones = 8, 100, 20
	table := newTestTable(maxPairs)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				for z := range zones {
					table.count(fmt.Sprint("zone", z), "FREE", ShadowBlocked)
				}
			}
		})
	}
	wg.Wait()
	for z := range zones {
		if got := table.value(fmt.Sprint("zone", z), "FREE", ShadowBlocked); got != workers*rounds {
			t.Errorf("zone%d: got %v, want %d", z, got, workers*rounds)
		}
	}
}

// Policies come and go for as long as a process lives; their series must not.
func TestPairsBeyondTheBoundCountUnderOneName(t *testing.T) {
	t.Parallel()
	table := newTestTable(3)
	for i := range 10 {
		for range 2 {
			table.count(fmt.Sprint("zone", i), "FREE", Blocked)
		}
		table.count(fmt.Sprint("zone", i), "FREE", Invalid)
	}
	for i := range 3 {
		if got := table.value(fmt.Sprint("zone", i), "FREE", Blocked); got != 2 {
			t.Errorf("zone%d: got %v, want 2", i, got)
		}
	}
	if got := table.value(Other, Other, Blocked); got != 14 {
		t.Errorf("all others, blocked: got %v, want 14", got)
	}
	if got := table.value(Other, Other, Invalid); got != 7 {
		t.Errorf("all others, invalid: got %v, want 7", got)
	}
	if known := table.pairs; known != 4 {
		t.Errorf("got %d pairs, want 3 and the one for all others", known)
	}
}

func TestANewPairBeginsWithWhatAlertsCompare(t *testing.T) {
	t.Parallel()
	table := newTestTable(10)
	table.count("login", "FREE", Unavailable)
	got := make(map[string]float64)
	for _, m := range exposed(t, table.vec)["requests"] {
		got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	if want := map[string]float64{"allowed": 0, "blocked": 0, "unavailable": 1}; !maps.Equal(got, want) {
		t.Errorf("by status: got %v, want %v", got, want)
	}
}

// A series that appears with its first value has no increase from 0 to it.
func TestExpectedSeriesBeginAtZeroBeforeTheFirstRequest(t *testing.T) {
	t.Parallel()
	remove := Expect(func(expected Expected) {
		expected("expected", "FREE", OutcomesOf(Allowed, ShadowBlocked))
		expected("expected", "PRO", OutcomesOf(Allowed, ShadowBlocked))
	})
	defer remove()
	opened := func() (found []string) {
		for _, m := range exposed(t, openedRequests{requests})["caddy_rate_limit_requests_total"] {
			l := m.GetLabel() // status, tier, zone
			if l[2].GetValue() == "expected" {
				found = append(found, fmt.Sprint(l[1].GetValue(), " ", l[0].GetValue(), " ", m.GetCounter().GetValue()))
			}
		}
		return found
	}
	want := []string{"FREE allowed 0", "PRO allowed 0", "FREE shadow_blocked 0", "PRO shadow_blocked 0"}
	if got := opened(); !slices.Equal(got, want) {
		t.Errorf("before the first request: got %q, want %q", got, want)
	}
	CountRequest("expected", "FREE", Allowed)
	remove()
	remove()
	want[0] = "FREE allowed 1"
	if got := opened(); !slices.Equal(got, want) {
		t.Errorf("after it, and after the configuration: got %q, want %q", got, want)
	}
}

func TestExpectedSeriesLeaveRoomForThoseThatHaveRequests(t *testing.T) {
	t.Parallel()
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests"}, []string{"zone", "tier", "status"})
	table := newTable(vec, 4, 2)
	for i := range 10 {
		table.expect(fmt.Sprint("zone", i), "FREE", OutcomesOf(Allowed))
	}
	if table.pairs != 2 {
		t.Errorf("got %d pairs, want 2", table.pairs)
	}
	for i := range 3 {
		table.count(fmt.Sprint("busy", i), "FREE", Allowed)
	}
	if got := table.value("busy1", "FREE", Allowed) + table.value(Other, Other, Allowed); got != 2 {
		t.Errorf("got %v, want one of a zone with its own series, and one of the others", got)
	}
}

func TestATierThatIsSeenFirstBringsEveryOutcomeOfItsZone(t *testing.T) {
	t.Parallel()
	table := newTestTable(10)
	table.expect("login", "FREE", OutcomesOf(Allowed, Blocked, BlockedLocal))
	table.count("login", "GOLD", Allowed)
	got := make(map[string]float64)
	for _, m := range exposed(t, table.vec)["requests"] {
		if m.GetLabel()[1].GetValue() == "GOLD" {
			got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	if want := map[string]float64{"allowed": 1, "blocked": 0, "blocked_local": 0}; !maps.Equal(got, want) {
		t.Errorf("by status: got %v, want %v", got, want)
	}
}

func TestANameThatIsNotUTF8IsCounted(t *testing.T) {
	t.Parallel()
	table := newTestTable(10)
	table.count("a\xffb", "FREE", Allowed)
	if got := table.value("a?b", "FREE", Allowed); got != 1 {
		t.Errorf("got %v, want 1", got)
	}
}

// Each configuration has a registry of its own, and may be provisioned while the
// one before runs.
func TestMetricsGoOnInTheNextRegistry(t *testing.T) {
	t.Parallel()
	first, second := prometheus.NewRegistry(), prometheus.NewRegistry()
	for _, registry := range []*prometheus.Registry{first, second, second} {
		if err := Register(registry); err != nil {
			t.Fatal(err)
		}
	}
	CountRequest("over reloads", "FREE", Allowed)
	for _, registry := range []*prometheus.Registry{first, second} {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if n := len(families); n < 6 {
			t.Errorf("got %d metrics in a registry, want all", n)
		}
	}
	if got := byPair.value("over reloads", "FREE", Allowed); got != 1 {
		t.Errorf("got %v, want 1", got)
	}
}

func TestASampledGaugeReadsAsTheLargestOfItsSourcesAndIsAbsentWithoutAny(t *testing.T) {
	t.Parallel()
	g := newSampled("test", "A test.")
	want := func(when string, want ...float64) {
		t.Helper()
		var got []float64
		for _, m := range exposed(t, g)["caddy_rate_limit_test"] {
			got = append(got, m.GetGauge().GetValue())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	want("before any")
	removeLow := g.Add(func() float64 { return -2 })
	removeHigh := g.Add(func() float64 { return -1 })
	want("with both", -1)
	removeHigh()
	removeHigh()
	want("with the lower one", -2)
	removeLow()
	want("after both")
}

func TestCountingARequestAllocatesNothing(t *testing.T) {
	CountRequest("hot", "FREE", Allowed)
	if n := testing.AllocsPerRun(1000, func() { CountRequest("hot", "FREE", Allowed) }); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkCountRequest(b *testing.B) {
	for i := range 50 { // as many limits as a busy site has
		CountRequest(fmt.Sprint("zone", i), "FREE", Allowed)
	}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			CountRequest("zone7", "FREE", Allowed)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				CountRequest("zone7", "FREE", Allowed)
			}
		})
	})
}
