package ratelimit

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// limit is one limit as requests meet it, whether a zone or a policy wrote it, with
// the texts about it that are the same for every request.
type limit struct {
	name    string
	series  string // what metrics call it
	scope   string
	rule    *policy.Rule
	shadow  bool
	onError policy.OnError // empty: the handler's

	atOnce string // the most units that can be had at once
	quoted string // its name in response headers
	item   string // its item of RateLimit-Policy

	exceeded refusal // what refuses a request that is over it
}

func newLimit(name, series, scope string, rule *policy.Rule, mode policy.Mode, onError policy.OnError) *limit {
	quoted := appendName(nil, name)
	return &limit{
		name:     name,
		series:   series,
		scope:    scope,
		rule:     rule,
		shadow:   mode == policy.Shadow,
		onError:  onError,
		atOnce:   strconv.FormatInt(rule.AtOnce, 10),
		quoted:   string(quoted),
		item:     string(appendPolicy(quoted, rule.Limit)),
		exceeded: *refuseOverLimit(name, rule.Limit),
	}
}

// appendName writes a name as a structured field string (RFC 9651), which is ASCII:
// other bytes, and the percent sign, are percent-encoded.
func appendName(b []byte, name string) []byte {
	const hex = "0123456789ABCDEF"
	b = append(b, '"')
	for i := range len(name) {
		switch c := name[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c >= 0x7f || c == '%':
			b = append(b, '%', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// appendPolicy writes what the limit is: q units in w seconds. A window that is
// not of whole seconds has no w, which is optional; a burst of its own is told in
// a parameter of that name.
func appendPolicy(b []byte, l policy.Limit) []byte {
	b = append(b, ";q="...)
	b = strconv.AppendInt(b, l.Count, 10)
	if l.Window%time.Second == 0 {
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, int64(l.Window/time.Second), 10)
	}
	if l.Burst != 0 && l.Burst != l.Count {
		b = append(b, ";burst="...)
		b = strconv.AppendInt(b, l.Burst, 10)
	}
	return b
}

func refuseOverLimit(name string, l policy.Limit) *refusal {
	return (&refusal{
		status:  http.StatusTooManyRequests,
		code:    "rate_limited",
		detail:  fmt.Sprintf("The limit %s of %s is used up.", name, l),
		outcome: outcomeBlocked,
		zone:    name,
	}).worded()
}

// policyLimits are the limits that the policies of a snapshot make, each made when
// it first applies.
type policyLimits struct {
	snapshot *policy.Snapshot
	limits   sync.Map // from *policy.Applied to *limit
}

// policyCache holds the limits of the present snapshot's policies.
type policyCache struct{ present atomic.Pointer[policyLimits] }

// of returns the limits of a snapshot's policies. Those of another are dropped.
func (c *policyCache) of(s *policy.Snapshot) *policyLimits {
	limits := c.present.Load()
	if limits == nil || limits.snapshot != s {
		limits = &policyLimits{snapshot: s}
		c.present.Store(limits)
	}
	return limits
}

func (pl *policyLimits) limit(p *policy.Applied) *limit {
	if l, ok := pl.limits.Load(p); ok {
		return l.(*limit)
	}
	l, _ := pl.limits.LoadOrStore(p, newLimit(p.Name, p.Series, p.Scope, p.Rule, p.Mode, p.OnError))
	return l.(*limit)
}
