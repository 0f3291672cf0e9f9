package lua_test

import (
	"math/big"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/lua"
)

// model decides a token bucket in whole numbers of any size. It is written from
// the definition, in another way than the script.
func model(s *state, now int64, r request) (retry, remaining, reset int64, after state) {
	used := new(big.Int)
	if s != nil {
		used = ceilDiv(new(big.Int).Mul(big.NewInt(s.used), big.NewInt(r.den)), big.NewInt(s.den))
		used = least(used, big.NewInt(r.capacity))
		now = max(now, s.t)
		back := new(big.Int).Mul(big.NewInt(now-s.t), big.NewInt(r.num))
		if used.Sub(used, back); used.Sign() < 0 {
			used.SetInt64(0)
		}
	}
	room := r.capacity - r.cost
	if used.Cmp(big.NewInt(room)) > 0 {
		over := new(big.Int).Sub(used, big.NewInt(room))
		retry = ceilDiv(over, big.NewInt(r.num)).Int64()
	} else {
		used.Add(used, big.NewInt(r.cost))
	}
	free := new(big.Int).Sub(big.NewInt(r.capacity), used)
	remaining = free.Div(free, big.NewInt(r.den)).Int64()
	reset = ceilDiv(used, big.NewInt(r.num)).Int64()
	return retry, remaining, reset, state{now, used.Int64(), r.den}
}

func ceilDiv(a, b *big.Int) *big.Int {
	q, rest := new(big.Int).QuoRem(a, b, new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

func least(a, b *big.Int) *big.Int {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

const (
	maxExact = int64(1)<<53 - 1
	maxDen   = int64(366 * 24 * time.Hour / time.Microsecond)
	maxNum   = int64(1_000_000_000_000)
	someTime = int64(1_800_000_000_000_000)
)

// numbers draws from 1 to most: small ones, large ones and those beside powers
// of two, where rounding goes wrong.
func numbers(most int64) *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(1, min(most, 1000)),
		rapid.Int64Range(1, most),
		rapid.Int64Range(max(1, most-1000), most),
		rapid.Custom(func(t *rapid.T) int64 {
			n := int64(1)<<rapid.IntRange(0, 52).Draw(t, "power") + rapid.Int64Range(-1, 1).Draw(t, "beside")
			return min(max(n, 1), most)
		}),
	)
}

func drawRequest(t *rapid.T) request {
	r := request{what: 1, num: numbers(maxNum).Draw(t, "num"), den: numbers(maxDen).Draw(t, "den")}
	r.capacity = r.den * numbers(maxExact/r.den).Draw(t, "burst")
	r.cost = r.den * rapid.OneOf(rapid.Just(int64(0)), numbers(r.capacity/r.den)).Draw(t, "cost")
	return r
}

// drawState draws what an earlier request may have left, under any limit.
func drawState(t *rapid.T, r request) *state {
	if rapid.Bool().Draw(t, "unseen") {
		return nil
	}
	s := &state{
		t:   someTime - rapid.OneOf(rapid.Just(int64(0)), numbers(1<<20), numbers(someTime), rapid.Int64Range(-1<<40, -1)).Draw(t, "ago"),
		den: r.den,
	}
	if rapid.Bool().Draw(t, "another limit") {
		s.den = numbers(maxDen).Draw(t, "stored den")
	}
	most := maxExact
	if rapid.Bool().Draw(t, "fits") { // what was used is within the new limit, too
		fit := new(big.Int).Mul(big.NewInt(r.capacity), big.NewInt(s.den))
		most = least(fit.Div(fit, big.NewInt(r.den)), big.NewInt(maxExact)).Int64()
	}
	s.used = numbers(max(most, 1)).Draw(t, "used")
	return s
}

// The script has only doubles; every number must be the exact one all the same.
func TestATokenBucketIsExact(t *testing.T) {
	t.Parallel()
	c := server(t)
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		r := drawRequest(t)
		s := drawState(t, r)
		c.Del(ctx, "k")
		if s != nil {
			c.Set(ctx, "k", s.encode(), 0)
		}
		// In a transaction, since some buckets are forgotten within microseconds.
		tx := c.TxPipeline()
		eval := tx.Eval(ctx, lua.Take, []string{"k"}, strconv.FormatInt(someTime, 10), r.encode())
		get, pttl := tx.Get(ctx, "k"), tx.PTTL(ctx, "k")
		_, _ = tx.Exec(ctx) // the results have the errors
		reply, err := eval.Text()
		if err != nil {
			t.Fatalf("%v", err)
		}
		retry, remaining, reset, after := model(s, someTime, r)
		got := unpack(t, reply)
		if got[0] != someTime || got[1] != retry || got[2] != remaining || got[3] != reset {
			t.Fatalf("the reply is %v, not %v", got, []int64{someTime, retry, remaining, reset})
		}
		if retry > 0 || r.cost == 0 {
			return
		}
		if stored := decodeState(t, get.Val()); stored != after {
			t.Fatalf("stored is %v, not %v", stored, after)
		}
		want := time.Duration((reset+999)/1000) * time.Millisecond
		if ttl := pttl.Val(); ttl < 0 || ttl > want || ttl < want-100*time.Millisecond {
			t.Fatalf("the TTL is %s, not %s", ttl, want)
		}
	})
}

