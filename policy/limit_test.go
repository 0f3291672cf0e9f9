package policy_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const day = 24 * time.Hour

func TestALimitIsReadInEveryFormThatTheManualNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		want policy.Limit
	}{
		{"100/1m", policy.Limit{Count: 100, Window: time.Minute}},
		{"10/s", policy.Limit{Count: 10, Window: time.Second}},
		{"10r/s", policy.Limit{Count: 10, Window: time.Second}},
		{"10r/30s", policy.Limit{Count: 10, Window: 30 * time.Second}},
		{"600/m", policy.Limit{Count: 600, Window: time.Minute}},
		{"3/h", policy.Limit{Count: 3, Window: time.Hour}},
		{"3/d", policy.Limit{Count: 3, Window: day}},
		{"2/ms", policy.Limit{Count: 2, Window: time.Millisecond}},
		{"5/1d", policy.Limit{Count: 5, Window: day}},
		{"5/1d12h", policy.Limit{Count: 5, Window: 36 * time.Hour}},
		{"5/24h", policy.Limit{Count: 5, Window: day}},
		{"5/1h30m", policy.Limit{Count: 5, Window: 90 * time.Minute}},
		{"5/90m", policy.Limit{Count: 5, Window: 90 * time.Minute}},
		{"5/1.5s", policy.Limit{Count: 5, Window: 1500 * time.Millisecond}},
		{"5/1500us", policy.Limit{Count: 5, Window: 1500 * time.Microsecond}},
		{"1/1ms", policy.Limit{Count: 1, Window: policy.MinWindow}},
		{"1/366d", policy.Limit{Count: 1, Window: policy.MaxWindow}},
		{"0/1m", policy.Limit{Count: 0, Window: time.Minute}},
		{"007/1m", policy.Limit{Count: 7, Window: time.Minute}},
		{"1000000000000/1m", policy.Limit{Count: policy.MaxCount, Window: time.Minute}},
	} {
		if got, err := policy.ParseLimit(tt.in); err != nil || got != tt.want {
			t.Errorf("%q: got %+v, %v, want %+v", tt.in, got, err, tt.want)
		}
	}
}

func TestAWrongLimitIsRefusedWithWhatToWrite(t *testing.T) {
	t.Parallel()
	const (
		notWhole = ` is not a whole number; write <count>/<window>, like 100/1m`
		notDur   = ` is not a duration up to 366d; write one like 1s, 1m, 1h30m or 7d`
		tooLarge = ` is too large; the most is 1000000000000`
		outside  = ` is out of range; write a duration from 1ms to 366d`
	)
	for _, tt := range []struct{ in, want string }{
		{"", `limit is empty; write <count>/<window>, like 100/1m`},
		{"100", `limit "100" has no window; write <count>/<window>, like 100/1m`},
		{"30r", `limit "30r" has no window; write <count>/<window>, like 30r/1m`},
		{"fast", `limit "fast" has no window; write <count>/<window>, like 100/1m`},
		{"100/", `limit "100/" has nothing behind the slash; write <count>/<window>, like 100/1m`},
		{"30/", `limit "30/" has nothing behind the slash; write <count>/<window>, like 30/1m`},
		{"/", `limit "/" has nothing behind the slash; write <count>/<window>, like 100/1m`},
		{"/1m", `limit "/1m" has no count; write <count>/<window>, like 100/1m`},
		{"r/s", `limit "r/s" has no count; write <count>/<window>, like 100/1m`},
		{"abc/1m", `limit "abc/1m": count "abc"` + notWhole},
		{"1.5/1m", `limit "1.5/1m": count "1.5"` + notWhole},
		{"1e9/1m", `limit "1e9/1m": count "1e9"` + notWhole},
		{"1_000/1m", `limit "1_000/1m": count "1_000"` + notWhole},
		{"0x10/1m", `limit "0x10/1m": count "0x10"` + notWhole},
		{"+5/1m", `limit "+5/1m": count "+5"` + notWhole},
		{"10rr/s", `limit "10rr/s": count "10r"` + notWhole},
		{"10R/s", `limit "10R/s": count "10R"` + notWhole},
		{" 100/1m", `limit " 100/1m": count " 100"` + notWhole},
		{"100 /1m", `limit "100 /1m": count "100 "` + notWhole},
		{"٣/1m", `limit "٣/1m": count "٣"` + notWhole},
		{"-5/1m", `limit: count -5 is negative; write 0 to deny everything`},
		{"-99999999999999999999/1m", `limit "-99999999999999999999/1m": count -99999999999999999999 is negative; write 0 to deny everything`},
		{"2000000000000/1m", `limit: count 2000000000000` + tooLarge},
		{"1000000000001/1m", `limit: count 1000000000001` + tooLarge},
		{"99999999999999999999/1m", `limit "99999999999999999999/1m": count 99999999999999999999` + tooLarge},
		{"100/ 1m", `limit "100/ 1m": window " 1m"` + notDur},
		{"100/1m ", `limit "100/1m ": window "1m "` + notDur},
		{"100/1x", `limit "100/1x": window "1x"` + notDur},
		{"100/60", `limit "100/60": window "60"` + notDur},
		{"100/1m/1h", `limit "100/1m/1h": window "1m/1h"` + notDur},
		{"100/0s", `limit: window 0s must be positive, like 1s or 1m`},
		{"100/0", `limit: window 0s must be positive, like 1s or 1m`},
		{"100/0d", `limit: window 0s must be positive, like 1s or 1m`},
		{"100/-1m", `limit: window -1m must be positive, like 1s or 1m`},
		{"100/1us", `limit: window 1µs` + outside},
		{"100/999us", `limit: window 999µs` + outside},
		{"100/367d", `limit: window 367d` + outside},
		{"100/500d", `limit: window 500d` + outside},
		{"100/366d1ms", `limit: window 8784h0m0.001s` + outside},
		{"100/1.0000001s", `limit: window 1.0000001s is not a whole number of microseconds`},
	} {
		got, err := policy.ParseLimit(tt.in)
		if err == nil || err.Error() != tt.want {
			t.Errorf("%q: got %+v, %v\nwant error %s", tt.in, got, err, tt.want)
		}
		if err != nil && got != (policy.Limit{}) {
			t.Errorf("%q: got %+v beside an error", tt.in, got)
		}
	}
}

