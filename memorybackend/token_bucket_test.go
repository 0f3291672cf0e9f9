package memorybackend

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// FuzzRescaleIsExact compares the conversion between units with unbounded
// integers.
func FuzzRescaleIsExact(f *testing.F) {
	f.Add(int64(60_000_000), int64(6_000_000), int64(600_000), int64(60_000_000))
	f.Add(int64(419_999_997), int64(60_000_000), int64(10_000_000), int64(200_000_000))
	f.Add(int64(8_100_089_999_999_989), int64(90_000_000_000), int64(3_600_000_000), int64(360_000_000_000_000))
	f.Add(int64(8_640_000_000_000_000), int64(720_000_000), int64(31_622_400_000_000), int64(31_622_400_000_000))
	f.Add(int64(math.MaxInt64), int64(1), int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add(int64(1), int64(2), int64(1), int64(1))
	f.Fuzz(func(t *testing.T, used, from, to, capacity int64) {
		if used < 0 || from < 1 || to < 1 || capacity < 1 {
			t.Skip("no state and no rule has such numbers")
		}
		want := new(big.Int).Mul(big.NewInt(used), big.NewInt(to))
		want.Add(want, big.NewInt(from-1))
		want.Quo(want, big.NewInt(from))
		if most := big.NewInt(capacity); want.Cmp(most) > 0 {
			want = most
		}
		if got := rescale(used, from, to, capacity); got != want.Int64() {
			t.Errorf("rescale(%d, %d, %d, %d) = %d, want %d", used, from, to, capacity, got, want)
		}
	})
}

// FuzzDrainIsExact compares what comes back in a time with unbounded integers.
func FuzzDrainIsExact(f *testing.F) {
	f.Add(int64(60_000_000), int64(6_000_000), int64(1))
	f.Add(int64(1_000_000_000_000), int64(6_307_200_000_000_000), int64(100_000))
	f.Add(int64(1_000), int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add(int64(0), int64(0), int64(1))
	f.Fuzz(func(t *testing.T, used, elapsed, num int64) {
		if used < 0 || elapsed < 0 || num < 1 {
			t.Skip("no state and no rule has such numbers")
		}
		want := new(big.Int).Mul(big.NewInt(elapsed), big.NewInt(num))
		want.Sub(big.NewInt(used), want)
		if want.Sign() < 0 {
			want.SetInt64(0)
		}
		if got := drain(used, elapsed, num); got != want.Int64() {
			t.Errorf("drain(%d, %d, %d) = %d, want %d", used, elapsed, num, got, want)
		}
	})
}

func TestADebtIsATimeAndAtMostAFullBucket(t *testing.T) {
	rule := limit(t, "10/1m") // a unit is six seconds
	for _, row := range []struct{ until, used, idle int64 }{
		{start - 1, 0, 0},
		{start, 0, 0},
		{start + 1, 1, start + 1},
		{start + 6_000_000, 6_000_000, start + 6_000_000},
		{start + 59_999_999, 59_999_999, start + 59_999_999},
		{start + 60_000_000, 60_000_000, start + 60_000_000},
		{start + 60_000_001, 60_000_000, start + 60_000_000},
		{math.MaxInt64, 60_000_000, start + 60_000_000},
	} {
		s := owing(rule, start, row.until)
		if s.used != row.used || s.idle != row.idle {
			t.Errorf("in debt until %+d µs: used %d, idle %+d; want %d, %+d", row.until-start, s.used, s.idle-start, row.used, row.idle-start)
		}
	}
	fast := limit(t, "1000000000000/1s") // 2^58 times its num is 0 in 64 bits
	if s := owing(fast, start, start+(1<<58)); s.used != fast.Capacity {
		t.Errorf("a debt beyond 64 bits: used %d, want %d", s.used, fast.Capacity)
	}
}

// start is a time at which tests start.
const start = int64(1_773_500_966_535_897)

// limit reads "<count>/<window> [burst <n>] [max_delay <duration>] [<algorithm>]" as
// a rule; without an algorithm it is a token bucket.
func limit(tb testing.TB, text string) *policy.Rule {
	tb.Helper()
	words := strings.Fields(text)
	l, err := policy.ParseLimit(words[0])
	algorithm := policy.TokenBucket
	for i := 1; i < len(words) && err == nil; i++ {
		switch words[i] {
		case "burst":
			i++
			l.Burst, err = strconv.ParseInt(words[i], 10, 64)
		case "max_delay":
			i++
			l.MaxDelay, err = policy.ParseWindow(words[i])
		default:
			algorithm = policy.Algorithm(words[i])
		}
	}
	var r *policy.Rule
	if err == nil {
		r, err = policy.NewRule(l, algorithm)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return r
}
