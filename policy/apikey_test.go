package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestAKeyIsLongRandomAndChecked(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	used := make(map[rune]int)
	for range 2000 {
		key := policy.NewKey()
		if seen[key] || len(key) != 41 || !strings.HasPrefix(key, "tg_") || !policy.CheckKey(key) {
			t.Fatalf("got %q", key)
		}
		seen[key] = true
		for _, c := range key[3:35] {
			used[c]++
		}
	}
	// 62 letters and digits, each about 1032 times
	if len(used) != 62 {
		t.Errorf("%d characters are used, want 62", len(used))
	}
	for c, n := range used {
		if n < 800 || n > 1300 {
			t.Errorf("%q is used %d times in 64000", c, n)
		}
	}
}

// A key that is mistyped in one place, or whose neighbours are swapped, is
// always noticed: that is what the checksum is for.
func TestAMistypedKeyIsNoticed(t *testing.T) {
	t.Parallel()
	key := policy.NewKey()
	for i := 3; i < len(key); i++ {
		for _, c := range []byte("aZ0-_ \x00") {
			if c != key[i] && policy.CheckKey(key[:i]+string(c)+key[i+1:]) {
				t.Errorf("%q in place %d is not noticed", c, i)
			}
		}
		if i+1 < len(key) && key[i] != key[i+1] && policy.CheckKey(key[:i]+key[i+1:i+2]+key[i:i+1]+key[i+2:]) {
			t.Errorf("swapping places %d and %d is not noticed", i, i+1)
		}
	}
	for _, broken := range []string{"tg_", key[:40], key + "0", "tg_" + key, "tg_" + strings.Repeat("0", 38)} {
		if policy.CheckKey(broken) {
			t.Errorf("%q is taken for a key", broken)
		}
	}
	for _, foreign := range []string{"", "sk_live_1", "TG_" + key[3:]} {
		if !policy.CheckKey(foreign) {
			t.Errorf("%q, a key of another make, is refused", foreign)
		}
	}
}

func FuzzCheckKey(f *testing.F) {
	f.Add(policy.NewKey())
	f.Add("tg_")
	f.Fuzz(func(t *testing.T, presented string) {
		if policy.CheckKey(presented) && strings.HasPrefix(presented, "tg_") && len(presented) != 41 {
			t.Errorf("%q is taken for a key", presented)
		}
	})
}

func TestAPrefixShowsTheBeginningOnly(t *testing.T) {
	t.Parallel()
	key := policy.NewKey()
	if got := policy.KeyPrefix(key); got != key[:8] || policy.KeyPrefix("abc") != "abc" {
		t.Errorf("got %q", got)
	}
}

func TestAKeyWorksUntilTheFirstOfItsEnds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return now.Add(time.Duration(minutes) * time.Minute) }
	current, before := policy.HashKey("current"), policy.HashKey("before")
	for _, tt := range []struct {
		name          string
		change        func(*policy.KeyRecord)
		current, last int // minutes until which they work; 0 is never, -1 not at all
	}{
		{"without an end", func(*policy.KeyRecord) {}, 0, -1},
		{"expires", func(k *policy.KeyRecord) { k.ExpiresAt = at(5) }, 5, -1},
		{"revoked", func(k *policy.KeyRecord) { k.RevokedAt = at(3) }, 3, -1},
		{"revoked and expires", func(k *policy.KeyRecord) { k.RevokedAt, k.ExpiresAt = at(3), at(2) }, 2, -1},
		{"rotated", func(k *policy.KeyRecord) { k.PreviousSHA256, k.PreviousUntil = before, at(4) }, 0, 4},
		{"rotated and expires sooner", func(k *policy.KeyRecord) { k.PreviousSHA256, k.PreviousUntil, k.ExpiresAt = before, at(4), at(1) }, 1, 1},
		{"rotated and expires later", func(k *policy.KeyRecord) { k.PreviousSHA256, k.PreviousUntil, k.ExpiresAt = before, at(4), at(9) }, 9, 4},
	} {
		k := policy.KeyRecord{SHA256: current}
		tt.change(&k)
		for sum, end := range map[[32]byte]int{current: tt.current, before: tt.last, policy.HashKey("other"): -1, {}: -1} {
			if got := k.Works(sum, at(0)); got != (end >= 0) {
				t.Errorf("%s: works at once is %t", tt.name, got)
			}
			if end > 0 && (!k.Works(sum, at(end).Add(-1)) || k.Works(sum, at(end))) {
				t.Errorf("%s: does not end at minute %d", tt.name, end)
			}
			if end == 0 && !k.Works(sum, at(1e6)) {
				t.Errorf("%s: ends", tt.name)
			}
		}
	}
}
