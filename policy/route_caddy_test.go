package policy_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// An operator writes the same pattern in a policy and in a Caddyfile matcher;
// if the two disagreed on one path, that path would go around the limit.

// anyPath draws request paths that nearly match patterns of anyPattern.
func anyPath() *rapid.Generator[string] {
	return rapid.OneOf(
		pieces("/", "/", "a", "b", "ab", "A", ".", "..", "/../", "//", " ", "É", "é", "*", "[", `\`, ".php", "K", "\xff"),
		pieces("/", "a", "b"),
		rapid.Map(rapid.StringN(0, 8, -1), func(s string) string { return "/" + s }),
	)
}

func anyPattern() *rapid.Generator[string] {
	return rapid.OneOf(
		pieces("/", "/", "a", "b", "ab", "A", ".", " ", "É", "é", "*", "*", "?", "[ab]", "[^a]", `\*`, `\a`, ".php", "k", "\xff"),
		pieces("*", "/", "a", "b", "*", ".php", "?"),
		pieces("/", "a", "b", "*"),
	)
}

// pieces draws text that starts with first.
func pieces(first string, others ...string) *rapid.Generator[string] {
	return rapid.Map(rapid.SliceOfN(rapid.SampledFrom(others), 0, 6), func(s []string) string { return first + strings.Join(s, "") })
}

func caddyMatches(t testing.TB, pattern, path string) bool {
	t.Helper()
	m := caddyhttp.MatchPath{pattern}
	if err := m.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}}
	r = r.WithContext(context.WithValue(t.Context(), caddy.ReplacerCtxKey, caddy.NewReplacer()))
	ok, err := m.MatchWithError(r)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// What Caddy's matcher takes besides, escapes, placeholders and double slashes,
// NewRoute refuses.
func TestARouteMatchesExactlyWhatCaddysPathMatcherDoes(t *testing.T) {
	t.Parallel()
	matched, compared := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		pattern := anyPattern().Draw(rt, "pattern")
		route, err := policy.NewRoute(pattern)
		if err != nil || route.Path == "*" {
			return // "*" is the ceiling, and refused patterns have no meaning to compare
		}
		for range 20 {
			path := anyPath().Draw(rt, "path")
			want := caddyMatches(t, pattern, path)
			if got := winner(t, []policy.Route{route}, http.MethodGet, path) != ""; got != want {
				rt.Fatalf("%q on %q: got %t, Caddy %t", pattern, path, got, want)
			}
			compared++
			if want {
				matched++
			}
		}
	})
	// Paths that never match would compare nothing.
	if matched*50 < compared || matched == compared {
		t.Errorf("%d of %d pairs matched; the generators are off", matched, compared)
	}
}

func TestPatternsMatchAsInACaddyfile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, path string
		want          bool
	}{
		{"/orders/*", "/orders/", true},
		{"/orders/*", "/orders/1/items", true},
		{"/orders/*", "/orders", false},
		{"/orders*", "/orders", true},
		{"/orders*", "/ordersx/y", true},
		{"/orders", "/orders/", false},
		{"/ORDERS/*", "/orders/1", true},
		{"*.php", "/x/y.PHP", true},
		{"*.php", "/x.php/", false},
		{"*/admin/*", "/x/admin/y", true},
		{"*/admin/*", "/admin/", true},
		{"*/a*b", "/axb", true},
		{"*/a*b", "/axb/c", false},
		{"/a*b*", "/axby", true},
		{"/a*b*", "/x/axby", false},
		{"/*/edit", "/x/edit", true},
		{"/*/edit", "/x/y/edit", false},
		{"/a/*/*", "/a/b/c", true},
		{"/a/*/*", "/a/b/c/d", false},
		{"/file?", "/file1", true},
		{"/file?", "/file", false},
		{"/[ab]", "/b", true},
		{"/[ab]", "/c", false},
		{`/a\?`, "/a?", true},
		{`/a\?`, "/ab", false},
		{"/*", "/", true},
		{"/**", "/x", true},
	} {
		got := winner(t, []policy.Route{mustRoute(t, tt.pattern)}, http.MethodGet, tt.path) != ""
		if caddy := caddyMatches(t, tt.pattern, tt.path); got != tt.want || caddy != tt.want {
			t.Errorf("%q on %q: got %t, Caddy %t, want %t", tt.pattern, tt.path, got, caddy, tt.want)
		}
	}
}
