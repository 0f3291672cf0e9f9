package ratelimit

import (
	"cmp"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// fallback is what the backend's failure meant for a request.
type fallback struct {
	used bool
	open []string // the series of what let the request pass uncounted
}

// noteFallback counts a request that the backend did not decide, before fallBack
// drops limits. A client that has gone is no failure.
func (e *evaluation) noteFallback() {
	e.fallback.used = true
	mode := metrics.FallbackOpen
	for _, l := range e.limits {
		switch onError := cmp.Or(l.onError, e.h.OnError); {
		case onError == policy.Closed && !l.shadow:
			mode = metrics.FallbackClosed
		case onError == policy.Local:
			mode = max(mode, metrics.FallbackLocal)
		default:
			e.fallback.open = append(e.fallback.open, l.series)
		}
	}
	if e.r.Context().Err() == nil {
		metrics.CountFallback(mode)
	}
}

// count counts what this handler decided.
// A request that some limit refused is counted for that limit alone, since no other
// one was charged. One that is refused for what it is was counted before that, so it
// is counted again.
func (e *evaluation) count(why *refusal) {
	tier := cmp.Or(e.report.client.Tier, policy.Anonymous)
	if why == nil || why.ofClient() {
		e.countPassed(tier)
	}
	if why != nil && why.err == nil {
		metrics.CountRequest(e.seriesOf(why.zone), tier, e.statusOf(why))
	}
}

// ofClient reports whether all limits let the request pass, and what its client is
// did not.
func (why *refusal) ofClient() bool { return why.err == nil && why.zone == "" }

func (e *evaluation) countPassed(tier string) {
	for i := e.first; i < len(e.report.entries); i++ {
		l := &e.report.entries[i]
		metrics.CountRequest(l.series, tier, e.passedStatus(l))
	}
	for _, series := range e.fallback.open {
		metrics.CountRequest(series, tier, metrics.AllowedOpen)
	}
}

// passedStatus is the outcome of a limit that did not refuse the request.
func (e *evaluation) passedStatus(l *entry) metrics.Status {
	local := e.fallback.used && !l.rule.DenyAll()
	switch {
	case l.Allowed && local:
		return metrics.AllowedLocal
	case l.Allowed:
		return metrics.Allowed
	case local:
		return metrics.ShadowBlockedLocal
	default:
		return metrics.ShadowBlocked
	}
}

func (e *evaluation) statusOf(why *refusal) metrics.Status {
	switch {
	case why.outcome == outcomeInvalid:
		return metrics.Invalid
	case why.outcome == outcomeUnavailable:
		return metrics.Unavailable
	case e.fallback.used:
		return metrics.BlockedLocal
	default:
		return metrics.Blocked
	}
}

// seriesOf is what metrics call the limit that refused.
func (e *evaluation) seriesOf(name string) string {
	for i := range e.limits {
		if e.limits[i].name == name {
			return e.limits[i].series
		}
	}
	return name // of a zone that did not get so far, or empty
}
