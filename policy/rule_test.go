package policy_test

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestARuleIsTheLimitInLowestTerms(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit              policy.Limit
		num, den, capacity int64
	}{
		{policy.Limit{Count: 100, Window: time.Minute}, 1, 600_000, 60_000_000},
		{policy.Limit{Count: 7, Window: time.Minute}, 7, 60_000_000, 420_000_000},
		{policy.Limit{Count: 3, Window: 10 * time.Second}, 3, 10_000_000, 30_000_000},
		{policy.Limit{Count: 10, Window: time.Second, Burst: 50}, 1, 100_000, 5_000_000},
		{policy.Limit{Count: 10, Window: time.Second, Burst: 1}, 1, 100_000, 100_000},
		{policy.Limit{Count: 1_000_000, Window: time.Second}, 1, 1, 1_000_000},
		{policy.Limit{Count: 5_000_000, Window: time.Second}, 5, 1, 5_000_000},
		{policy.Limit{Count: policy.MaxCount, Window: day}, 625, 54, 54_000_000_000_000},
		{policy.Limit{Count: 1, Window: policy.MaxWindow}, 1, 31_622_400_000_000, 31_622_400_000_000},
	} {
		r, err := policy.NewRule(tt.limit, policy.TokenBucket)
		if err != nil {
			t.Errorf("%s: %v", tt.limit, err)
			continue
		}
		want := policy.Rule{
			Limit: tt.limit, Algorithm: policy.TokenBucket, Window: tt.limit.Window.Microseconds(),
			Num: tt.num, Den: tt.den, Capacity: tt.capacity, AtOnce: tt.limit.Capacity(),
		}
		if *r != want {
			t.Errorf("%s: got %+v, want %+v", tt.limit, *r, want)
		}
	}
}

// 2^53-1 = 20394401 x 441650591, and 2^53 = 2^20 x 2^33: the last capacity that
// fits and the first that does not.
func TestACapacityFitsBelowTwoToThe53AndNotAtIt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		window time.Duration
		burst  int64
		want   int64 // 0: refused
	}{
		{20_394_401 * time.Microsecond, 441_650_591, 1<<53 - 1},
		{1 << 20 * time.Microsecond, 1<<33 - 1, 1<<53 - 1<<20},
		{1 << 20 * time.Microsecond, 1 << 33, 0},
		{20_394_401 * time.Microsecond, 441_650_592, 0},
		{1 << 26 * time.Microsecond, 1 << 38, 0}, // 2^64, whose lower 64 bits are 0
		{policy.MaxWindow, policy.MaxCount, 0},
	} {
		l := policy.Limit{Count: 1, Window: tt.window, Burst: tt.burst}
		r, err := policy.NewRule(l, policy.TokenBucket)
		switch {
		case tt.want == 0 && err == nil:
			t.Errorf("%s: got capacity %d, want an error", l, r.Capacity)
		case tt.want != 0 && (err != nil || r.Capacity != tt.want):
			t.Errorf("%s: got %+v, %v, want capacity %d", l, r, err, tt.want)
		}
	}
}

func TestALimitBeyondExactArithmeticIsRefusedWithWhatToWrite(t *testing.T) {
	t.Parallel()
	_, err := policy.NewRule(policy.Limit{Count: 1, Window: 365 * day, Burst: 1000}, policy.TokenBucket)
	const want = "limit 1/365d burst 1000 cannot be counted exactly: its burst of 1000 times 31536000000000 " +
		"(the window in microseconds, reduced by the count) reaches 2^53; write a smaller burst, a shorter window, " +
		"or a count that shares more factors with the window"
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// Whatever the limit, a rule says the same rate and capacity as its limit, in
// integers that a float64 holds.
func TestARuleIsExactOrRefused(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := anyLimit(t)
		l.Count = max(1, l.Count)
		l.Burst = rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, policy.MaxCount)).Draw(t, "burst")
		r, err := policy.NewRule(l, policy.TokenBucket)

		window, count := big.NewInt(l.Window.Microseconds()), big.NewInt(l.Count)
		gcd := new(big.Int).GCD(nil, nil, window, count)
		den := new(big.Int).Div(window, gcd)
		capacity := new(big.Int).Mul(den, big.NewInt(l.Capacity()))
		fits := capacity.Cmp(big.NewInt(1<<53)) < 0
		switch {
		case !fits && err == nil:
			t.Fatalf("%s: capacity %s was accepted", l, capacity)
		case fits && err != nil:
			t.Fatalf("%s: capacity %s was refused: %v", l, capacity, err)
		case fits && (r.Capacity != capacity.Int64() || r.Den != den.Int64() || r.Num != new(big.Int).Div(count, gcd).Int64()):
			t.Fatalf("%s: got %+v, want den %s and capacity %s", l, *r, den, capacity)
		}
	})
}

