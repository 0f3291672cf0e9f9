package ratelimit

import (
	"cmp"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

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

	refusedBy string     // the zone or policy that refused; empty if none did
	logged    bool       // the access log will ask for this report
	from      netip.Addr // the client's address
	noted     bool       // the request was counted for its client

	// The first of entries and of the values of headers, so that a usual request
	// allocates neither.
	firstEntries [2]entry
	firstValues  [8]string
	values       []string
}

// entry is one limit and what was decided about it.
type entry struct {
	*limit
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

func newReport(r *http.Request) *report {
	rep := &report{r: r}
	rep.entries, rep.values = rep.firstEntries[:0], rep.firstValues[:0]
	return rep
}

// reportOf returns the request's report; the first handler makes it and lets
// placeholders read it.
func reportOf(r *http.Request, repl *caddy.Replacer, vars map[string]any) *report {
	if rep, ok := vars[reportVar].(*report); ok {
		return rep
	}
	rep := newReport(r)
	if vars != nil {
		vars[reportVar] = rep
	}
	repl.Map(rep.placeholder)
	return rep
}

func (rep *report) add(l *limit, d policy.Decision) {
	rep.entries = append(rep.entries, entry{limit: l, Decision: d})
}

// settle records that the request passed the limits that were added from first
// on, and finds the one nearest its end among those of all handlers.
func (rep *report) settle(first int) {
	rep.at = time.Now()
	if rep.outcome != outcomeShadowBlocked {
		rep.outcome = outcomeAllowed
	}
	for i := range rep.entries {
		e := &rep.entries[i]
		if !e.counts() {
			if i >= first && !e.Allowed {
				rep.outcome = outcomeShadowBlocked
			}
			continue
		}
		if near := &rep.entries[rep.nearest]; !near.counts() || e.nearerThan(near) {
			rep.nearest = i
		}
	}
}

// counts reports whether the entry's limit is enforced and was asked.
func (e *entry) counts() bool { return !e.shadow && !e.unasked }

// nearerThan reports whether e will refuse earlier than other: it has fewer units
// left, or as many and is longer in getting them back.
func (e *entry) nearerThan(other *entry) bool {
	if e.Remaining != other.Remaining {
		return e.Remaining < other.Remaining
	}
	return e.ResetAfter > other.ResetAfter
}

// refuse records that a limit added from first on refused the request. If several
// did, the one that lasts longest says when to come back.
func (rep *report) refuse(first int) refusal {
	rep.at = time.Now()
	rep.nearest = -1
	for i := first; i < len(rep.entries); i++ {
		e := &rep.entries[i]
		if !e.counts() || e.Allowed {
			continue
		}
		if rep.nearest < 0 || e.RetryAfter > rep.entries[rep.nearest].RetryAfter {
			rep.nearest = i
		}
	}
	e := &rep.entries[rep.nearest]
	why := e.exceeded
	why.retryAfter = max(e.RetryAfter, 1)
	return why
}

// current is the entry that headers and placeholders describe; false if no limit
// that is enforced applied.
func (rep *report) current() (*entry, bool) {
	if len(rep.entries) == 0 {
		return nil, false
	}
	e := &rep.entries[rep.nearest]
	return e, e.counts()
}

// shadowZone is the first limit in shadow mode that would have refused the request, of
// those added from first on; empty if none would.
func (rep *report) shadowZone(first int) string {
	for i := first; i < len(rep.entries); i++ {
		if e := &rep.entries[i]; e.shadow && !e.Allowed && !e.unasked {
			return e.name
		}
	}
	return ""
}

// identity names the client: by its address as long as no handler has identified it.
func (rep *report) identity() string {
	if rep.client.Identity != "" {
		return rep.client.Identity
	}
	return addressOf(rep.r, varsOf(rep.r.Context())).identity(policy.DefaultIPv4Prefix, policy.DefaultIPv6Prefix)
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
	case "shadow_zone":
		return rep.shadowZone(0), true
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
func (rep *report) resetAt(e *entry) int64 {
	return ceilSeconds(time.Duration(rep.at.UnixNano()) + e.ResetAfter)
}

// ceilSeconds rounds up to whole seconds.
func ceilSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}
