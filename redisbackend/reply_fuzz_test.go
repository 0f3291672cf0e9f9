package redisbackend

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// packedReply packs numbers as the scripts do.
func packedReply(numbers ...int64) string {
	c := new(call)
	for _, n := range numbers {
		c.appendNumbers(0, n)
	}
	var text strings.Builder
	for i := range numbers {
		text.Write(c.bytes[i*(1+numberSize)+1 : (i+1)*(1+numberSize)])
	}
	return text.String()
}

// FuzzReply looks for a reply that is taken and cannot be: whatever stands in for
// Redis, a decision is sound, or there is none.
func FuzzReply(f *testing.F) {
	for _, text := range []string{
		"", packedReply(0), packedReply(1, 0, 9, 1000), packedReply(1, 500, 0, 1000), packedReply(1, -500, 0, 1000), packedReply(1, 0, 9, 1000, 0, 9, 1000),
		packedReply(1, -1<<62, 0, 0), packedReply(1, 0, -1, -1), strings.Repeat("\xff", 32), strings.Repeat("\x00\x00\x00\x00\x00\x00\xf0\x7f", 4), "OK",
	} {
		f.Add(text, false)
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text string, shadow bool) {
		for n := 1; n <= 3; n++ {
			checkReply(t, text, n, shadow)
		}
		g := &group{decisions: make([]policy.Decision, 2)}
		c := &call{script: giveBackScript, want: 4 * numberSize}
		if c.answer(text) == nil && c.check() == nil {
			g.decodeGivenBack(c, []int{0, 1})
		}
		for _, d := range g.decisions {
			if d.Remaining < 0 || d.ResetAfter < 0 {
				t.Errorf("%q gives back %+v", text, d)
			}
		}
	})
}

func checkReply(t *testing.T, text string, n int, shadow bool) {
	t.Helper()
	buckets, decisions := make([]policy.Bucket, n), make([]policy.Decision, n)
	for i := range buckets {
		buckets[i].Shadow = shadow
	}
	c := &call{script: takeScript, want: numberSize + n*decisionSize}
	if c.answer(text) != nil || c.check() != nil {
		return
	}
	c.decode(buckets, decisions)
	for _, d := range decisions {
		if d.Remaining < 0 || d.RetryAfter < 0 || d.ResetAfter < 0 || d.Delay < 0 || d.Delay > policy.LongestDelay {
			t.Errorf("%q: got %+v", text, d)
		}
		if d.Allowed != (d.RetryAfter == 0) || !d.Allowed && d.Delay > 0 || d.RetryAfter%time.Microsecond != 0 {
			t.Errorf("%q contradicts itself: %+v", text, d)
		}
	}
}

// FuzzSplit looks for a reply to calls that travelled together of which one gets less
// than a decision for each of its buckets, without an error.
func FuzzSplit(f *testing.F) {
	time, decision := packedReply(1), packedReply(0, 9, 1000)
	f.Add(time + "\x01\x00" + decision + "\x01\x00" + decision + decision)
	f.Add(time + "\x02\x00" + decision + decision + "\x00\x00\x03\x00ERR")
	f.Add(time + "\x03\x00" + decision + decision + decision + "\x01\x00" + decision + decision)
	f.Add(time + "\xff\xff" + decision)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		b := newBatch()
		for _, identity := range []string{"a", "a", "b", "a"} {
			c := newCall(takeScript)
			keys := strings.Count(identity, "b") + 1
			for range keys {
				c.addKey("ratelimit:{", &policy.Bucket{Identity: identity, Scope: "ip"})
			}
			c.seal(keys)
			b.calls = append(b.calls, c)
		}
		b.begin()
		b.answer(text, nil)
		for _, c := range b.calls {
			if c.err == nil && len(c.reply) != c.keys*decisionSize {
				t.Errorf("%q: %d buckets get %d bytes", text, c.keys, len(c.reply))
			}
		}
	})
}