func TestAWindowIsADurationWithDays(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		want time.Duration
	}{
		{"ms", time.Millisecond},
		{"s", time.Second},
		{"m", time.Minute},
		{"h", time.Hour},
		{"d", day},
		{"7d", 7 * day},
		{"30d", 720 * time.Hour},
		{"1d2h3m4s5ms", day + 2*time.Hour + 3*time.Minute + 4*time.Second + 5*time.Millisecond},
		{"500d", 500 * day},
		{"65535d", 65535 * day},
		{"0d", 0},
		{"0", 0},
		{"-1m", -time.Minute},
	} {
		if got, err := policy.ParseWindow(tt.in); err != nil || got != tt.want {
			t.Errorf("%q: got %s, %v, want %s", tt.in, got, err, tt.want)
		}
	}
}

func TestAWrongWindowIsRefusedAsItWasWritten(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", "NaN", "inf", "1", "1x", "1w", "1M", "1 m", "1,5s", "+1m", "1m30",
		"-1d", "+1d", "0.5d", "1d2d", "d1h", "1dm", "dd", "1h1d", "1d-1h", "1d+1h",
		"65536d", "99999d", "99999999999999999999d", "65535d2000000h", "9999999999h",
	} {
		want := `window "` + in + `" is not a duration up to 366d; write one like 1s, 1m, 1h30m or 7d`
		if got, err := policy.ParseWindow(in); err == nil || err.Error() != want || got != 0 {
			t.Errorf("%q: got %s, %v\nwant error %s", in, got, err, want)
		}
	}
}

func TestALimitWrittenByHandIsCheckedLikeAParsedOne(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit policy.Limit
		want  string
	}{
		{policy.Limit{Count: 5, Window: time.Minute}, ""},
		{policy.Limit{Count: 5, Window: time.Minute, Burst: 1}, ""},
		{policy.Limit{Count: 5, Window: time.Minute, Burst: policy.MaxCount}, ""},
		{policy.Limit{Count: policy.MaxCount, Window: policy.MaxWindow}, ""},
		{policy.Limit{Window: time.Minute}, ""},
		{policy.Limit{}, "limit: window 0s must be positive, like 1s or 1m"},
		{policy.Limit{Count: 5, Window: time.Minute, Burst: -1}, "limit: burst -1 is negative; write a whole number from 1, or leave it out for 5"},
		{policy.Limit{Count: 5, Window: time.Minute, Burst: policy.MaxCount + 1}, "limit: burst 1000000000001 is too large; the most is 1000000000000"},
		{policy.Limit{Count: 5, Window: time.Minute, MaxDelay: policy.LongestDelay}, ""},
		{policy.Limit{Count: 5, Window: time.Minute, MaxDelay: policy.LongestDelay + time.Microsecond}, "limit: max_delay 10m0.000001s is out of range; write a duration up to 10m, like 500ms"},
		{policy.Limit{Count: 5, Window: time.Minute, MaxDelay: -time.Second}, "limit: max_delay -1s is out of range; write a duration up to 10m, like 500ms"},
		{policy.Limit{Count: 5, Window: time.Minute, MaxDelay: time.Nanosecond}, "limit: max_delay 1ns is out of range; write a duration up to 10m, like 500ms"},
		{policy.Limit{Window: time.Minute, Burst: 1}, "limit: a count of 0 denies everything, so it takes no burst"},
		{policy.Limit{Count: 5, Window: policy.MaxWindow + time.Microsecond}, "limit: window 8784h0m0.000001s is out of range; write a duration from 1ms to 366d"},
		{policy.Limit{Count: 5, Window: time.Millisecond + time.Nanosecond}, "limit: window 1.000001ms is not a whole number of microseconds"},
	} {
		got := ""
		if err := tt.limit.Validate(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.limit, got, tt.want)
		}
	}
}