func TestALimitOfZeroDeniesEverythingByAnyAlgorithm(t *testing.T) {
	t.Parallel()
	for _, a := range []policy.Algorithm{policy.TokenBucket, policy.LeakyBucket, policy.FixedWindow, policy.SlidingWindow, policy.SlidingLog, ""} {
		r, err := policy.NewRule(policy.Limit{Window: time.Minute}, a)
		if err != nil || !r.DenyAll() || r.Capacity != 0 || r.AtOnce != 0 {
			t.Errorf("%q: got %+v, %v, want a rule that denies all", a, r, err)
		}
	}
	r, err := policy.NewRule(policy.Limit{Count: 1, Window: time.Minute}, "")
	if err != nil || r.DenyAll() || r.Algorithm != policy.TokenBucket {
		t.Errorf("got %+v, %v, want a token bucket that denies not all", r, err)
	}
}

func TestARuleRefusesABrokenLimitBeforeItComputes(t *testing.T) {
	t.Parallel()
	_, err := policy.NewRule(policy.Limit{Count: 1}, policy.TokenBucket)
	if want := "limit: window 0s must be positive, like 1s or 1m"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestEachAlgorithmHasItsOwnNumbers(t *testing.T) {
	t.Parallel()
	const minute = 60_000_000
	limit := policy.Limit{Count: 7, Window: time.Minute}
	delayed := policy.Limit{Count: 7, Window: time.Minute, MaxDelay: 20 * time.Second}
	for _, want := range []policy.Rule{
		{Limit: limit, Algorithm: policy.FixedWindow, Window: minute, AtOnce: 7},
		{Limit: limit, Algorithm: policy.SlidingWindow, Window: minute, AtOnce: 7},
		{Limit: limit, Algorithm: policy.SlidingLog, Window: minute, AtOnce: 7},
		{Limit: limit, Algorithm: policy.LeakyBucket, Window: minute, Num: 7, Den: minute, Capacity: 7 * minute, AtOnce: 1},
		// Two units and a third leave in 20 s: so three can be had at once, the last after 17.1 s.
		{Limit: delayed, Algorithm: policy.LeakyBucket, Window: minute, MaxDelay: 20_000_000, Num: 7, Den: minute, Capacity: 140_000_000 + 7*minute, AtOnce: 3},
	} {
		if r, err := policy.NewRule(want.Limit, want.Algorithm); err != nil || *r != want {
			t.Errorf("%s: got %+v, %v\nwant %+v", want.Algorithm, r, err, want)
		}
	}
}

// 2^53-1 = 20394401 x 441650591.
func TestEachAlgorithmIsRefusedWhereItsNumbersEnd(t *testing.T) {
	t.Parallel()
	const (
		us     = time.Microsecond
		window = 20_394_401 * us
		count  = 441_650_591
	)
	for _, tt := range []struct {
		algorithm   policy.Algorithm
		fits, fails policy.Limit
		want        string
	}{
		{
			policy.SlidingWindow,
			policy.Limit{Count: count, Window: window},
			policy.Limit{Count: count + 1, Window: window},
			"limit 441650592/20.394401s cannot be counted exactly by sliding_window: the count times the window in microseconds reaches 2^53; " +
				"write a smaller count, a shorter window, or algorithm token_bucket",
		},
		{
			policy.SlidingWindow, policy.Limit{Count: 1<<33 - 1, Window: 1 << 20 * us}, policy.Limit{Count: 1 << 38, Window: 1 << 26 * us}, // 2^64
			"limit 274877906944/1m7.108864s cannot be counted exactly by sliding_window: the count times the window in microseconds reaches 2^53; " +
				"write a smaller count, a shorter window, or algorithm token_bucket",
		},
		{
			policy.SlidingLog,
			policy.Limit{Count: policy.MaxLogged, Window: policy.MaxWindow},
			policy.Limit{Count: policy.MaxLogged + 1, Window: time.Second},
			"limit 1000001/1s is too large for sliding_log, which keeps an entry for each request: the most is 1000000; " +
				"write a smaller count, or algorithm sliding_window",
		},
		{
			policy.LeakyBucket,
			policy.Limit{Count: count, Window: window - us, MaxDelay: us},
			policy.Limit{Count: count, Window: window - us, MaxDelay: 2 * us},
			"limit 441650591/20.3944s with max_delay 2\u00b5s cannot be counted exactly: its longest queue times 20394400 (the window in microseconds, " +
				"reduced by the count) reaches 2^53; write a shorter max_delay, a shorter window, or a smaller count",
		},
		{
			policy.LeakyBucket,
			policy.Limit{Count: 1, Window: policy.MaxWindow, MaxDelay: policy.LongestDelay},
			policy.Limit{Count: policy.MaxCount - 1, Window: policy.MaxWindow},
			"limit 999999999999/366d with max_delay 0s cannot be counted exactly: its longest queue times 1171200000000 (the window in microseconds, " +
				"reduced by the count) reaches 2^53; write a shorter max_delay, a shorter window, or a smaller count",
		},
		{
			policy.FixedWindow,
			policy.Limit{Count: policy.MaxCount, Window: policy.MaxWindow},
			policy.Limit{Count: policy.MaxCount + 1, Window: policy.MaxWindow},
			"limit: count 1000000000001 is too large; the most is 1000000000000",
		},
	} {
		if _, err := policy.NewRule(tt.fits, tt.algorithm); err != nil {
			t.Errorf("%s: %v, want the last that fits", tt.algorithm, err)
		}
		if r, err := policy.NewRule(tt.fails, tt.algorithm); err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %+v, %v\nwant %s", tt.algorithm, r, err, tt.want)
		}
	}
}

