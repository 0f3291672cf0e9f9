package ratelimit

import (
	"cmp"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// listExpected tells metrics of the limits that requests may meet: the zones, for
// every tier that the provider knows now, and the policies. Limits that clients of
// other tiers meet, as after a handler that identifies them, begin with their first
// request.
func (a *App) listExpected(expected metrics.Expected) {
	var snapshot *policy.Snapshot
	if a.provider != nil {
		snapshot = a.provider.Snapshot()
	}
	for _, h := range a.handlers {
		h.listExpected(snapshot, expected)
	}
}

func (h *Handler) listExpected(snapshot *policy.Snapshot, expected metrics.Expected) {
	tiers := []string{policy.Anonymous}
	if h.identifier != nil && snapshot != nil {
		tiers = snapshot.TierNames()
	}
	for _, z := range h.Zones {
		for _, tier := range tiers {
			expected(z.limit.series, tier, h.outcomesOfZone(z))
		}
	}
	if h.Tiers {
		h.listPolicies(snapshot, tiers, expected)
	}
	if h.identifier != nil {
		expected("", policy.Anonymous, h.outcomesOfClients())
	}
}

func (h *Handler) listPolicies(snapshot *policy.Snapshot, tiers []string, expected metrics.Expected) {
	for owner, p := range snapshot.All() {
		outcomes := h.outcomes(p.Mode == policy.Shadow, p.OnError)
		if owner != "" {
			expected(p.Series, owner, outcomes)
			continue
		}
		for _, tier := range tiers {
			expected(p.Series, tier, outcomes)
		}
	}
}

// outcomes is what can come of a limit.
func (h *Handler) outcomes(shadow bool, onError policy.OnError) metrics.Outcomes {
	refused, refusedLocal := metrics.Blocked, metrics.BlockedLocal
	if shadow {
		refused, refusedLocal = metrics.ShadowBlocked, metrics.ShadowBlockedLocal
	}
	all := metrics.OutcomesOf(metrics.Allowed, refused)
	switch onError = cmp.Or(onError, h.OnError); {
	case h.app.inProcess: // never fails
	case onError == policy.Local:
		all |= metrics.OutcomesOf(metrics.AllowedLocal, refusedLocal)
	case onError == policy.Closed && !shadow:
		all |= metrics.OutcomesOf(metrics.Unavailable)
	default:
		all |= metrics.OutcomesOf(metrics.AllowedOpen)
	}
	return all
}

func (h *Handler) outcomesOfZone(z *Zone) metrics.Outcomes {
	all := h.outcomes(z.limit.shadow, z.limit.onError)
	if !z.limit.shadow && (z.MissingKey == missingReject || z.costs.text != "") {
		all |= metrics.OutcomesOf(metrics.Invalid)
	}
	return all
}

// outcomesOfClients is how a request can be refused for what its client is.
func (h *Handler) outcomesOfClients() (all metrics.Outcomes) {
	if h.identifier.reject || h.Identify.hasJWT() {
		all |= metrics.OutcomesOf(metrics.Invalid)
	}
	if h.Identify.hasJWT() {
		all |= metrics.OutcomesOf(metrics.Unavailable)
	}
	return all
}
