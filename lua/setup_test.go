package lua_test

import (
	"context"
	"encoding/binary"
	"math"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/lua"
)

// server starts a Redis and connects to it.
func server(t *testing.T) *redis.Client {
	t.Helper()
	s := testserver.NewRedis(t)
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// pack writes numbers as struct does with "<d" each.
func pack(numbers ...int64) []byte {
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
	}
	return b
}

// unpack reads what pack wrote. A number that is not whole is a failure.
func unpack(t interface{ Fatalf(string, ...any) }, s string) []int64 {
	if len(s)%8 != 0 {
		t.Fatalf("%d bytes are no numbers", len(s))
	}
	numbers := make([]int64, len(s)/8)
	for i := range numbers {
		f := math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[8*i:])))
		if f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			t.Fatalf("number %d of the reply is %v", i, f)
		}
		numbers[i] = int64(f)
	}
	return numbers
}

// state is a stored token bucket.
type state struct{ t, used, den int64 }

func (s state) encode() []byte { return append([]byte{1}, pack(s.t, s.used, s.den)...) }

func decodeState(t interface{ Fatalf(string, ...any) }, value string) state {
	if len(value) != 25 || value[0] != 1 {
		t.Fatalf("the state %q is not one of a token bucket", value)
	}
	n := unpack(t, value[1:])
	return state{n[0], n[1], n[2]}
}

// request is one bucket of a call.
type request struct {
	what                     byte
	num, den, capacity, cost int64
}

func (r request) encode() []byte {
	return append([]byte{r.what}, pack(r.num, r.den, r.capacity, r.cost)...)
}

// bg serves calls inside properties, whose context ends with each attempt.
var bg = context.Background()

// mustTake takes from one bucket and returns how long it would have to wait.
func mustTake(t *rapid.T, c *redis.Client, now int64, key string, r request) (retry int64) {
	reply, err := c.Eval(bg, lua.Take, []string{key}, strconv.FormatInt(now, 10), r.encode()).Text()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return unpack(t, reply)[1]
}

// used is how many scaled units of a bucket are in use, found from outside: the
// largest scaled cost that still fits is what is free.
func used(t *rapid.T, c *redis.Client, now int64, key string, r request) int64 {
	low, high := int64(0), r.capacity
	for low < high {
		mid := (low + high + 1) / 2
		probe := r
		probe.what, probe.cost = 1, mid
		value, err := c.Get(bg, key).Result()
		retry := mustTake(t, c, now, key, probe)
		if retry > 0 {
			high = mid - 1
		} else {
			low = mid
			restore(c, key, value, err == nil)
		}
	}
	return r.capacity - low
}

func restore(c *redis.Client, key, value string, present bool) {
	if present {
		c.Set(bg, key, value, 0)
	} else {
		c.Del(bg, key)
	}
}
