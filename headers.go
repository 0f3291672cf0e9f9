package ratelimit

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// headerFamilies says which response headers a handler sends.
type headerFamilies struct {
	x, draft bool
}

func parseFamilies(words []string) (headerFamilies, error) {
	if len(words) == 0 {
		return headerFamilies{x: true, draft: true}, nil
	}
	var f headerFamilies
	for i, word := range words {
		if slices.Contains(words[:i], word) {
			return f, fmt.Errorf("headers %s is written twice; write each word once", word)
		}
		switch word {
		case "x":
			f.x = true
		case "draft":
			f.draft = true
		case "off":
			if len(words) > 1 {
				return f, fmt.Errorf("headers off goes with no other word; write headers off, or headers %s", "x draft")
			}
		default:
			return f, fmt.Errorf("headers %q is not known; write headers x, headers draft, headers x draft or headers off", word)
		}
	}
	return f, nil
}

// writeHeaders describes the limits that apply to the request: X-RateLimit-* the
// one nearest its end, RateLimit-Policy and RateLimit
// (draft-ietf-httpapi-ratelimit-headers-11) all of them, of which RateLimit leaves
// out those that were not asked since another one was known to refuse. Limits in
// the shadow are none of the client's business.
func (rep *report) writeHeaders(h http.Header, f headerFamilies) {
	e, ok := rep.current()
	if !ok || !f.x && !f.draft {
		return
	}
	// what differs from one request to the next, in one piece of memory
	b := strconv.AppendInt(make([]byte, 0, 256), e.Remaining, 10)
	remaining := len(b)
	b = strconv.AppendInt(b, rep.resetAt(e), 10)
	reset := len(b)
	if f.draft {
		b = rep.appendStates(b)
	}
	text := string(b)
	if f.x {
		rep.set(h, "X-Ratelimit-Limit", e.atOnce)
		rep.set(h, "X-Ratelimit-Remaining", text[:remaining])
		rep.set(h, "X-Ratelimit-Reset", text[remaining:reset])
	}
	if f.draft {
		rep.set(h, "Ratelimit-Policy", rep.policyList(b[:0]))
		rep.set(h, "Ratelimit", text[reset:])
	}
}

// set sets a response header that has no other value. The slice is the header's own:
// later handlers may write into it.
func (rep *report) set(h http.Header, name, value string) {
	n := len(rep.values)
	rep.values = append(rep.values, value)
	h[name] = rep.values[n : n+1 : n+1]
}

// policyList is RateLimit-Policy: a structured field list (RFC 9651) with an item
// for each limit. b is scratch space.
func (rep *report) policyList(b []byte) string {
	if len(rep.entries) == 1 { // in the shadow, it would not be current
		return rep.entries[0].item
	}
	for i := range rep.entries {
		if e := &rep.entries[i]; !e.shadow {
			b = append(appendComma(b, 0), e.item...)
		}
	}
	return string(b)
}

// appendStates writes RateLimit: of each limit that was asked, r units that are left
// now, and all of it in t seconds.
func (rep *report) appendStates(b []byte) []byte {
	start := len(b)
	for i := range rep.entries {
		e := &rep.entries[i]
		if !e.counts() {
			continue
		}
		b = append(appendComma(b, start), e.quoted...)
		b = append(b, ";r="...)
		b = strconv.AppendInt(b, e.Remaining, 10)
		b = append(b, ";t="...)
		b = strconv.AppendInt(b, ceilSeconds(e.ResetAfter), 10)
	}
	return b
}

// appendComma separates an item from those before it in a list that begins at start.
func appendComma(b []byte, start int) []byte {
	if len(b) > start {
		b = append(b, ", "...)
	}
	return b
}
