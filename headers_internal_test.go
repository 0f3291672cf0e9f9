package ratelimit

import (
	"net/http"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// reported is a report of limits that were all allowed, at a whole second.
func reported(t *testing.T, entries ...entry) *report {
	t.Helper()
	rep := newReport(nil)
	for _, e := range entries {
		rep.add(e.limit, e.Decision)
	}
	rep.settle(0)
	rep.at = time.Unix(1_700_000_000, 0)
	return rep
}

// state is a limit with some units left.
func state(t *testing.T, name, limitText string, burst, remaining int64, reset time.Duration) entry {
	t.Helper()
	l, err := policy.ParseLimit(limitText)
	if err != nil {
		t.Fatal(err)
	}
	l.Burst = burst
	rule, err := policy.NewRule(l, policy.TokenBucket)
	if err != nil {
		t.Fatal(err)
	}
	return entry{limit: newLimit(name, name, "", rule, policy.Enforce, ""), Decision: policy.Decision{Allowed: true, Remaining: remaining, ResetAfter: reset}}
}

func TestHeadersDescribeTheLimitNearestItsEndAndListAll(t *testing.T) {
	t.Parallel()
	rep := reported(t,
		state(t, "minute", "100/1m", 0, 50, 30*time.Second),
		state(t, "day", "1000/1d", 0, 7, time.Hour),
		state(t, "burst", "10/1s", 40, 39, 1),
	)
	h := make(http.Header)
	rep.writeHeaders(h, headerFamilies{x: true, draft: true})
	for name, want := range map[string]string{
		"X-Ratelimit-Limit":     "1000",
		"X-Ratelimit-Remaining": "7",
		"X-Ratelimit-Reset":     "1700003600",
		"Ratelimit-Policy":      `"minute";q=100;w=60, "day";q=1000;w=86400, "burst";q=10;w=1;burst=40`,
		"Ratelimit":             `"minute";r=50;t=30, "day";r=7;t=3600, "burst";r=39;t=1`,
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestAWindowOfPartsOfASecondHasNoW(t *testing.T) {
	t.Parallel()
	rep := reported(t, state(t, "a", "10/1500ms", 0, 5, 0))
	if got, want := rep.policyList(nil), `"a";q=10`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestLimitsInTheShadowAreNotShown(t *testing.T) {
	t.Parallel()
	shadow := state(t, "shadow", "10/1s", 0, 0, time.Second)
	shadow.shadow, shadow.Allowed = true, false
	rep := reported(t, shadow)
	h := make(http.Header)
	if rep.writeHeaders(h, headerFamilies{x: true, draft: true}); len(h) > 0 {
		t.Errorf("got %v", h)
	}
	if rep.outcome != outcomeShadowBlocked {
		t.Errorf("outcome is %s", rep.outcome)
	}
	rep = reported(t, shadow, state(t, "seen", "10/1s", 0, 9, time.Second))
	if got, want := string(rep.appendStates(nil)), `"seen";r=9;t=1`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func FuzzNamesStayInsideTheirStructuredField(f *testing.F) {
	for _, name := range []string{"login", `a"b`, `a\b`, "größe", "a, b;q=1", "%41", "\x00\xff", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		line := string(appendName(nil, name)) + ";q=1"
		list, err := httpsfv.UnmarshalList([]string{line})
		if err != nil || len(list) != 1 {
			t.Fatalf("%q became %s: %v", name, line, err)
		}
	})
}
