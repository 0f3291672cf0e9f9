package lua_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/lua"
)

func giveBack(c *redis.Client, now, taken int64, key string, r request) (string, error) {
	return c.Eval(bg, lua.GiveBack, []string{key}, strconv.FormatInt(now, 10), strconv.FormatInt(taken, 10), r.encode()).Text()
}

func TestWhatNobodyTouchedSinceIsRestored(t *testing.T) {
	t.Parallel()
	c := server(t)
	before := state{someTime - 1000, 7_000_000, 6_000_000}
	c.Set(t.Context(), "k", before.encode(), time.Hour)
	if _, err := take(t, c, strconv.FormatInt(someTime, 10), map[string]request{"k": tenPerMinute}, "k"); err != nil {
		t.Fatal(err)
	}
	later := someTime + 20_000
	reply, err := giveBack(c, later, someTime, "k", tenPerMinute)
	if err != nil {
		t.Fatal(err)
	}
	left := int64(7_000_000 - 1000 - 20_000)
	if got, want := unpack(t, reply), []int64{8, left}; !slices.Equal(got, want) {
		t.Errorf("the reply is %v, not %v", got, want)
	}
	if got := decodeState(t, c.Get(t.Context(), "k").Val()); got != (state{someTime, 6_999_000, 6_000_000}) {
		t.Errorf("stored is %v", got)
	}
	if ttl, want := c.PTTL(t.Context(), "k").Val(), time.Duration(left)*time.Microsecond; ttl > want+time.Millisecond || ttl < want-5*time.Second {
		t.Errorf("the TTL is %s, not %s", ttl, want)
	}
}

func TestABucketThatIsAsNeverSeenAgainIsForgotten(t *testing.T) {
	t.Parallel()
	c := server(t)
	if _, err := take(t, c, strconv.FormatInt(someTime, 10), map[string]request{"k": tenPerMinute}, "k"); err != nil {
		t.Fatal(err)
	}
	reply, err := giveBack(c, someTime+5, someTime, "k", tenPerMinute)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := unpack(t, reply), []int64{10, 0}; !slices.Equal(got, want) {
		t.Errorf("the reply is %v, not %v", got, want)
	}
	if n := c.DBSize(t.Context()).Val(); n != 0 {
		t.Error("the key is still there")
	}
}

func TestNothingIsGivenBackToABucketThatIsGoneOrChanged(t *testing.T) {
	t.Parallel()
	c := server(t)
	for name, s := range map[string]*state{
		"gone":                   nil,
		"of another limit":       {someTime + 5, 6_000_000, 5_000_000},
		"from before the taking": {someTime - 5, 12_000_000, 6_000_000},
	} {
		c.Del(t.Context(), "k")
		if s != nil {
			c.Set(t.Context(), "k", s.encode(), time.Hour)
		}
		before := c.Get(t.Context(), "k").Val()
		if _, err := giveBack(c, someTime+10, someTime, "k", tenPerMinute); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if after := c.Get(t.Context(), "k").Val(); after != before {
			t.Errorf("%s: %q became %q", name, before, after)
		}
	}
}

// Two buckets see the same requests, but one of them is charged once more and
// given that back later. It may never end up with less used than the other, or
// somebody would be admitted who should not be. Times are large, because the
// server forgets keys by its own clock.
func TestGivingBackNeverGivesMoreThanWasTaken(t *testing.T) {
	t.Parallel()
	c := server(t)
	rapid.Check(t, func(t *rapid.T) {
		const unit = 10_000_000
		c.FlushAll(bg)
		r := request{what: 1, num: rapid.Int64Range(1, 5).Draw(t, "num"), den: unit * rapid.Int64Range(1, 50).Draw(t, "den")}
		r.capacity = r.den * 20
		now := someTime
		both := func(label string, keys ...string) {
			for range rapid.IntRange(0, 3).Draw(t, label) {
				now += unit * rapid.Int64Range(0, 60).Draw(t, "pause")
				q := r.units(rapid.Int64Range(1, 3).Draw(t, "units"))
				for _, key := range keys {
					if mustTake(t, c, now, key, q) > 0 {
						break // so fuller that it refused what the other would allow
					}
				}
			}
		}
		both("before", "with", "without")
		now += unit * rapid.Int64Range(0, 60).Draw(t, "pause")
		extra, taken := r.units(rapid.Int64Range(1, 5).Draw(t, "extra")), now
		if mustTake(t, c, now, "with", extra) > 0 {
			return // the extra charge does not fit
		}
		both("between", "with", "without")
		now += unit * rapid.Int64Range(0, 60).Draw(t, "pause")
		if _, err := giveBack(c, now, taken, "with", extra); err != nil {
			t.Fatal(err)
		}
		with, without := used(t, c, now, "with", r), used(t, c, now, "without", r)
		if with < without {
			t.Fatalf("%d are used where %d should be", with, without)
		}
	})
}
