package lua_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
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
			if strings.HasPrefix(line, "cmdstat_psetex:") {
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

// Two units of one bucket are free, and five equal requests ask for one each: the
// answers are given one after the other, and those that repeat to the end are left
// out. The request behind them has an error of its own.
func TestRequestsThatTravelTogetherAreAnsweredOneByOne(t *testing.T) {
	t.Parallel()
	c := server(t)
	c.HSet(t.Context(), "hash", "x", "y")
	two := request{what: 1, num: 1, den: 30_000_000, capacity: 60_000_000, cost: 30_000_000}
	args := slices.Concat(two.encode(), two.encode(), tenPerMinute.encode(), tenPerMinute.encode(), tenPerMinute.encode())
	shape := []byte{1, 0, 5, 0, 2, 0, 1, 0, 2, 0, 2, 0}
	keys := []string{"a", "b", "hash", "c", "d"}
	reply, err := c.Eval(t.Context(), lua.Take, keys, strconv.FormatInt(someTime, 10), args, shape).Text()
	if err != nil {
		t.Fatal(err)
	}
	half, minute, unit := time.Minute.Microseconds()/2, time.Minute.Microseconds(), int64(6_000_000)
	want := slices.Concat(
		pack(someTime),
		[]byte{3, 0}, pack(0, 1, half, 0, 0, minute, half, 0, minute), // and twice more the same
		[]byte{0, 0, 11, 0}, []byte("WRONGTYPE 2"),
		[]byte{2, 0}, pack(0, 9, unit, 0, 9, unit, 0, 8, 2*unit, 0, 8, 2*unit),
	)
	if reply != string(want) {
		t.Errorf("the reply is\n%q, not\n%q", reply, want)
	}
	if n := c.Exists(t.Context(), "b").Val(); n != 0 {
		t.Error("a request that failed has taken something")
	}
}

// Token buckets that travel alone are decided by a shorter way, which is left in the
// midst of them at a key that holds no string: a list may be another algorithm's.
func TestTokenBucketsThatTravelTogetherMeetKeysOfOtherTypes(t *testing.T) {
	t.Parallel()
	c := server(t)
	c.HSet(t.Context(), "hash", "x", "y")
	c.RPush(t.Context(), "log", "x")
	args := bytes.Repeat(tenPerMinute.encode(), 5)
	shape := []byte{1, 0, 2, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 3, 0}
	reply, err := c.Eval(t.Context(), lua.Take, []string{"a", "hash", "b", "log", "a"}, strconv.FormatInt(someTime, 10), args, shape).Text()
	if err != nil {
		t.Fatal(err)
	}
	unit := int64(6_000_000)
	want := slices.Concat(
		pack(someTime),
		[]byte{2, 0}, pack(0, 9, unit, 0, 8, 2*unit),
		[]byte{0, 0, 11, 0}, []byte("WRONGTYPE 1"),
		[]byte{1, 0}, pack(0, 9, unit),
		[]byte{1, 0}, pack(0, 9, unit),
		[]byte{3, 0}, pack(0, 7, 3*unit, 0, 6, 4*unit, 0, 5, 5*unit),
	)
	if reply != string(want) {
		t.Errorf("the reply is\n%q, not\n%q", reply, want)
	}
}

// What Redis says when it does not write must arrive as it says it, whatever has been
// stored before: from its first word it is known what is wrong.
func TestAServerThatDoesNotWriteSaysWhyInItsOwnWords(t *testing.T) {
	t.Parallel()
	c := server(t)
	for i, l := range perSecond()[5:10] { // 100 an hour
		for j, before := range []string{"", "1800000000000000", "1800000000000001"} { // nothing, an earlier state, and one of this moment
			key := strconv.Itoa(i) + "-" + strconv.Itoa(j)
			if before != "" {
				l.take(t, c, before, key, 1)
			}
			c.ReplicaOf(t.Context(), "127.0.0.1", "1")
			err := c.Eval(t.Context(), lua.Take, []string{key}, "1800000000000001", l.encode(1)).Err()
			several := c.Eval(t.Context(), lua.Take, []string{"{" + key + "}a", key}, "1800000000000001",
				append(perSecond()[5].encode(1), l.encode(1)...)).Err()
			c.ReplicaOf(t.Context(), "no", "one")
			if err == nil || several == nil || !strings.HasPrefix(err.Error(), "READONLY ") || !strings.HasPrefix(several.Error(), "READONLY ") {
				t.Errorf("%+v: the errors are %v and %v", l, err, several)
			}
		}
	}
}

// usedOfRedis62 is everything that scripts may name. All of it is in Redis 6.2, in Redis
// 8 and in Valkey; what is added here must be looked up in the documentation of 6.2.
var usedOfRedis62 = map[string][]string{
	"command, option or error": {
		"TIME", "GET", "PSETEX", "DEL", "TYPE", "LLEN", "LINDEX", "LRANGE", "RPUSH", "LSET", "LTRIM", "LREM", "PEXPIRE", "WRONGTYPE", "ERR",
	},
	"function": {
		"redis.call", "redis.pcall", "redis.error_reply", "struct.pack", "struct.unpack", "string.byte", "string.sub",
		"math.ceil", "math.floor", "math.max", "math.min", "table.concat",
	},
}

var (
	capitals  = regexp.MustCompile(`'([A-Z]{2,})[ ']`)
	libraries = regexp.MustCompile(`\b(?:redis|struct|string|math|table|bit|cjson|cmsgpack|os|server|coroutine|debug|io)\.\w+`)
	comments  = regexp.MustCompile(`(?m)--.*$`)
)

// A script that names a command, an option or a function that old servers lack would
// fail there and nowhere else.
func TestScriptsUseOnlyWhatRedis62Has(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.lua")
	if err != nil || len(files) < 8 {
		t.Fatalf("only %q are scripts: %v", files, err)
	}
	seen := make(map[string]bool)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(text), "#!") {
			t.Errorf("%s: the first line is of Redis 7", file)
		}
		code := comments.ReplaceAllString(string(text), "")
		for _, m := range capitals.FindAllStringSubmatch(code, -1) {
			seen[m[1]] = true
		}
		for _, name := range libraries.FindAllString(code, -1) {
			seen[name] = true
		}
	}
	for kind, names := range usedOfRedis62 {
		for _, name := range names {
			if !seen[name] {
				t.Errorf("no script names the %s %s any more", kind, name)
			}
			delete(seen, name)
		}
	}
	for name := range seen {
		t.Errorf("a script names %s: see whether Redis 6.2 has it", name)
	}
}
