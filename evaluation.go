package ratelimit

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tollgate/ratelimit/memorybackend"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// evaluation is one handler's look at one request: the limits that apply, the
// buckets that they ask for, and what was decided. buckets, limits and decisions
// run in parallel.
type evaluation struct {
	h    *Handler
	r    *http.Request
	repl *caddy.Replacer

	report  *report
	finding finding // who the client is
	address clientAddress

	buckets   []policy.Bucket
	limits    []*limit
	keys      []string // the zones' key texts, for logs; empty for policies
	decisions []policy.Decision

	// scratch space
	policies []*policy.Applied
	refusal  refusal
	body     []byte

	observation
}

var evaluations = sync.Pool{New: func() any { return new(evaluation) }}

func newEvaluation(h *Handler, r *http.Request) *evaluation {
	e := evaluations.Get().(*evaluation)
	e.h, e.r = h, r
	ctx := r.Context()
	e.repl = ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	vars := varsOf(ctx)
	e.report = reportOf(r, e.repl, vars)
	e.address = addressOf(r, vars)
	return e
}

// release gives the evaluation back for the next request; nothing of this one
// stays in it.
func (e *evaluation) release() {
	clear(e.buckets)
	clear(e.limits)
	clear(e.keys)
	clear(e.policies)
	*e = evaluation{
		buckets:   e.buckets[:0],
		limits:    e.limits[:0],
		keys:      e.keys[:0],
		decisions: e.decisions[:0],
		policies:  e.policies[:0],
		body:      e.body[:0],
	}
	evaluations.Put(e)
}

// clientAddress is the address of a client as Caddy's trusted proxies have it.
type clientAddress struct {
	netip.Addr        // not valid for a client without one, as on a Unix socket
	text       string // as it was written; without an address, what stands in its place
}

// varsOf is the variables of a request, looked up once for all of them; nil if it has
// none.
func varsOf(ctx context.Context) map[string]any {
	vars, _ := ctx.Value(caddyhttp.VarsCtxKey).(map[string]any)
	return vars
}

func addressOf(r *http.Request, vars map[string]any) clientAddress {
	text, _ := vars[caddyhttp.ClientIPVarKey].(string)
	addr, err := netip.ParseAddr(text)
	if err != nil { // Caddy found none; the connection may have one
		text = remoteHost(r)
		addr, _ = netip.ParseAddr(text)
	}
	return clientAddress{addr, text}
}

// identity names the client by its address, cut to the prefix lengths. Clients that
// have none share the bucket of whatever stands in its place.
func (a clientAddress) identity(ipv4Prefix, ipv6Prefix int) string {
	switch {
	case !a.IsValid():
		return policy.HashIdentity(a.text)
	case a.Is4() && ipv4Prefix == a.BitLen():
		return a.text // IPv4 is written in one way only
	}
	return policy.AddressIdentity(a.Addr, ipv4Prefix, ipv6Prefix)
}

// remoteHost is the other end of the connection, without its port.
func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil { // no port, as on a Unix socket
		return r.RemoteAddr
	}
	return host
}

// decide finds out whether the request may pass; nil says that it may.
func (e *evaluation) decide(ctx context.Context) *refusal {
	if e.h.identifier != nil {
		if refusal := e.refuseKnown(); refusal != nil {
			return refusal
		}
		e.identify(ctx)
	}
	if refusal := e.gather(); refusal != nil {
		return refusal
	}
	if refusal := e.take(ctx); refusal != nil {
		return refusal
	}
	return e.judge()
}

func (e *evaluation) identify(ctx context.Context) {
	e.finding = e.h.identifier.identify(ctx, e.r, e.repl)
	c := e.finding.client
	if c.Identity == "" {
		c.Identity = e.address.identity(policy.DefaultIPv4Prefix, policy.DefaultIPv6Prefix)
	}
	e.report.client = c
}

// judge refuses a client that was counted and may not pass for what it is.
func (e *evaluation) judge() *refusal {
	switch {
	case e.h.identifier == nil:
		return nil
	case e.finding.standing == standingInvalid:
		return refuseToken(e.finding.why)
	case e.finding.standing == standingUnavailable:
		return refuseUnjudged(e.finding.why)
	case e.finding.standing == standingUnknown && e.h.identifier.reject:
		return refuseUnknownClient()
	}
	return nil
}

// refuseKnown refuses a request before its client is looked for, if a zone that
// does not depend on the client is known to refuse it. Where the zones cannot be
// evaluated, gather says why.
func (e *evaluation) refuseKnown() *refusal {
	denials := e.h.app.denials
	now := denials.now()
	if !denials.any(now) {
		return nil
	}
	for _, z := range e.h.Zones {
		if z.ofClient {
			continue
		}
		if refusal := e.addZone(z); refusal != nil {
			e.truncate(0)
			return nil
		}
	}
	refusal := e.recall(now)
	if refusal == nil {
		e.truncate(0)
	}
	return refusal
}

