package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Sampled is a gauge that is asked for when somebody reads it. It has as many
// sources as things that are measured run, reads as the largest of them, and is
// absent while there are none.
type Sampled struct {
	desc *prometheus.Desc

	mu      sync.Mutex
	sources map[*source]struct{}
}

type source struct{ value func() float64 }

func newSampled(name, help string) *Sampled {
	return &Sampled{
		desc:    prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, nil, nil),
		sources: make(map[*source]struct{}),
	}
}

// Add adds a source, which must be safe for concurrent use. remove takes it away
// again; it may be called twice.
func (g *Sampled) Add(value func() float64) (remove func()) {
	s := &source{value}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sources[s] = struct{}{}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.sources, s)
	}
}

// Describe tells the registry what the gauge is.
func (g *Sampled) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect asks the sources.
func (g *Sampled) Collect(ch chan<- prometheus.Metric) {
	if value, ok := g.largest(); ok {
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value)
	}
}

func (g *Sampled) largest() (value float64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.sources {
		if v := s.value(); !ok || v > value {
			value, ok = v, true
		}
	}
	return value, ok
}

// Interface guards
var _ prometheus.Collector = (*Sampled)(nil)
