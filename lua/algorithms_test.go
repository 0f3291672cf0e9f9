package lua_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/lua"
)

// limited is a limit of any algorithm in the numbers that scripts know it by.
type limited struct {
	what           byte
	num, den       int64 // of a bucket
	capacity, long int64 // of a bucket, in units; long is what may be before a request
	window, count  int64 // of a window or a log
}

func (l limited) encode(cost int64) []byte {
	var numbers []int64
	switch l.what {
	case 1:
		numbers = []int64{l.num, l.den, l.capacity * l.den, cost * l.den}
	case 2:
		numbers = []int64{l.num, l.den, l.capacity * l.den, cost * l.den, l.long * l.den}
	default:
		numbers = []int64{l.window, l.count, cost}
	}
	return append([]byte{l.what}, pack(numbers...)...)
}

// answer is what a script says of one bucket.
type answer struct{ retry, remaining, reset int64 }

func (l limited) take(t interface{ Fatalf(string, ...any) }, c *redis.Client, now, key string, cost int64) (at int64, a answer) {
	reply, err := c.Eval(bg, lua.Take, []string{key}, now, l.encode(cost)).Text()
	if err != nil {
		t.Fatalf("%v", err)
	}
	n := unpack(t, reply)
	return n[0], answer{n[1], n[2], n[3]}
}

// drawLimited draws a limit that the requests of a run do not use up, and whose
// units a server does not forget by its own clock while the run lasts.
func drawLimited(t *rapid.T) limited {
	const second = 1_000_000
	unit := rapid.Int64Range(10, 500).Draw(t, "unit in s") * second
	return limited{
		what: byte(rapid.IntRange(1, 5).Draw(t, "algorithm")),
		num:  rapid.Int64Range(1, 5).Draw(t, "num"), den: unit, capacity: 1000, long: 900,
		window: unit + rapid.Int64Range(0, 3).Draw(t, "rest"), count: 1000,
	}
}

// drawTime moves a time on: often not at all, or to where a window starts.
func (l limited) drawTime(t *rapid.T, now int64) int64 {
	switch rapid.IntRange(0, 3).Draw(t, "pause") {
	case 0:
	case 1:
		now += l.window - now%l.window
	default:
		now += rapid.Int64Range(0, 2*l.window).Draw(t, "pause in µs")
	}
	if l.what == 3 && l.window-now%l.window < 5_000_000 { // the server would forget it
		return now - now%l.window + l.window
	}
	return now
}

// Two buckets see the same requests, but one of them is charged once more and given
// that back. What is left of that must be nothing, at any later time; of a token or
// leaky bucket that took more in between, it must not be less than nothing.
func TestWhatIsGivenBackWasNeverTaken(t *testing.T) {
	t.Parallel()
	c := server(t)
	longest := int64(-1 << 40) // by how much a key lived too long, at most, in milliseconds
	rapid.Check(t, func(t *rapid.T) {
		c.FlushAll(bg)
		l, now := drawLimited(t), someTime
		both := func(label string, most int) (n int) {
			n = rapid.IntRange(0, most).Draw(t, label)
			for range n {
				now = l.drawTime(t, now)
				cost := rapid.Int64Range(1, 3).Draw(t, "units")
				for _, key := range []string{"with", "without"} {
					l.take(t, c, strconv.FormatInt(now, 10), key, cost)
				}
			}
			return n
		}
		both("before", 3)
		now = l.drawTime(t, now)
		taken, extra := now, rapid.Int64Range(1, 5).Draw(t, "extra")
		l.take(t, c, strconv.FormatInt(now, 10), "with", extra)
		untouched := both("between", 3) == 0
		now = l.drawTime(t, now)

		tx := c.TxPipeline()
		given := tx.Eval(bg, lua.GiveBack, []string{"with"}, strconv.FormatInt(now, 10), strconv.FormatInt(taken, 10), l.encode(extra))
		pttl := tx.PTTL(bg, "with")
		_, _ = tx.Exec(bg) // the results have the errors
		reply, err := given.Text()
		if err != nil {
			t.Fatalf("%v", err)
		}
		_, got := l.take(t, c, strconv.FormatInt(now, 10), "with", 0)
		if n := unpack(t, reply); !slices.Equal(n, []int64{got.remaining, got.reset}) {
			t.Fatalf("the reply is %v, and the bucket %+v", n, got)
		}
		if ttl, want := pttl.Val().Milliseconds(), (got.reset+999)/1000; untouched && want > 0 {
			longest = max(longest, ttl-want)
			if ttl > want || ttl < want-1000 {
				t.Fatalf("the TTL is %d ms, not %d", ttl, want)
			}
		} else if untouched && pttl.Val() != -2 {
			t.Fatalf("a bucket that is as never seen is kept for %s", pttl.Val())
		}
		if got.reset < 5_000_000 { // the server would forget it, by its own clock
			return
		}
		for _, later := range []int64{0, 1, l.window / 2, l.window - now%l.window, 2*l.window - now%l.window} {
			at := strconv.FormatInt(now+later, 10)
			_, with := l.take(t, c, at, "with", 0)
			_, without := l.take(t, c, at, "without", 0)
			if (untouched || l.what > 2) && with != without || with.remaining > without.remaining || with.reset < without.reset {
				t.Fatalf("%+v, %d µs later: %+v where %+v should be", l, later, with, without)
			}
		}
	})
	if !t.Failed() && longest != 0 {
		t.Errorf("every key lived %d ms too short", -longest)
	}
}

