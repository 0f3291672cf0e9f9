package ratelimit

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// report is what all rate_limit handlers of a request tell about it, in headers
// and placeholders.
type report struct {
	r       *http.Request
	client  policy.Client
	outcome string
	entries []entry
	nearest int // index of the entry that the headers describe
	at      time.Time

	retryAfter int64 // whole seconds; zero unless refused
}

// entry is one limit and what was decided about it.
type entry struct {
	limit
	policy.Decision
	unasked bool // nothing was decided, since another limit was known to refuse
}

// Outcomes of a request, as {http.rate_limit.decision} has them.
const (
	outcomeAllowed       = "allowed"
	outcomeBlocked       = "blocked"
	outcomeShadowBlocked = "shadow_blocked"
	outcomeInvalid       = "invalid"
	outcomeUnavailable   = "unavailable"
)

// reportVar is the request variable under which the report travels from one
// handler of a request to the next.
const reportVar = "rate_limit.report"

// reportOf returns the request's report; the first handler makes it and lets
// placeholders read it.
func reportOf(r *http.Request, repl *caddy.Replacer) *report {
	if rep, ok := caddyhttp.GetVar(r.Context(), reportVar).(*report); ok {
		return rep
	}
	rep := &report{r: r}
	caddyhttp.SetVar(r.Context(), reportVar, rep)
	repl.Map(rep.placeholder)
	return rep
}

func (rep *report) add(l limit, d policy.Decision) {
	rep.entries = append(rep.entries, entry{limit: l, Decision: d})
}

// settle records that the request passed the limits that were added from first
// on, and finds the one nearest its end among those of all handlers.
func (rep *report) settle(first int) {
	rep.at = time.Now()
	if rep.outcome != outcomeShadowBlocked {
		rep.outcome = outcomeAllowed
	}
	for i, e := range rep.entries {
		if !e.counts() {
			if i >= first && !e.Allowed {
				rep.outcome = outcomeShadowBlocked
			}
			continue
		}
		if near := rep.entries[rep.nearest]; !near.counts() || e.nearerThan(near) {
			rep.nearest = i
		}
	}
}

// counts reports whether the entry's limit is enforced and was asked.
func (e entry) counts() bool { return !e.shadow && !e.unasked }

// asked is the report without the limits that were not asked.
func (rep *report) asked() *report {
	unasked := func(e entry) bool { return e.unasked }
	if !slices.ContainsFunc(rep.entries, unasked) {
		return rep
	}
	return &report{entries: slices.DeleteFunc(slices.Clone(rep.entries), unasked)}
}

// nearerThan reports whether e will refuse earlier than other: it has fewer units
// left, or as many and is longer in getting them back.
func (e entry) nearerThan(other entry) bool {
	if e.Remaining != other.Remaining {
		return e.Remaining < other.Remaining
	}
	return e.ResetAfter > other.ResetAfter
}

// refuse records that a limit added from first on refused the request. If several
// did, the one that lasts longest says when to come back.
func (rep *report) refuse(first int) *refusal {
	rep.at = time.Now()
	rep.nearest = -1
	for i := first; i < len(rep.entries); i++ {
		e := rep.entries[i]
		if !e.counts() || e.Allowed {
			continue
		}
		if rep.nearest < 0 || e.RetryAfter > rep.entries[rep.nearest].RetryAfter {
			rep.nearest = i
		}
	}
	return refuseOverLimit(rep.entries[rep.nearest])
}

// current is the entry that headers and placeholders describe; false if no limit
// that is enforced applied.
func (rep *report) current() (entry, bool) {
	if len(rep.entries) == 0 {
		return entry{}, false
	}
	e := rep.entries[rep.nearest]
	return e, e.counts()
}

// identity names the client: by its address as long as no handler has identified it.
func (rep *report) identity() string {
	if rep.client.Identity != "" {
		return rep.client.Identity
	}
	return addressIdentity(rep.r, clientAddress(rep.r), policy.DefaultIPv4Prefix, policy.DefaultIPv6Prefix)
}

// placeholder answers {http.rate_limit.*}.
func (rep *report) placeholder(variable string) (any, bool) {
	name, ok := strings.CutPrefix(variable, "http.rate_limit.")
	if !ok {
		return nil, false
	}
	switch name {
	case "decision":
		return rep.outcome, true
	case "identity":
		return rep.identity(), true
	case "tier":
		return cmp.Or(rep.client.Tier, policy.Anonymous), true
	case "retry_after":
		if rep.retryAfter == 0 {
			return "", true
		}
		return rep.retryAfter, true
	}
	return rep.limitPlaceholder(name)
}

func (rep *report) limitPlaceholder(name string) (any, bool) {
	e, ok := rep.current()
	switch name {
	case "zone", "limit", "remaining", "reset":
		if !ok {
			return "", true
		}
	case "exceeded.name":
		if !ok || rep.outcome != outcomeBlocked {
			return "", true
		}
		return e.name, true
	}
	switch name {
	case "zone":
		return e.name, true
	case "limit":
		return e.rule.AtOnce, true
	case "remaining":
		return e.Remaining, true
	case "reset":
		return rep.resetAt(e), true
	}
	return nil, false
}

// resetAt is when the entry's bucket will be as never used, in Unix seconds.
func (rep *report) resetAt(e entry) int64 {
	return ceilSeconds(time.Duration(rep.at.UnixNano()) + e.ResetAfter)
}

// ceilSeconds rounds up to whole seconds.
func ceilSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}
