package policy_test

import (
	"slices"
	"testing"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestEveryPolicyIsListedWithItsTier(t *testing.T) {
	t.Parallel()
	s := mustSnapshot(t, []policy.Tier{
		{Name: "PRO", Policies: []policy.Policy{limited(600, "*")}},
		{Name: "FREE", Policies: []policy.Policy{limited(60, "*"), limited(5, "/login", "POST")}},
	}, of("k1", limited(7, "/login", "POST")))
	var got []string
	for tier, p := range s.All() {
		got = append(got, tier+": "+p.Series)
	}
	want := []string{"FREE: FREE *", "FREE: FREE /login POST", "PRO: PRO *", "anonymous: anonymous *", ": api_key /login POST"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := s.TierNames(), []string{"FREE", "PRO", "anonymous"}; !slices.Equal(got, want) {
		t.Errorf("tiers: got %q, want %q", got, want)
	}
	for range s.All() {
		break // whoever has seen enough may leave
	}
}