// perSecond are rates from one a year to a million a second, by each algorithm.
func perSecond() (limits []limited) {
	const second, year = int64(1_000_000), int64(365 * 24 * 3600 * 1_000_000)
	for _, r := range []struct{ num, den, count, window int64 }{
		{1, year, 1, year},
		{1, 36 * second, 100, 3600 * second},
		{7, 60 * second, 7, 60 * second},
		{1, 1000, 1000, second},
		{1, 1, 1_000_000, second},
		{1, 1, 100, 100},
	} {
		for what := byte(1); what <= 5; what++ {
			l := limited{what: what, num: r.num, den: r.den, capacity: r.count, long: r.count, window: r.window, count: r.count}
			if what == 4 && r.window == year {
				l.window /= 4 // a count times the window stays exact
			}
			limits = append(limits, l)
		}
	}
	return limits
}

// A key lives exactly until its bucket equals one never seen, in the unit that Redis
// counts in: by none of some tries longer than that, and by one of them not shorter.
func TestAKeyLivesToTheMillisecondUntilItsBucketEqualsOneNeverSeen(t *testing.T) {
	t.Parallel()
	c := server(t)
	for i, l := range perSecond() {
		for _, cost := range []int64{1, l.count/2 + 1, l.count} {
			key := fmt.Sprintf("%d-%d", i, cost)
			exact := false
			for try := 0; try < 200 && !exact; try++ {
				c.Del(bg, key)
				tx := c.TxPipeline()
				eval := tx.Eval(bg, lua.Take, []string{key}, "", l.encode(cost))
				pttl := tx.PTTL(bg, key)
				_, _ = tx.Exec(bg) // the results have the errors
				reply, err := eval.Text()
				if err != nil {
					t.Fatal(err)
				}
				n := unpack(t, reply)
				ttl, want := pttl.Val(), time.Duration((n[3]+999)/1000)*time.Millisecond
				if ttl > want || ttl == -1 {
					t.Fatalf("%+v, cost %d: the key lives for %s, longer than %s", l, cost, ttl, want)
				}
				exact = ttl == want
			}
			if !exact {
				t.Errorf("%+v, cost %d: the key lives too short", l, cost)
			}
		}
	}
}

// At the reset that it told a bucket is as never seen, and a microsecond before it is
// not. What is forgotten within seconds by the server's clock is left to the suite of
// package conformance, which keeps clear of that.
func TestABucketEqualsOneNeverSeenAtTheResetItToldAndNotBefore(t *testing.T) {
	t.Parallel()
	c := server(t)
	for i, l := range perSecond() {
		for _, cost := range slices.Compact([]int64{1, l.count}) {
			key := fmt.Sprintf("%d-%d", i, cost)
			now := someTime - someTime%l.window + l.window/3
			_, fresh := l.take(t, c, strconv.FormatInt(now, 10), key, 0)
			_, a := l.take(t, c, strconv.FormatInt(now, 10), key, cost)
			if a.reset < 5_000_000 {
				continue
			}
			_, before := l.take(t, c, strconv.FormatInt(now+a.reset-1, 10), key, 0)
			_, after := l.take(t, c, strconv.FormatInt(now+a.reset, 10), key, 0)
			if before.reset != 1 || after != fresh {
				t.Errorf("%+v, cost %d: before %+v, after %+v, fresh %+v", l, cost, before, after, fresh)
			}
		}
	}
}
