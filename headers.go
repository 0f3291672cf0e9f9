package ratelimit

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
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
// out those that were not asked since another one was known to refuse. Limits in the shadow are
// none of the client's business.
func (rep *report) writeHeaders(h http.Header, f headerFamilies) {
	e, ok := rep.current()
	if !ok {
		return
	}
	if f.x {
		h["X-Ratelimit-Limit"] = []string{strconv.FormatInt(e.rule.AtOnce, 10)}
		h["X-Ratelimit-Remaining"] = []string{strconv.FormatInt(e.Remaining, 10)}
		h["X-Ratelimit-Reset"] = []string{strconv.FormatInt(rep.resetAt(e), 10)}
	}
	if f.draft {
		h["Ratelimit-Policy"] = []string{rep.list(appendPolicy)}
		h["Ratelimit"] = []string{rep.asked().list(appendState)}
	}
}

// list writes a structured field list (RFC 9651) with one item for each limit.
func (rep *report) list(appendItem func([]byte, entry) []byte) string {
	b := make([]byte, 0, 96)
	for _, e := range rep.entries {
		if e.shadow {
			continue
		}
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = appendItem(appendName(b, e.name), e)
	}
	return string(b)
}

// appendPolicy writes what the limit is: q units in w seconds. A window that is
// not of whole seconds has no w, which is optional; a burst of its own is told in
// a parameter of that name.
func appendPolicy(b []byte, e entry) []byte {
	l := e.rule.Limit
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

// appendState writes what is left of the limit: r units now, all of it in t
// seconds.
func appendState(b []byte, e entry) []byte {
	b = append(b, ";r="...)
	b = strconv.AppendInt(b, e.Remaining, 10)
	b = append(b, ";t="...)
	return strconv.AppendInt(b, ceilSeconds(e.ResetAfter), 10)
}

// appendName writes a name as a structured field string, which is ASCII: other
// bytes, and the percent sign, are percent-encoded.
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
