package policy_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func mustRoute(t *testing.T, pattern string, methods ...string) policy.Route {
	t.Helper()
	r, err := policy.NewRoute(pattern, methods...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestARouteIsNormalizedAndNamed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern     string
		methods     []string
		name, scope string
	}{
		{"*", nil, "*", "global"},
		{"*", []string{"GET"}, "* GET", "route:*:GET"},
		{"/*", nil, "/*", "route:/*"},
		{"/orders/*", nil, "/orders/*", "route:/orders/*"},
		{"/Login", []string{"POST"}, "/login POST", "route:/login:POST"},
		{"/login", []string{"PUT", "GET", "PUT"}, "/login GET PUT", "route:/login:GET,PUT"},
		{"/cal", []string{"M-SEARCH"}, "/cal M-SEARCH", "route:/cal:M-SEARCH"},
		{"*.php", nil, "*.php", "route:*.php"},
		{"*/admin/*", nil, "*/admin/*", "route:*/admin/*"},
		{"/files/[a-c]?.txt", nil, "/files/[a-c]?.txt", "route:/files/%5Ba-c%5D%3F.txt"},
		{"/a b:c", nil, "/a b:c", "route:/a%20b%3Ac"},
		{"/CAFÉ", nil, "/café", "route:/caf%C3%A9"},
		{"/.git/*", nil, "/.git/*", "route:/.git/*"},
		{"/dir/", nil, "/dir/", "route:/dir/"},
	} {
		r, err := policy.NewRoute(tt.pattern, tt.methods...)
		if err != nil {
			t.Errorf("%s: %v", tt.pattern, err)
			continue
		}
		if r.String() != tt.name || r.Scope() != tt.scope {
			t.Errorf("%s %v: got %q in %q, want %q in %q", tt.pattern, tt.methods, r, r.Scope(), tt.name, tt.scope)
		}
	}
}

