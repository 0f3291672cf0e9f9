package policy

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
)

// Route is a path pattern with optional methods. Paths match as Caddy's path
// matcher does: without regard to case, on the cleaned, decoded path; an
// asterisk at the end, the start or both is a prefix, suffix or substring match;
// in the middle it stands for one path segment's characters. The pattern "*" is
// every route.
type Route struct {
	Path    string
	Methods []string // upper case, sorted; empty is every method
}

// NewRoute checks and normalizes a route.
func NewRoute(pattern string, methods ...string) (Route, error) {
	switch {
	case pattern == "":
		return Route{}, fmt.Errorf("route is empty; write a path like /orders/*, or * for every route")
	case pattern[0] != '/' && pattern[0] != '*':
		return Route{}, fmt.Errorf("route %q must start with a slash, like /%s; or write * for every route", pattern, pattern)
	case strings.ContainsAny(pattern, "%{}") || strings.Contains(pattern, "//"):
		return Route{}, fmt.Errorf("route %q: paths are matched decoded and cleaned, so a pattern takes no %%, braces or double slashes; write the plain path", pattern)
	}
	for segment := range strings.SplitSeq(pattern, "/") {
		if segment == "." || segment == ".." {
			return Route{}, fmt.Errorf("route %q can never match, since a request's path is cleaned of %s first; write %s", pattern, segment, path.Clean(pattern))
		}
	}
	if _, err := path.Match(pattern, "/"); err != nil {
		return Route{}, fmt.Errorf("route %q is not a valid pattern; close its [ and put nothing behind a last backslash, or write a path like /orders/*", pattern)
	}
	for _, m := range methods {
		if m == "" || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" {
			return Route{}, fmt.Errorf("route %s: %q is not a method; write one in capitals, like POST", pattern, m)
		}
	}
	sorted := slices.Sorted(slices.Values(methods))
	return Route{Path: strings.ToLower(pattern), Methods: slices.Compact(sorted)}, nil
}

// String writes the route as a configuration does: "/login POST".
func (r Route) String() string {
	return strings.Join(append([]string{r.Path}, r.Methods...), " ")
}

// Scope names the route in a bucket's key.
func (r Route) Scope() string {
	if r.everything() {
		return globalScope
	}
	s := "route:" + escape(r.Path)
	if len(r.Methods) > 0 {
		s += ":" + strings.Join(r.Methods, ",")
	}
	return s
}

// everything reports whether the route is the client's overall ceiling.
func (r Route) everything() bool { return r.Path == "*" && len(r.Methods) == 0 }

// match reports whether a request is on the route; p comes from CleanPath.
func (r Route) match(method, p string) bool {
	return (len(r.Methods) == 0 || slices.Contains(r.Methods, method)) && matchPath(r.Path, p)
}

// CleanPath puts the decoded path of a request into the form in which routes
// are matched.
func CleanPath(p string) string {
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	cleaned := path.Clean(p)
	if strings.HasSuffix(p, "/") && cleaned != "/" {
		cleaned += "/"
	}
	return strings.ToLower(cleaned)
}

func matchPath(pattern, p string) bool {
	switch strings.Count(pattern, "*") {
	case 0:
		if !strings.ContainsAny(pattern, `?[\`) {
			return p == pattern
		}
	case 1:
		if s, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(p, s)
		}
		if s, ok := strings.CutPrefix(pattern, "*"); ok {
			return strings.HasSuffix(p, s)
		}
	case 2:
		if strings.HasPrefix(pattern, "*") && strings.HasSuffix(pattern, "*") {
			return strings.Contains(p, pattern[1:len(pattern)-1])
		}
	}
	ok, _ := path.Match(pattern, p) // the pattern was checked by NewRoute
	return ok
}

// moreSpecific orders routes so that the most specific comes first: exact
// paths before patterns, then more literal characters, then fewer methods, all
// methods last; what is left is ordered by name, so that the order never
// depends on the input's.
func moreSpecific(a, b Route) int {
	return cmp.Or(
		cmp.Compare(patterns(a), patterns(b)),
		cmp.Compare(literals(b), literals(a)),
		cmp.Compare(methods(a), methods(b)),
		cmp.Compare(a.Path, b.Path),
		slices.Compare(a.Methods, b.Methods),
	)
}

// patterns is 1 for a pattern and 0 for an exact path.
func patterns(r Route) int {
	if strings.ContainsAny(r.Path, `*?[`) {
		return 1
	}
	return 0
}

// literals counts the bytes that a path must have as they stand.
func literals(r Route) (n int) {
	class := false
	for i := 0; i < len(r.Path); i++ {
		switch c := r.Path[i]; {
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '\\':
			i++ // the byte behind it stands for itself
			n++
		case c != '*' && c != '?':
			n++
		}
	}
	return n
}

func methods(r Route) int {
	if len(r.Methods) == 0 {
		return math.MaxInt
	}
	return len(r.Methods)
}
