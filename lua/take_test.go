package lua_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/lua"
)

// tenPerMinute is one unit of 10/1m.
var tenPerMinute = request{what: 1, num: 1, den: 6_000_000, capacity: 60_000_000, cost: 6_000_000}

func (r request) units(n int64) request { r.cost = n * r.den; return r }

func (r request) shadow() request { r.what |= 128; return r }

func take(t *testing.T, c *redis.Client, now string, buckets map[string]request, order ...string) (string, error) {
	t.Helper()
	var args []byte
	for _, key := range order {
		args = append(args, buckets[key].encode()...)
	}
	return c.Eval(t.Context(), lua.Take, order, now, args).Text()
}

func TestTheServersClockIsUsedUnlessATimeIsGiven(t *testing.T) {
	t.Parallel()
	c := server(t)
	before := c.Time(t.Context()).Val().UnixMicro()
	reply, err := take(t, c, "", map[string]request{"k": tenPerMinute}, "k")
	after := c.Time(t.Context()).Val().UnixMicro()
	if err != nil {
		t.Fatal(err)
	}
	if now := unpack(t, reply)[0]; now < before || now > after {
		t.Errorf("the time is %d, not between %d and %d", now, before, after)
	}
	if stored := decodeState(t, c.Get(t.Context(), "k").Val()); stored.t < before || stored.t > after {
		t.Errorf("the stored time is %d, not between %d and %d", stored.t, before, after)
	}
}

func TestARefusalWritesNothingAtAll(t *testing.T) {
	t.Parallel()
	c := server(t)
	now := strconv.FormatInt(someTime, 10)
	buckets := map[string]request{"full": tenPerMinute.units(10), "free": tenPerMinute, "shadow": tenPerMinute.shadow()}
	if _, err := take(t, c, now, buckets, "full"); err != nil {
		t.Fatal(err)
	}
	writes := func() string {
		info := c.Info(t.Context(), "commandstats").Val()
		for line := range strings.Lines(info) {
			if strings.HasPrefix(line, "cmdstat_set:") {
				return line[:strings.Index(line, ",")]
			}
		}
		return ""
	}
	before, size := writes(), c.DBSize(t.Context()).Val()
	reply, err := take(t, c, now, buckets, "free", "full", "shadow")
	if err != nil {
		t.Fatal(err)
	}
	minute := time.Minute.Microseconds()
	want := []int64{someTime, 0, 10, 0, minute, 0, minute, 0, 10, 0}
	if got := unpack(t, reply); !slices.Equal(got, want) {
		t.Errorf("the reply is %v, not %v", got, want)
	}
	if writes() != before || c.DBSize(t.Context()).Val() != size {
		t.Errorf("a refusal wrote: %s, before %s", writes(), before)
	}
}

func TestAShadowBucketNeverRefuses(t *testing.T) {
	t.Parallel()
	c := server(t)
	now := strconv.FormatInt(someTime, 10)
	buckets := map[string]request{"free": tenPerMinute, "shadow": tenPerMinute.units(6).shadow()}
	for range 2 {
		if _, err := take(t, c, now, buckets, "shadow", "free"); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"free", "shadow"} {
		if ttl := c.TTL(t.Context(), key).Val(); ttl <= 0 || ttl > time.Minute {
			t.Errorf("the TTL of %s is %s", key, ttl)
		}
	}
	if got := decodeState(t, c.Get(t.Context(), "free").Val()); got.used != 12_000_000 {
		t.Errorf("of the enforced bucket %d were used, not two units", got.used)
	}
	if got := decodeState(t, c.Get(t.Context(), "shadow").Val()); got.used != 36_000_000 {
		t.Errorf("of the shadow bucket %d were used, not the six units that fit", got.used)
	}
}

func TestALookWritesNothing(t *testing.T) {
	t.Parallel()
	c := server(t)
	buckets := map[string]request{"a": tenPerMinute.units(0), "b": tenPerMinute.units(0)}
	for _, order := range [][]string{{"a"}, {"a", "b"}} {
		if _, err := take(t, c, strconv.FormatInt(someTime, 10), buckets, order...); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}

func TestAKeyOfAnotherTypeIsAnErrorThatNamesItsPlaceAndChargesNothing(t *testing.T) {
	t.Parallel()
	c := server(t)
	c.HSet(t.Context(), "hash", "x", "y")
	buckets := map[string]request{"hash": tenPerMinute, "a": tenPerMinute}
	for _, tt := range []struct {
		order []string
		want  string
	}{
		{[]string{"hash"}, "WRONGTYPE 1"},
		{[]string{"a", "hash"}, "WRONGTYPE 2"},
	} {
		if _, err := take(t, c, "", buckets, tt.order...); err == nil || err.Error() != tt.want {
			t.Errorf("%v: the error is %v, not %s", tt.order, err, tt.want)
		}
	}
	if n := c.DBSize(t.Context()).Val(); n != 1 {
		t.Errorf("there are %d keys, not only the hash", n)
	}
}

// A script that names a command, an option or a function of Lua that old
// servers lack would fail there and nowhere else.
func TestScriptsUseOnlyWhatRedis62Has(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"take": lua.Take, "give_back": lua.GiveBack} {
		for _, banned := range []string{"PXAT", "EXAT", "#!lua", "redis.setresp", "bit.", "cjson", "//", "goto ", "server.call"} {
			if strings.Contains(text, banned) {
				t.Errorf("%s uses %s", name, banned)
			}
		}
	}
}