// Numbers at which a shorter way of computing would be wrong.
func TestNumbersWhereDoublesRound(t *testing.T) {
	t.Parallel()
	c := server(t)
	ctx := t.Context()
	for name, tt := range map[string]struct {
		s state
		r request
	}{
		"a quotient just below a whole number": {
			state{someTime, maxExact - 1, 1}, request{1, 3, 1, maxExact, 1},
		},
		"a remainder of a number just below 2^53": {
			state{someTime, maxExact, 1}, request{1, maxNum - 1, 1, maxExact, maxExact},
		},
		"a product beyond 2^53 when the limit changed": {
			state{someTime, 8_199_219_959_711_757, 18_864_581_919_833}, request{1, 1, 18_621_010_393_591, 18_621_010_393_591 * 483, 0},
		},
		"a sum beyond 2^53 when it is full": {
			state{someTime, maxExact, 1}, request{1, 1, 1, maxExact, maxExact - 1},
		},
		"a drain beyond 2^53": {
			state{someTime - maxDen, maxExact, 1}, request{1, maxNum, 1, maxExact, 1},
		},
	} {
		c.Set(ctx, "k", tt.s.encode(), 0)
		reply, err := c.Eval(ctx, lua.Take, []string{"k"}, strconv.FormatInt(someTime, 10), tt.r.encode()).Text()
		if err != nil {
			t.Fatal(err)
		}
		retry, remaining, reset, _ := model(&tt.s, someTime, tt.r)
		if got := unpack(t, reply); got[1] != retry || got[2] != remaining || got[3] != reset {
			t.Errorf("%s: the reply is %v, not %v", name, got[1:], []int64{retry, remaining, reset})
		}
	}
}

func TestWhatCannotBeReadCountsAsNeverSeenAndIsOverwritten(t *testing.T) {
	t.Parallel()
	c := server(t)
	ctx := t.Context()
	r := request{1, 1, 600_000, 6_000_000, 600_000}
	otherTag := state{someTime, 6_000_000, 600_000}.encode()
	otherTag[0] = 2
	for name, value := range map[string][]byte{
		"empty": {}, "a number": []byte("42"), "another algorithm's": otherTag, "one byte too many": append(state{someTime, 6_000_000, 600_000}.encode(), 0),
	} {
		c.Set(ctx, "k", value, 0)
		reply, err := c.Eval(ctx, lua.Take, []string{"k"}, strconv.FormatInt(someTime, 10), r.encode()).Text()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := unpack(t, reply); got[1] != 0 || got[2] != 9 {
			t.Errorf("%s: the reply is %v, not a fresh bucket's", name, got)
		}
		if got := decodeState(t, c.Get(ctx, "k").Val()); got != (state{someTime, 600_000, 600_000}) {
			t.Errorf("%s: stored is %v", name, got)
		}
	}
}