func TestAWordThatAnAlgorithmDoesNotHaveIsRefused(t *testing.T) {
	t.Parallel()
	burst := policy.Limit{Count: 5, Window: time.Minute, Burst: 9}
	delayed := policy.Limit{Count: 5, Window: time.Minute, MaxDelay: time.Second}
	for _, tt := range []struct {
		limit     policy.Limit
		algorithm policy.Algorithm
		want      string
	}{
		{burst, policy.TokenBucket, ""},
		{burst, policy.LeakyBucket, "burst goes with algorithm token_bucket only, not with leaky_bucket; leave it out"},
		{burst, policy.FixedWindow, "burst goes with algorithm token_bucket only, not with fixed_window; leave it out"},
		{burst, policy.SlidingWindow, "burst goes with algorithm token_bucket only, not with sliding_window; leave it out"},
		{burst, policy.SlidingLog, "burst goes with algorithm token_bucket only, not with sliding_log; leave it out"},
		{delayed, policy.LeakyBucket, ""},
		{delayed, "", "max_delay goes with algorithm leaky_bucket only, not with token_bucket; leave it out"},
		{delayed, policy.SlidingLog, "max_delay goes with algorithm leaky_bucket only, not with sliding_log; leave it out"},
		{policy.Limit{Count: 5, Window: time.Minute}, "gcra", `unknown algorithm "gcra"; write token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log`},
	} {
		got := ""
		if _, err := policy.NewRule(tt.limit, tt.algorithm); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.algorithm, got, tt.want)
		}
	}
}