func TestAWrongRouteIsRefusedWithWhatToWrite(t *testing.T) {
	t.Parallel()
	const (
		decoded = `: paths are matched decoded and cleaned, so a pattern takes no %, braces or double slashes; write the plain path`
		invalid = ` is not a valid pattern; close its [ and put nothing behind a last backslash, or write a path like /orders/*`
	)
	for _, tt := range []struct {
		pattern string
		methods []string
		want    string
	}{
		{"", nil, `route is empty; write a path like /orders/*, or * for every route`},
		{"orders", nil, `route "orders" must start with a slash, like /orders; or write * for every route`},
		{"http://example.com/", nil, `route "http://example.com/" must start with a slash, like /http://example.com/; or write * for every route`},
		{"/a%20b", nil, `route "/a%20b"` + decoded},
		{"/users/{id}", nil, `route "/users/{id}"` + decoded},
		{"//login", nil, `route "//login"` + decoded},
		{"/a//b", nil, `route "/a//b"` + decoded},
		{"/a/../b", nil, `route "/a/../b" can never match, since a request's path is cleaned of .. first; write /b`},
		{"/a/./b", nil, `route "/a/./b" can never match, since a request's path is cleaned of . first; write /a/b`},
		{"/a/..", nil, `route "/a/.." can never match, since a request's path is cleaned of .. first; write /`},
		{"/a[", nil, `route "/a["` + invalid},
		{"/[]a]", nil, `route "/[]a]"` + invalid},
		{`/a\`, nil, `route "/a\\"` + invalid},
		{"/*/b[", nil, `route "/*/b["` + invalid},
		{"/login", []string{"post"}, `route /login: "post" is not a method; write one in capitals, like POST`},
		{"/login", []string{"GET", ""}, `route /login: "" is not a method; write one in capitals, like POST`},
		{"/login", []string{"GET,POST"}, `route /login: "GET,POST" is not a method; write one in capitals, like POST`},
		{"/login", []string{"*"}, `route /login: "*" is not a method; write one in capitals, like POST`},
	} {
		r, err := policy.NewRoute(tt.pattern, tt.methods...)
		if err == nil || err.Error() != tt.want {
			t.Errorf("%q %q: got %+v, %v\nwant error %s", tt.pattern, tt.methods, r, err, tt.want)
		}
	}
}

func TestARouteDoesNotKeepOrSortItsCallersMethods(t *testing.T) {
	t.Parallel()
	methods := []string{"PUT", "GET"}
	r := mustRoute(t, "/x", methods...)
	r.Methods[0] = "CHANGED"
	if !slices.Equal(methods, []string{"PUT", "GET"}) {
		t.Errorf("got %q, want them as they were", methods)
	}
}

func TestAPathIsCleanedBeforeItIsMatched(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"/", "/"},
		{"", "/"},
		{"*", "/*"}, // OPTIONS *
		{"/login", "/login"},
		{"/Login", "/login"},
		{"/LOGIN/", "/login/"},
		{"//login", "/login"},
		{"/login//", "/login/"},
		{"///", "/"},
		{"/a/../login", "/login"},
		{"/./login", "/login"},
		{"/login/.", "/login"},
		{"/login/..", "/"},
		{"/../../login", "/login"},
		{"../login", "/login"},
		{"login", "/login"},
		{"/É", "/é"},
		{"/a b", "/a b"},
	} {
		if got := policy.CleanPath(tt.in); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestACleanPathStaysAsItIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := policy.CleanPath(anyPath().Draw(t, "path"))
		if again := policy.CleanPath(p); again != p {
			t.Fatalf("%q is cleaned to %q", p, again)
		}
		if !strings.HasPrefix(p, "/") || strings.Contains(p, "//") {
			t.Fatalf("%q is not clean", p)
		}
	})
}

func TestCleaningACleanPathAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { policy.CleanPath("/orders/42") }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// winner says which of a tier's routes applies to a request, besides its
// ceiling.
func winner(t testing.TB, routes []policy.Route, method, path string) string {
	t.Helper()
	tier := policy.Tier{Name: "FREE", Policies: []policy.Policy{free("*")}}
	for _, r := range routes {
		tier.Policies = append(tier.Policies, free(r.Path, r.Methods...))
	}
	s, err := policy.NewSnapshot([]policy.Tier{tier}, nil)
	if err != nil {
		t.Fatal(err)
	}
	switch got := s.AppendMatches(nil, policy.Client{Tier: "FREE"}, method, policy.CleanPath(path)); len(got) {
	case 1:
		return "" // the ceiling alone
	case 2:
		return strings.TrimPrefix(got[0].Name, "FREE ")
	default:
		t.Fatalf("got %d policies, want the ceiling and one more at most", len(got))
		return ""
	}
}

// free is a policy of 5/1m.
func free(route string, methods ...string) policy.Policy {
	return policy.Policy{Route: route, Methods: methods, Limit: policy.Limit{Count: 5, Window: time.Minute}, Cost: 1}
}

// Each path reaches the site's /login handler on some server; none may reach
// it past the limit.
func TestALimitOnLoginCannotBeWalkedAround(t *testing.T) {
	t.Parallel()
	login := []policy.Route{mustRoute(t, "/login", "POST")}
	for _, p := range []string{"/login", "/Login", "/LOGIN", "//login", "///login", "/a/../login", "/./login", "/login/.", "/../login", "/a/b/../../login", "/login/x/.."} {
		if got := winner(t, login, "POST", p); got != "/login POST" {
			t.Errorf("%s: got %q, want the limit on /login POST", p, got)
		}
	}
	for _, p := range []string{"/login/", "/login/x", "/loginx", "/xlogin", "/x/login", "/", "/login\x00"} {
		if got := winner(t, login, "POST", p); got != "" {
			t.Errorf("%s: got %q, want no limit but the ceiling", p, got)
		}
	}
}

func TestALimitOnOneMethodLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	routes := []policy.Route{mustRoute(t, "/login", "POST", "PUT")}
	for method, want := range map[string]string{"POST": "/login POST PUT", "PUT": "/login POST PUT", "GET": "", "HEAD": "", "DELETE": "", "post": "", "": "", "POST PUT": ""} {
		if got := winner(t, routes, method, "/login"); got != want {
			t.Errorf("%s: got %q, want %q", method, got, want)
		}
	}
}

func TestTheMostSpecificRouteWins(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		method, path string
		routes       []policy.Route // the first one wins
	}{
		{"an exact path before a longer pattern", "GET", "/a/b", []policy.Route{mustRoute(t, "/a/b"), mustRoute(t, "/[a]/?"), mustRoute(t, "/a/*")}},
		{"an exact path before a pattern with a method", "GET", "/a/b", []policy.Route{mustRoute(t, "/a/b"), mustRoute(t, "/a/b*", "GET")}},
		{"a longer prefix before a shorter one", "GET", "/a/b/c", []policy.Route{mustRoute(t, "/a/b/*"), mustRoute(t, "/a/*"), mustRoute(t, "/*")}},
		{"more literals before fewer, whatever the kind", "GET", "/orders/x.php", []policy.Route{mustRoute(t, "/orders/*"), mustRoute(t, "*.php")}},
		{"a class counts as none of its characters", "GET", "/abc/x", []policy.Route{mustRoute(t, "/abc/*"), mustRoute(t, "/[abcdefghij]bc/?")}},
		{"a method before all methods", "GET", "/a", []policy.Route{mustRoute(t, "/a", "GET"), mustRoute(t, "/a")}},
		{"one method before two", "POST", "/a", []policy.Route{mustRoute(t, "/a", "POST"), mustRoute(t, "/a", "GET", "POST")}},
		{"the path before the method", "GET", "/a/b", []policy.Route{mustRoute(t, "/a/b"), mustRoute(t, "/a/*", "GET")}},
		{"what is left by name", "GET", "/ab", []policy.Route{mustRoute(t, "/?b"), mustRoute(t, "/a?")}},
		{"a route for every path and one method before the ceiling only", "GET", "/x", []policy.Route{mustRoute(t, "*", "GET")}},
	} {
		for i := range tt.routes {
			rotated := slices.Concat(tt.routes[i:], tt.routes[:i])
			if got, want := winner(t, rotated, tt.method, tt.path), tt.routes[0].String(); got != want {
				t.Errorf("%s: got %q, want %q, of %q", tt.name, got, want, rotated)
			}
			slices.Reverse(rotated)
			if got, want := winner(t, rotated, tt.method, tt.path), tt.routes[0].String(); got != want {
				t.Errorf("%s: got %q, want %q, of %q", tt.name, got, want, rotated)
			}
		}
	}
}
