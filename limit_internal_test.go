package ratelimit

import (
	"net/http"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// snapshotOf is a snapshot whose only policy gives anonymous clients a limit.
func snapshotOf(t *testing.T, text string) (*policy.Snapshot, *policy.Applied) {
	t.Helper()
	l, err := policy.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	s, err := policy.NewSnapshot([]policy.Tier{{Name: policy.Anonymous, Policies: []policy.Policy{{Route: "*", Limit: l}}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, s.AppendMatches(nil, policy.Client{}, "GET", "/")[0]
}

func TestTheLimitOfAPolicyIsMadeOnceForEachSnapshot(t *testing.T) {
	t.Parallel()
	var cache policyCache
	before, first := snapshotOf(t, "10/1m")
	limit := cache.of(before).limit(first)
	if again := cache.of(before).limit(first); again != limit {
		t.Error("the same policy has two limits")
	}
	after, second := snapshotOf(t, "20/1m")
	if cache.of(after) == cache.of(before) {
		t.Error("the limits of a snapshot outlive it")
	}
	if changed := cache.of(after).limit(second); changed.atOnce != "20" || changed.name != limit.name {
		t.Errorf("after the change %s has %s units", changed.name, changed.atOnce)
	}
}

func TestAHeaderBelongsToItsRequestAlone(t *testing.T) {
	t.Parallel()
	l := state(t, "a", "100/1m", 0, 50, time.Second)
	h := make(http.Header)
	reported(t, l).writeHeaders(h, headerFamilies{x: true, draft: true})
	h.Add("X-RateLimit-Limit", "more")       // beside the first value, not over its neighbour
	h["Ratelimit-Policy"][0] = "overwritten" // as the directive header does when it replaces
	if got := h.Get("X-RateLimit-Remaining"); got != "50" {
		t.Errorf("a value added to one header made another %s", got)
	}
	next := make(http.Header)
	reported(t, l).writeHeaders(next, headerFamilies{x: true, draft: true})
	if got := next.Get("RateLimit-Policy"); got != `"a";q=100;w=60` {
		t.Errorf("the next request has %s", got)
	}
}