func TestACostThatCanNeverBeGrantedIsRefused(t *testing.T) {
	t.Parallel()
	const hint = " at once; raise the burst or lower the cost"
	for _, tt := range []struct {
		limit policy.Limit
		cost  int64
		want  string
	}{
		{policy.Limit{Count: 5, Window: time.Minute}, 0, ""},
		{policy.Limit{Count: 5, Window: time.Minute}, 1, ""},
		{policy.Limit{Count: 5, Window: time.Minute}, 5, ""},
		{policy.Limit{Count: 5, Window: time.Minute}, 6, "cost 6 can never be granted: the limit 5/1m gives at most 5" + hint},
		{policy.Limit{Count: 5, Window: time.Minute, Burst: 2}, 3, "cost 3 can never be granted: the limit 5/1m burst 2 gives at most 2" + hint},
		{policy.Limit{Count: 5, Window: time.Minute, Burst: 9}, 9, ""},
		{policy.Limit{Count: 5, Window: time.Minute}, -1, "cost -1 is negative; write a whole number from 0"},
		{policy.Limit{Window: time.Minute}, 3, ""}, // denied at any cost
		{policy.Limit{Window: time.Minute}, -1, "cost -1 is negative; write a whole number from 0"},
	} {
		r, err := policy.NewRule(tt.limit, policy.TokenBucket)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := r.CheckCost(tt.cost); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s, cost %d: got %q, want %q", tt.limit, tt.cost, got, tt.want)
		}
	}
}

func TestOnlyATokenBucketIsToldToRaiseItsBurst(t *testing.T) {
	t.Parallel()
	for _, a := range []policy.Algorithm{policy.LeakyBucket, policy.FixedWindow, policy.SlidingWindow, policy.SlidingLog} {
		r, err := policy.NewRule(policy.Limit{Count: 5, Window: time.Minute}, a)
		if err != nil {
			t.Fatal(err)
		}
		const want = "cost 6 can never be granted: the limit 5/1m gives at most 5 at once; raise the count or lower the cost"
		if err := r.CheckCost(6); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", a, err, want)
		}
		if err := r.CheckCost(5); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func TestWordsAreReadWithTheirDefaultsAndNothingElse(t *testing.T) {
	t.Parallel()
	type parsed struct {
		word string
		err  error
	}
	algorithm := func(s string) parsed { w, err := policy.ParseAlgorithm(s); return parsed{string(w), err} }
	mode := func(s string) parsed { w, err := policy.ParseMode(s); return parsed{string(w), err} }
	onError := func(s string) parsed { w, err := policy.ParseOnError(s); return parsed{string(w), err} }

	for _, tt := range []struct {
		what     string
		parse    func(string) parsed
		fallback string
		words    string
		choice   string
	}{
		{"algorithm", algorithm, "token_bucket", "token_bucket leaky_bucket fixed_window sliding_window sliding_log", "token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log"},
		{"mode", mode, "enforce", "enforce shadow", "enforce or shadow"},
		{"on_error", onError, "local", "open closed local", "open, closed or local"},
	} {
		if got := tt.parse(""); got.err != nil || got.word != tt.fallback {
			t.Errorf("%s: empty gives %+v, want %s", tt.what, got, tt.fallback)
		}
		for _, w := range strings.Fields(tt.words) {
			if got := tt.parse(w); got.err != nil || got.word != w {
				t.Errorf("%s %s: got %+v", tt.what, w, got)
			}
			for _, wrong := range []string{strings.ToUpper(w), w + " ", w[1:]} {
				want := "unknown " + tt.what + ` "` + wrong + `"; write ` + tt.choice
				if got := tt.parse(wrong); got.err == nil || got.err.Error() != want || got.word != "" {
					t.Errorf("%s %q: got %+v, want error %s", tt.what, wrong, got, want)
				}
			}
		}
	}
}

func TestOnlyAnEnforcedBucketRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		shadow  []bool
		allowed []bool
		want    bool
	}{
		{"no bucket", nil, nil, true},
		{"all allow", []bool{false, true}, []bool{true, true}, true},
		{"an enforced one refuses", []bool{false, false}, []bool{true, false}, false},
		{"a shadow one refuses", []bool{true, false}, []bool{false, true}, true},
		{"both refuse", []bool{true, false}, []bool{false, false}, false},
	} {
		buckets, decisions := make([]policy.Bucket, len(tt.shadow)), make([]policy.Decision, len(tt.shadow))
		for i := range buckets {
			buckets[i].Shadow, decisions[i].Allowed = tt.shadow[i], tt.allowed[i]
		}
		if got := policy.Allowed(buckets, decisions); got != tt.want {
			t.Errorf("%s: got %t, want %t", tt.name, got, tt.want)
		}
	}
}
