package policy_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestAStoreStartsWithTheTiersOfTheManual(t *testing.T) {
	t.Parallel()
	var tiers []policy.TierRecord
	for _, p := range policy.SeedTiers() {
		tiers = append(tiers, policy.TierRecord{Name: p.Tier})
		if checked, err := policy.CheckPolicy(p.Policy); err != nil || !reflect.DeepEqual(checked, p.Policy) {
			t.Errorf("%s would not be stored as it is: %+v, %v", p.ID, checked, err)
		}
		if p.Protected() != (p.Tier == policy.Anonymous) {
			t.Errorf("%s is protected: %t", p.ID, p.Protected())
		}
	}
	s, err := policy.Compile(tiers, policy.SeedTiers())
	if err != nil {
		t.Fatal(err)
	}
	for tier, want := range map[string]string{"anonymous": "anonymous * 30/1m", "FREE": "FREE * 60/1m", "PRO": "PRO * 600/1m", "ENTERPRISE": "ENTERPRISE * 6000/1m"} {
		if got := matches(s, policy.Client{Tier: tier}, "GET", "/"); len(got) != 1 || got[0] != want {
			t.Errorf("tier %s has %q, want %s", tier, got, want)
		}
	}
}

func TestAPolicyOfATierThatIsNotStoredDoesNotCompile(t *testing.T) {
	t.Parallel()
	s, err := policy.Compile(nil, []policy.PolicyRecord{{Policy: limited(5, "/x")}})
	if s != nil || err == nil {
		t.Errorf("got %v, %v", s, err)
	}
}

func TestTheStrictestSnapshotLimitsEverybody(t *testing.T) {
	t.Parallel()
	for _, tier := range []string{"", "anonymous", "ENTERPRISE"} {
		if got := matches(policy.Strictest(), policy.Client{Tier: tier}, "GET", "/"); len(got) != 1 || got[0] != "anonymous * 30/1m" {
			t.Errorf("tier %q has %q", tier, got)
		}
	}
}

func TestRecordsComeBackFromJSONAsTheyWere(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 14, 15, 9, 26, 535_897_000, time.UTC)
	want := policy.PolicyRecord{Version: 7, CreatedAt: at, UpdatedAt: at.Add(1), Policy: policy.Policy{
		ID: "p1", Tier: "FREE", Route: "/a b", Methods: []string{"GET"}, Limit: policy.Limit{Count: 5, Window: 1500 * time.Microsecond, Burst: 9},
		Algorithm: policy.SlidingLog, Cost: 2, Mode: policy.Shadow, OnError: policy.Closed,
	}}
	var got policy.PolicyRecord
	if text := back(t, want, &got); !reflect.DeepEqual(got, want) || !strings.Contains(text, `"window":"1.5ms"`) || !strings.Contains(text, `"limit":5`) {
		t.Errorf("%s became %+v", text, got)
	}
	for _, window := range []time.Duration{time.Millisecond, time.Microsecond * 1001, 90 * time.Minute, 36 * time.Hour, policy.MaxWindow} {
		want.Limit.Window = window
		if text := back(t, want, &got); got.Limit.Window != window {
			t.Errorf("%s became %s", text, got.Limit.Window)
		}
	}
	tier := policy.TierRecord{Name: "FREE", Version: 2, CreatedAt: at, UpdatedAt: at}
	var gotTier policy.TierRecord
	if text := back(t, tier, &gotTier); gotTier != tier {
		t.Errorf("%s became %+v", text, gotTier)
	}
	key := policy.KeyRecord{
		ID: "k1", Prefix: "tg_abcde", Client: "acme", Tier: "FREE", SHA256: policy.HashKey("a"), PreviousSHA256: policy.HashKey("b"),
		PreviousUntil: at, CreatedAt: at, UpdatedAt: at, ExpiresAt: at, RevokedAt: at, LastUsedAt: at, Version: 3,
	}
	var gotKey policy.KeyRecord
	text := back(t, key, &gotKey)
	key.SHA256, key.PreviousSHA256 = [32]byte{}, [32]byte{}
	if gotKey != key || strings.Contains(text, "sha") {
		t.Errorf("%s became %+v; hashes must not be in it", text, gotKey)
	}
}

func back(t *testing.T, record, into any) (text string) {
	t.Helper()
	b, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Each field's error says what to write; the store's suite covers the rest.
func TestAFieldErrorSaysWhatIsAllowed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		change func(*policy.Policy)
		want   string
	}{
		{func(p *policy.Policy) { p.Limit.Count = -1 }, "limit: count -1 is negative; write 0 to deny everything"},
		{func(p *policy.Policy) { p.Limit.Window = 0 }, "window: window 0s must be positive, like 1s or 1m"},
		{func(p *policy.Policy) { p.Limit.Burst = -1 }, "burst: burst -1 is negative; write a whole number from 1, or leave it out for 5"},
		{func(p *policy.Policy) { p.Limit = policy.Limit{Window: time.Second, Burst: 1} }, "burst: a count of 0 denies everything, so it takes no burst"},
		{func(p *policy.Policy) { p.Limit.Count, p.Cost = 0, policy.MaxCount+1 }, "cost: cost 1000000000001 is too large; the most is 1000000000000"},
		{func(p *policy.Policy) { p.Tier = "" }, "tier: a policy belongs to a tier or to an API key; write either tier or api_key_id"},
	} {
		p := limited(5, "/x")
		p.ID, p.Tier = "p1", "FREE"
		if _, err := policy.CheckPolicy(p); err != nil {
			t.Fatal("what is right is refused:", err)
		}
		tt.change(&p)
		if _, err := policy.CheckPolicy(p); err == nil || err.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
	}
}

func TestWhatUsesATierIsNamed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		policies, keys int64
		want           string
	}{
		{"GOLD", 0, 0, ""},
		{"GOLD", 2, 0, "tier GOLD is in use by 2 policies; delete them or give them another tier first"},
		{"GOLD", 2, 3, "tier GOLD is in use by 3 API keys and 2 policies; delete them or give them another tier first"},
		{"anonymous", 0, 0, "tier anonymous is in use by every client without a key; it stays, but its limits can be changed"},
	} {
		err := policy.TierUse(tt.name, tt.policies, tt.keys)
		if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, policy.ErrInUse) || err.Error() != tt.want) {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
	if !errors.Is(policy.ErrProtected, policy.ErrInUse) || !errors.Is(policy.RouteTaken(limited(1, "/x"), "p1"), policy.ErrExists) {
		t.Error("an error is not of its kind")
	}
}

func TestAPageHasABound(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int]int{-1: 100, 0: 100, 1: 1, 1000: 1000, 1001: 1000} {
		if got := (policy.Page{Limit: limit}).PageLimit(); got != want {
			t.Errorf("a page of %d has %d", limit, got)
		}
	}
}
