package embedded

import (
	"math"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
)

// age is for how many seconds it has not been known that the view is current;
// infinite if it never was.
func (s *shared) age() float64 {
	at := s.current.Load()
	if at == 0 {
		return math.Inf(1)
	}
	return time.Since(time.Unix(0, at)).Seconds()
}

// countLookUp counts a look-up of a key: all that there are, are in memory.
func countLookUp(known bool) {
	if known {
		metrics.CountLookUp(metrics.LookUpHit)
	} else {
		metrics.CountLookUp(metrics.LookUpNegative)
	}
}

// show makes a view the one that decides, and measures how long its changes took to
// get here, by the clocks of the instances that made them. Those that were there at
// the start are not measured. shared.mu is held.
func (s *shared) show(next *view) {
	old := s.view.Load()
	s.view.Store(next)
	if old == nil || old.doc.Store != next.doc.Store {
		return
	}
	var last time.Time
	for _, change := range next.doc.Audit {
		if change.ID <= old.doc.LastAudit || change.At.Equal(last) { // of several records at once
			continue
		}
		last = change.At
		metrics.ObservePropagation(time.Since(change.At))
	}
}
