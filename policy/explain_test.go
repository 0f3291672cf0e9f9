package policy_test

import (
	"slices"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// explainedSnapshot has a tier and a key with policies of both kinds.
func explainedSnapshot(t *testing.T) *policy.Snapshot {
	t.Helper()
	limit := policy.Limit{Count: 10, Window: time.Minute}
	s, err := policy.NewSnapshot(
		[]policy.Tier{{Name: "FREE", Policies: []policy.Policy{
			{Route: "*", Limit: limit, Cost: 1},
			{Route: "/login", Methods: []string{"POST"}, Limit: limit, Cost: 1},
			{Route: "/orders/*", Limit: limit, Cost: 1},
			{Route: "/orders/archive/*", Limit: limit, Cost: 1},
		}}},
		[]policy.Policy{
			{APIKeyID: "k1", Route: "/orders/*", Limit: limit, Cost: 1},
			{APIKeyID: "k2", Route: "*", Limit: limit, Cost: 1},
			{APIKeyID: "k3", Route: "*", Limit: limit, Cost: 1, Mode: policy.Shadow},
			{APIKeyID: "k3", Route: "/login", Methods: []string{"POST"}, Limit: limit, Cost: 1, Mode: policy.Shadow},
		})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAnExplanationSaysOfEachPolicyWhyItAppliesOrNot(t *testing.T) {
	s := explainedSnapshot(t)
	tests := map[string]struct {
		client       policy.Client
		method, path string
		want         []string // + for a policy that applies
	}{
		"a route and the ceiling": {policy.Client{Tier: "FREE"}, "POST", "/login", []string{
			"+FREE /login POST is the most specific policy that matches; the tier's",
			"+FREE * is the tier's ceiling, which every request counts against",
			"-FREE /orders/archive/* does not match the path /login",
			"-FREE /orders/* does not match the path /login",
		}},
		"a key's own policies in shadow lift no limit": {policy.Client{Tier: "FREE", APIKeyID: "k3"}, "POST", "/login", []string{
			"+FREE /login POST is the most specific policy that matches; the tier's",
			"+FREE * is the tier's ceiling, which every request counts against",
			"-api_key k3 * is in shadow, and replaces no policy of the tier that is enforced",
			"-api_key k3 /login POST is in shadow, and replaces no policy of the tier that is enforced",
			"-FREE /orders/archive/* does not match the path /login",
			"-FREE /orders/* does not match the path /login",
		}},
		"another method": {policy.Client{Tier: "FREE"}, "GET", "/login", []string{
			"+FREE * is the tier's ceiling, which every request counts against",
			"-FREE /login POST is only for POST",
			"-FREE /orders/archive/* does not match the path /login",
			"-FREE /orders/* does not match the path /login",
		}},
		"the most specific wins": {policy.Client{Tier: "FREE"}, "GET", "/orders/archive/1", []string{
			"+FREE /orders/archive/* is the most specific policy that matches; the tier's",
			"+FREE * is the tier's ceiling, which every request counts against",
			"-FREE /login POST does not match the path /orders/archive/1",
			"-FREE /orders/* matches, but FREE /orders/archive/* is more specific",
		}},
		"a key's own policy": {policy.Client{Tier: "FREE", APIKeyID: "k1"}, "GET", "/orders/1", []string{
			"+api_key k1 /orders/* is the most specific policy that matches; the API key's own",
			"+FREE * is the tier's ceiling, which every request counts against",
			"-FREE /login POST does not match the path /orders/1",
			"-FREE /orders/archive/* does not match the path /orders/1",
			"-FREE /orders/* is replaced by the API key's own policy for the same route",
		}},
		"a key's own ceiling": {policy.Client{Tier: "FREE", APIKeyID: "k2"}, "GET", "/", []string{
			"+api_key k2 * is the API key's own ceiling, which every request counts against",
			"-FREE * is replaced by the API key's own ceiling",
			"-FREE /login POST does not match the path /",
			"-FREE /orders/archive/* does not match the path /",
			"-FREE /orders/* does not match the path /",
		}},
		"a tier that nobody knows": {policy.Client{Tier: "GOLD"}, "GET", "/", []string{
			"+anonymous * is the tier's ceiling, which every request counts against",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, m := range s.Explain(tt.client, tt.method, tt.path) {
				sign := "-"
				if m.Applies {
					sign = "+"
				}
				got = append(got, sign+m.Name+" "+m.Why)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n%q\nwant\n%q", got, tt.want)
			}
		})
	}
}

func TestTheListedPoliciesOfAClientLeaveOutReplacedOnes(t *testing.T) {
	var got []string
	for _, p := range explainedSnapshot(t).AppendPolicies(nil, policy.Client{Tier: "FREE", APIKeyID: "k1"}) {
		got = append(got, p.Name)
	}
	want := []string{"api_key k1 /orders/*", "FREE *", "FREE /login POST", "FREE /orders/archive/*"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestThePoliciesOfAClientAreThoseThatMayApply(t *testing.T) {
	s := explainedSnapshot(t)
	for key, want := range map[string][]string{
		"k2": {"api_key k2 *", "FREE /login POST", "FREE /orders/archive/*", "FREE /orders/*"},
		"k3": {"FREE *", "FREE /login POST", "FREE /orders/archive/*", "FREE /orders/*"},
	} {
		var got []string
		for _, p := range s.AppendPolicies(nil, policy.Client{Tier: "FREE", APIKeyID: key}) {
			got = append(got, p.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
}
