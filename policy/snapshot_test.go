package policy_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// limited is a policy of count per minute.
func limited(count int64, route string, methods ...string) policy.Policy {
	return policy.Policy{Route: route, Methods: methods, Limit: policy.Limit{Count: count, Window: time.Minute}, Cost: 1}
}

// of binds a policy to one API key.
func of(key string, p policy.Policy) policy.Policy {
	p.APIKeyID = key
	return p
}

func mustSnapshot(t *testing.T, tiers []policy.Tier, keyPolicies ...policy.Policy) *policy.Snapshot {
	t.Helper()
	s, err := policy.NewSnapshot(tiers, keyPolicies)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// matches lists what applies as "name limit", in order.
func matches(s *policy.Snapshot, c policy.Client, method, path string) []string {
	var names []string
	for _, a := range s.AppendMatches(nil, c, method, policy.CleanPath(path)) {
		names = append(names, a.Name+" "+a.Rule.Limit.String())
	}
	return names
}

func TestTheCeilingAppliesAlwaysAndOneMoreAtMost(t *testing.T) {
	t.Parallel()
	s := mustSnapshot(t, []policy.Tier{
		{Name: "FREE", Policies: []policy.Policy{limited(600, "*"), limited(5, "/login", "POST"), limited(50, "/orders/*"), limited(20, "/orders/search")}},
		{Name: "ROUTES", Policies: []policy.Policy{limited(5, "/login")}},
		{Name: "EMPTY"},
	})
	for _, tt := range []struct {
		tier, method, path string
		want               []string
	}{
		{"FREE", "GET", "/", []string{"FREE * 600/1m"}},
		{"FREE", "POST", "/login", []string{"FREE /login POST 5/1m", "FREE * 600/1m"}},
		{"FREE", "GET", "/login", []string{"FREE * 600/1m"}},
		{"FREE", "GET", "/orders/1", []string{"FREE /orders/* 50/1m", "FREE * 600/1m"}},
		{"FREE", "GET", "/orders/search", []string{"FREE /orders/search 20/1m", "FREE * 600/1m"}},
		{"ROUTES", "GET", "/login", []string{"ROUTES /login 5/1m"}},
		{"ROUTES", "GET", "/", nil},
		{"EMPTY", "GET", "/", nil},
	} {
		if got := matches(s, policy.Client{Tier: tt.tier}, tt.method, tt.path); !slices.Equal(got, tt.want) {
			t.Errorf("%s %s %s: got %q, want %q", tt.tier, tt.method, tt.path, got, tt.want)
		}
	}
}

func TestAnAPIKeysPolicyReplacesItsTiersForTheSameRouteOnly(t *testing.T) {
	t.Parallel()
	s := mustSnapshot(t,
		[]policy.Tier{{Name: "FREE", Policies: []policy.Policy{limited(600, "*"), limited(5, "/login", "POST"), limited(50, "/orders/*"), limited(20, "/orders/search")}}},
		of("acme", limited(9000, "*")),
		of("globex", limited(500, "/Orders/*")),
		of("initech", limited(7, "/login")),
		of("hooli", limited(1, "/orders/search", "GET")),
		of("umbrella", limited(3, "/new")),
	)
	for _, tt := range []struct {
		key, method, path string
		want              []string
	}{
		{"acme", "GET", "/", []string{"api_key acme * 9000/1m"}},
		{"acme", "POST", "/login", []string{"FREE /login POST 5/1m", "api_key acme * 9000/1m"}},
		{"globex", "GET", "/orders/1", []string{"api_key globex /orders/* 500/1m", "FREE * 600/1m"}},
		{"globex", "GET", "/orders/search", []string{"FREE /orders/search 20/1m", "FREE * 600/1m"}},
		{"globex", "POST", "/login", []string{"FREE /login POST 5/1m", "FREE * 600/1m"}},
		{"initech", "POST", "/login", []string{"FREE /login POST 5/1m", "FREE * 600/1m"}},
		{"initech", "GET", "/login", []string{"api_key initech /login 7/1m", "FREE * 600/1m"}},
		{"hooli", "GET", "/orders/search", []string{"api_key hooli /orders/search GET 1/1m", "FREE * 600/1m"}},
		{"hooli", "POST", "/orders/search", []string{"FREE /orders/search 20/1m", "FREE * 600/1m"}},
		{"umbrella", "GET", "/new", []string{"api_key umbrella /new 3/1m", "FREE * 600/1m"}},
		{"nobody", "GET", "/orders/1", []string{"FREE /orders/* 50/1m", "FREE * 600/1m"}},
		{"", "GET", "/orders/1", []string{"FREE /orders/* 50/1m", "FREE * 600/1m"}},
	} {
		if got := matches(s, policy.Client{Tier: "FREE", APIKeyID: tt.key}, tt.method, tt.path); !slices.Equal(got, tt.want) {
			t.Errorf("%s %s %s: got %q, want %q", tt.key, tt.method, tt.path, got, tt.want)
		}
	}
}

// A policy that moves from the tier to the key counts in the same bucket: it
// is the same client on the same route.
func TestAReplacedPolicyKeepsItsScope(t *testing.T) {
	t.Parallel()
	s := mustSnapshot(t, []policy.Tier{{Name: "FREE", Policies: []policy.Policy{limited(600, "*")}}}, of("acme", limited(9, "*")))
	own := s.AppendMatches(nil, policy.Client{Tier: "FREE", APIKeyID: "acme"}, "GET", "/")
	tiers := s.AppendMatches(nil, policy.Client{Tier: "FREE"}, "GET", "/")
	if own[0].Scope != "global" || tiers[0].Scope != "global" {
		t.Errorf("got scopes %q and %q, want global", own[0].Scope, tiers[0].Scope)
	}
}

func TestAnonymousIsNeverUnlimited(t *testing.T) {
	t.Parallel()
	const builtIn = "anonymous * 30/1m"
	for _, tt := range []struct {
		name  string
		tiers []policy.Tier
		want  []string // for POST /login
	}{
		{"no tier at all", nil, []string{builtIn}},
		{"no such tier", []policy.Tier{{Name: "FREE", Policies: []policy.Policy{limited(600, "*")}}}, []string{builtIn}},
		{"a tier without policies", []policy.Tier{{Name: "anonymous"}}, []string{builtIn}},
		{"route policies alone", []policy.Tier{{Name: "anonymous", Policies: []policy.Policy{limited(5, "/login")}}}, []string{"anonymous /login 5/1m", builtIn}},
		{"every route, but one method only", []policy.Tier{{Name: "anonymous", Policies: []policy.Policy{limited(99, "*", "POST")}}}, []string{"anonymous * POST 99/1m", builtIn}},
		{"a ceiling of its own", []policy.Tier{{Name: "anonymous", Policies: []policy.Policy{limited(7, "*")}}}, []string{"anonymous * 7/1m"}},
	} {
		s := mustSnapshot(t, tt.tiers)
		// A tier that nobody defined counts as anonymous; its name comes from a token, so it may be anything.
		for _, tier := range []string{"anonymous", "", "GOLD", "Anonymous", "\x00"} {
			if got := matches(s, policy.Client{Tier: tier}, "POST", "/login"); !slices.Equal(got, tt.want) {
				t.Errorf("%s, client of tier %q: got %q, want %q", tt.name, tier, got, tt.want)
			}
		}
		if !s.HasTier("anonymous") || s.HasTier("GOLD") || s.HasTier("") {
			t.Errorf("%s: the snapshot does not know its own tiers", tt.name)
		}
	}
}

func TestAnAPIKeyOfAnUnknownTierKeepsItsOwnPolicies(t *testing.T) {
	t.Parallel()
	s := mustSnapshot(t, nil, of("acme", limited(5, "/login")))
	want := []string{"api_key acme /login 5/1m", "anonymous * 30/1m"}
	if got := matches(s, policy.Client{Tier: "GONE", APIKeyID: "acme"}, "GET", "/login"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAPolicyIsMadeReadyWithItsDefaults(t *testing.T) {
	t.Parallel()
	given := policy.Policy{ID: "p1", Route: "/Login", Methods: []string{"PUT", "POST"}, Limit: policy.Limit{Count: 5, Window: time.Minute}, Cost: 2, Mode: policy.Shadow, OnError: policy.Open}
	s := mustSnapshot(t, []policy.Tier{{Name: "FREE", Policies: []policy.Policy{limited(600, "*"), given}}})
	got := s.AppendMatches(nil, policy.Client{Tier: "FREE"}, "PUT", "/login")

	want := given
	want.Tier, want.Algorithm, want.Methods = "FREE", policy.TokenBucket, []string{"POST", "PUT"}
	if !reflect.DeepEqual(got[0].Policy, want) || got[0].Scope != "route:/login:POST,PUT" || got[0].Rule.Limit != given.Limit {
		t.Errorf("got %+v, want %+v", *got[0], want)
	}
	if ceiling := got[1]; ceiling.Mode != policy.Enforce || ceiling.OnError != "" || ceiling.Cost != 1 || ceiling.Scope != "global" {
		t.Errorf("got ceiling %+v", *ceiling)
	}
	given.Methods[0] = "CHANGED"
	if got[0].Methods[0] != "POST" || got[0].Methods[1] != "PUT" {
		t.Errorf("the snapshot changed with its caller's slice: %q", got[0].Methods)
	}
}

func TestMatchesAreAppendedWithoutAllocating(t *testing.T) {
	s := mustSnapshot(t, []policy.Tier{{Name: "FREE", Policies: []policy.Policy{limited(600, "*"), limited(5, "/login")}}})
	buf := make([]*policy.Applied, 1, 4)
	c := policy.Client{Tier: "FREE"}
	n := testing.AllocsPerRun(100, func() { buf = s.AppendMatches(buf[:1], c, "GET", "/login") })
	if n != 0 || len(buf) != 3 || buf[0] != nil {
		t.Errorf("got %v allocations and %d entries, want 0 and the 1 that was there plus 2", n, len(buf))
	}
}

func TestAWrongPolicyIsNamedAndNothingIsCompiled(t *testing.T) {
	t.Parallel()
	tiers := func(p ...policy.Policy) []policy.Tier { return []policy.Tier{{Name: "FREE", Policies: p}} }
	with := func(change func(*policy.Policy)) policy.Policy {
		p := limited(5, "/login", "POST")
		change(&p)
		return p
	}
	const place = "tier FREE: policy /login POST: "
	for _, tt := range []struct {
		name  string
		tiers []policy.Tier
		keys  []policy.Policy
		want  string
	}{
		{"a tier without a name", []policy.Tier{{}}, nil, `tier "": a name has 1 to 64 characters, like FREE`},
		{"a tier twice", []policy.Tier{{Name: "FREE"}, {Name: "PRO"}, {Name: "FREE"}}, nil, "tier FREE is defined twice; write all its policies in one place"},
		{"two ceilings", tiers(limited(1, "*"), limited(2, "*")), nil, "tier FREE: two policies for *; a route takes one, so merge them or make one route more specific"},
		{"a route twice", tiers(limited(1, "/a"), limited(2, "/b"), limited(3, "/A")), nil, "tier FREE: two policies for /a; a route takes one, so merge them or make one route more specific"},
		{"methods in another order", tiers(limited(1, "/a", "GET", "PUT"), limited(2, "/a", "PUT", "GET")), nil, "tier FREE: two policies for /a GET PUT; a route takes one, so merge them or make one route more specific"},
		{"a bad route", tiers(limited(1, "login")), nil, `tier FREE: policy login: route "login" must start with a slash, like /login; or write * for every route`},
		{"a bad method", tiers(limited(1, "/login", "post")), nil, `tier FREE: policy /login post: route /login: "post" is not a method; write one in capitals, like POST`},
		{"a bad limit", tiers(with(func(p *policy.Policy) { p.Limit.Window = 0 })), nil, place + "limit: window 0s must be positive, like 1s or 1m"},
		{"a bad cost", tiers(with(func(p *policy.Policy) { p.Cost = 6 })), nil, place + "cost 6 can never be granted: the limit 5/1m gives at most 5 at once; raise the burst or lower the cost"},
		{"a bad algorithm", tiers(with(func(p *policy.Policy) { p.Algorithm = "gcra" })), nil, place + `unknown algorithm "gcra"; write token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log`},
		{"a bad mode", tiers(with(func(p *policy.Policy) { p.Mode = "dry" })), nil, place + `unknown mode "dry"; write enforce or shadow`},
		{"a bad on_error", tiers(with(func(p *policy.Policy) { p.OnError = "pass" })), nil, place + `unknown on_error "pass"; write open, closed or local`},
		{"a key's bad policy", nil, []policy.Policy{of("acme", limited(-1, "*"))}, "api_key acme: policy *: limit: count -1 is negative; write 0 to deny everything"},
		{"a key's route twice", nil, []policy.Policy{of("acme", limited(1, "/a")), of("globex", limited(1, "/a")), of("acme", limited(2, "/a"))}, "api_key acme: two policies for /a; a route takes one, so merge them or make one route more specific"},
		{"a key's policy without a key", nil, []policy.Policy{limited(1, "/a", "GET")}, "policy /a GET names no API key; write its api_key_id, or put it into a tier"},
	} {
		s, err := policy.NewSnapshot(tt.tiers, tt.keys)
		if s != nil || err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, %v\nwant error %s", tt.name, s, err, tt.want)
		}
	}
}

func TestOneRouteMayHaveAPolicyPerMethod(t *testing.T) {
	t.Parallel()
	s := mustSnapshot(t, []policy.Tier{{Name: "FREE", Policies: []policy.Policy{limited(1, "/a", "GET"), limited(2, "/a", "POST"), limited(3, "/a")}}})
	for method, want := range map[string]string{"GET": "FREE /a GET 1/1m", "POST": "FREE /a POST 2/1m", "PUT": "FREE /a 3/1m"} {
		if got := matches(s, policy.Client{Tier: "FREE"}, method, "/a"); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: got %q, want %q", method, got, want)
		}
	}
}

// A tier's name stands in a quoted header field and in logs.
func TestATiersNameIsPrintableASCII(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"FREE", "anonymous", "tier-2_b", "a.b:c/d", "{x}", "~!", strings.Repeat("x", 64)} {
		if err := policy.CheckTierName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	const characters, length = "a name is printable ASCII without spaces, quotes and backslashes, like FREE", "a name has 1 to 64 characters, like FREE"
	for name, want := range map[string]string{
		"": length, strings.Repeat("x", 65): length,
		"a b": characters, "a\tb": characters, "a\nb": characters, "a\x00": characters, "a\x7f": characters,
		`a"b`: characters, `a\b`: characters, "é": characters, "\xff": characters, " ": characters,
	} {
		err := policy.CheckTierName(name)
		if want = fmt.Sprintf("tier %q: %s", name, want); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", name, err, want)
		}
	}
}
