package memorybackend

import (
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// A store that is told what another one decided refuses what that one would, and
// gives no more than that one would have.
func TestWhatAnotherBackendSaidIsNotHadAgain(t *testing.T) {
	for _, a := range []policy.Algorithm{policy.TokenBucket, policy.LeakyBucket, policy.FixedWindow, policy.SlidingWindow, policy.SlidingLog} {
		l := policy.Limit{Count: 10, Window: time.Minute}
		if a == policy.LeakyBucket {
			l.MaxDelay = 54 * time.Second // ten at once
		}
		rule, err := policy.NewRule(l, a)
		if err != nil {
			t.Fatal(err)
		}
		there, here := NewStore(100), NewStore(100)
		decisions := make([]policy.Decision, 1)
		buckets := request("client", rule, 7)
		there.Take(start, buckets, decisions)
		here.Tell(start, buckets, decisions)

		stale := []policy.Decision{{Allowed: true, Remaining: 9, ResetAfter: 6 * time.Second}}
		here.Tell(start, buckets, stale) // an earlier answer that comes late
		if d := ask(here, start, "client", rule, 0); d.Remaining > 3 || d.Remaining < 2 {
			t.Errorf("%s: %d are left, want 3, or one less", a, d.Remaining)
		}
		if d := ask(here, start, "other", rule, 0); d.Remaining != 10 {
			t.Errorf("%s: somebody else has %d left, want all 10", a, d.Remaining)
		}
		for _, later := range []int64{0, 20 * second, 59 * second, 119 * second} {
			want, got := ask(there, start+later, "client", rule, 0), ask(here, start+later, "client", rule, 0)
			if got.Remaining > want.Remaining {
				t.Errorf("%s after %d s: %d are left, and only %d where it was counted", a, later/second, got.Remaining, want.Remaining)
			}
		}
		if d := ask(here, start+121*second, "client", rule, 0); d.Remaining != 10 {
			t.Errorf("%s: after two windows %d are left", a, d.Remaining)
		}
	}
}