func TestTheCapacityIsTheBurstElseTheCount(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit policy.Limit
		want  int64
	}{
		{policy.Limit{Count: 10, Window: time.Second}, 10},
		{policy.Limit{Count: 10, Window: time.Second, Burst: 50}, 50},
		{policy.Limit{Count: 10, Window: time.Second, Burst: 3}, 3},
		{policy.Limit{Window: time.Second}, 0},
	} {
		if got := tt.limit.Capacity(); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.limit, got, tt.want)
		}
	}
}

func TestALimitIsWrittenInItsShortestForm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit policy.Limit
		want  string
	}{
		{policy.Limit{Count: 100, Window: time.Minute}, "100/1m"},
		{policy.Limit{Count: 100, Window: 10 * time.Minute}, "100/10m"},
		{policy.Limit{Count: 100, Window: time.Hour}, "100/1h"},
		{policy.Limit{Count: 100, Window: 10 * time.Hour}, "100/10h"},
		{policy.Limit{Count: 100, Window: 90 * time.Minute}, "100/1h30m"},
		{policy.Limit{Count: 100, Window: 90 * time.Second}, "100/1m30s"},
		{policy.Limit{Count: 100, Window: time.Hour + time.Second}, "100/1h0m1s"},
		{policy.Limit{Count: 100, Window: 7 * day}, "100/7d"},
		{policy.Limit{Count: 100, Window: 25 * time.Hour}, "100/25h"},
		{policy.Limit{Count: 100, Window: 250 * time.Millisecond}, "100/250ms"},
		{policy.Limit{Count: 10, Window: time.Second, Burst: 50}, "10/1s burst 50"},
		{policy.Limit{Count: 10, Window: time.Second, Burst: 10}, "10/1s"},
		{policy.Limit{Window: time.Minute}, "0/1m"},
	} {
		if got := tt.limit.String(); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.limit, got, tt.want)
		}
	}
}

// anyLimit draws valid limits without a burst, with windows that people write
// as well as any number of microseconds.
func anyLimit(t *rapid.T) policy.Limit {
	unit := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, time.Second, time.Minute, time.Hour, day}).Draw(t, "unit")
	least := max(1, int64(policy.MinWindow/unit))
	n := rapid.Int64Range(least, int64(policy.MaxWindow/unit)).Draw(t, "units")
	return policy.Limit{Count: rapid.Int64Range(0, policy.MaxCount).Draw(t, "count"), Window: time.Duration(n) * unit}
}

func TestWhatALimitWritesItReadsBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := anyLimit(t)
		if got, err := policy.ParseLimit(l.String()); err != nil || got != l {
			t.Fatalf("%+v is written %q and read as %+v, %v", l, l.String(), got, err)
		}
	})
}

// No text makes the parser panic, and what it accepts is valid and says the
// same when written out again.
func FuzzParseLimit(f *testing.F) {
	for _, s := range []string{"", "/", "r/s", "100/1m", "10r/s", "5/1d-1h", "1/366d", "99999999999999999999/1m", "100/\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := policy.ParseLimit(s)
		if err != nil {
			if err.Error() == "" || strings.Contains(err.Error(), "time:") {
				t.Errorf("%q: error %q does not say what to write", s, err)
			}
			return
		}
		if err := l.Validate(); err != nil {
			t.Errorf("%q was accepted, but %v", s, err)
		}
		if again, err := policy.ParseLimit(l.String()); err != nil || again != l {
			t.Errorf("%q is %+v, written %q, read as %+v, %v", s, l, l, again, err)
		}
	})
}