// gather turns what applies to the request into buckets: zones in the operator's
// order, then policies.
func (e *evaluation) gather() *refusal {
	for _, z := range e.h.Zones {
		if refusal := e.addZone(z); refusal != nil {
			return refusal
		}
	}
	if e.h.Tiers {
		e.addPolicies()
	}
	return nil
}

func (e *evaluation) addZone(z *Zone) *refusal {
	matched, err := z.match(e.r)
	if err != nil {
		return &refusal{err: err}
	}
	if !matched {
		return nil
	}
	identity, result := z.key.identity(e)
	switch {
	case result == keySkip, result == keyReject && z.limit.shadow:
		return nil
	case result == keyReject:
		return refuseMissingKey(z.Name)
	}
	cost, err := z.costs.of(e.repl)
	if err == nil {
		err = z.limit.rule.CheckCost(cost)
	}
	switch {
	case err != nil && z.limit.shadow: // never refuses, so it cannot count this one
		return nil
	case err != nil:
		return refuseCost(z.Name, err)
	}
	e.add(z.limit, identity, cost, z.key.text)
	return nil
}

func (e *evaluation) addPolicies() {
	path := policy.CleanPath(e.r.URL.Path)
	snapshot := e.h.app.provider.Snapshot()
	e.policies = snapshot.AppendMatches(e.policies[:0], e.report.client, e.r.Method, path)
	limits := e.h.app.policies.of(snapshot)
	for _, p := range e.policies {
		e.add(limits.limit(p), e.report.client.Identity, p.Cost, "")
	}
}

func (e *evaluation) add(l *limit, identity string, cost int64, key string) {
	e.limits = append(e.limits, l)
	e.keys = append(e.keys, key)
	e.buckets = append(e.buckets, policy.Bucket{
		Identity: identity,
		Scope:    l.scope,
		Rule:     l.rule,
		Cost:     cost,
		Shadow:   l.shadow,
	})
	e.decisions = append(e.decisions, policy.Decision{})
}

// take has the buckets decided and reports the outcome.
func (e *evaluation) take(ctx context.Context) *refusal {
	if refusal := e.settleDenials(); refusal != nil {
		return refusal
	}
	if len(e.buckets) == 0 {
		return nil
	}
	denials := e.h.app.denials
	sent := denials.now()
	if refusal := e.recall(sent); refusal != nil {
		return refusal
	}
	if err := e.ask(ctx); err != nil {
		if refusal := e.fallBack(err); refusal != nil {
			return refusal
		}
	} else {
		denials.learn(e.buckets, e.decisions, sent)
		e.h.app.remember(e.buckets, e.decisions)
	}
	first := len(e.report.entries)
	for i := range e.buckets {
		e.report.add(e.limits[i], e.decisions[i])
	}
	if policy.Allowed(e.buckets, e.decisions) {
		e.report.settle(first)
		return nil
	}
	return e.refuseFrom(first)
}

// refuseFrom refuses the request for a limit that was reported from first on.
func (e *evaluation) refuseFrom(first int) *refusal {
	e.refusal = e.report.refuse(first)
	return &e.refusal
}

// delay is how long the request must wait for its turn: the longest that one of
// its leaky buckets wants.
func (e *evaluation) delay() (longest time.Duration) {
	for i := range e.decisions {
		longest = max(longest, e.decisions[i].Delay)
	}
	return longest
}

// settleDenials answers limits of zero, which need no backend: one that is
// enforced refuses before anything is taken, one in the shadow is reported.
func (e *evaluation) settleDenials() *refusal {
	kept := 0
	for i := range e.buckets {
		l := e.limits[i]
		if !l.rule.DenyAll() {
			e.buckets[kept], e.limits[kept], e.keys[kept] = e.buckets[i], l, e.keys[i]
			kept++
			continue
		}
		window := l.rule.Limit.Window
		first := len(e.report.entries)
		e.report.add(l, policy.Decision{RetryAfter: window, ResetAfter: window})
		if !l.shadow {
			return e.refuseFrom(first)
		}
	}
	e.truncate(kept)
	return nil
}

// truncate keeps the first n limits.
func (e *evaluation) truncate(n int) {
	e.buckets, e.limits, e.keys, e.decisions = e.buckets[:n], e.limits[:n], e.keys[:n], e.decisions[:n]
}

// fallBack decides without the backend: if any limit's on_error is closed the
// request is refused; limits that are open drop out; the others count in this
// process.
func (e *evaluation) fallBack(cause error) *refusal {
	e.h.app.tellFailure(cause)
	e.noteFallback()
	kept := 0
	for i, l := range e.limits {
		onError := cmp.Or(l.onError, e.h.OnError)
		if onError == policy.Closed && !l.shadow {
			return refuseUnavailable(l.name)
		}
		if onError == policy.Local {
			e.buckets[kept], e.limits[kept], e.keys[kept] = e.buckets[i], l, e.keys[i]
			kept++
		}
	}
	e.truncate(kept)
	e.h.app.fallback.Take(memorybackend.Now(), e.buckets, e.decisions)
	return nil
}
