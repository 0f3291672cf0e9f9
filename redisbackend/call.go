package redisbackend

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tollgate/ratelimit/lua"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// script is a Lua program and its name in the server's cache.
type script struct{ text, sha string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

var (
	takeScript     = newScript(lua.Take)
	giveBackScript = newScript(lua.GiveBack)
)

// The numbers by which lua/take.lua knows the algorithms, and how it marks a
// shadow bucket.
const (
	tokenBucketTag = iota + 1
	leakyBucketTag
	fixedWindowTag
	slidingWindowTag
	slidingLogTag

	shadowMark = 128
)

// Lengths in what the scripts take and reply, in bytes.
const (
	numberSize   = 8
	decisionSize = 3 * numberSize
)

// call is one request on its way. It belongs to its caller until it is queued;
// then the caller and the sender settle by its state who returns it to the pool.
type call struct {
	script *script
	keys   int      // how many of the parts are keys; the others are arguments
	parts  []string // of text
	text   string   // calls of equal text ask for the same
	bytes  []byte   // the text while it is written
	ends   []int    // where each part ends
	args   []any

	state atomic.Int32
	done  chan struct{} // receives one value when an answer is there

	want int // the length of a reply to the call alone

	// What the sender writes before done.
	now   string // the time of the decisions, on the server's clock
	reply string // the decisions
	err   error

	// What the sender keeps while it sends.
	times      int   // how many calls this one stands for
	next, last *call // the calls that are equal to this one, as a list
}

// The states of a call. From abandoned on, the sender releases it.
const (
	queued int32 = iota
	sending
	answered
	abandoned
)

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

// newCall prepares a call with its keys; arguments are added after them.
func newCall(s *script) *call {
	c := calls.Get().(*call)
	c.script, c.bytes, c.ends, c.now, c.reply, c.err = s, c.bytes[:0], c.ends[:0], "", "", nil
	c.state.Store(queued)
	return c
}

// release returns the call to the pool. Nobody may hold it any more.
func (c *call) release() { calls.Put(c) }

// begin tells that the call is being sent; false means that its caller has gone.
func (c *call) begin() bool { return c.state.CompareAndSwap(queued, sending) }

// unbegin tells that the call was not sent after all; false means that its caller has
// gone.
func (c *call) unbegin() bool { return c.state.CompareAndSwap(sending, queued) }

// end tells the caller that the answer is there; false means that it has gone.
func (c *call) end() bool {
	if !c.state.CompareAndSwap(sending, answered) {
		return false
	}
	c.done <- struct{}{}
	return true
}

// abandon gives the call up. sent says whether it was on its way already;
// ok is false if the answer has come after all.
func (c *call) abandon() (sent, ok bool) {
	if c.state.CompareAndSwap(queued, abandoned) {
		return false, true
	}
	return true, c.state.CompareAndSwap(sending, abandoned)
}

// endPart ends a key or argument.
func (c *call) endPart() { c.ends = append(c.ends, len(c.bytes)) }

func (c *call) addKey(prefix string, b *policy.Bucket) {
	c.bytes = append(c.bytes, prefix...)
	c.bytes = append(c.bytes, b.Identity...)
	c.bytes = append(c.bytes, "}:"...)
	c.bytes = append(c.bytes, b.Scope...)
	c.endPart()
}

// addTime adds a time in microseconds; nil means the server's clock.
func (c *call) addTime(clock func() int64) {
	if clock != nil {
		c.bytes = strconv.AppendInt(c.bytes, clock(), 10)
	}
	c.endPart()
}

// appendBucket packs what the scripts want to know of a bucket.
func (c *call) appendBucket(b *policy.Bucket) {
	mark := byte(0)
	if b.Shadow {
		mark = shadowMark
	}
	switch r := b.Rule; r.Algorithm {
	case policy.LeakyBucket:
		c.appendNumbers(leakyBucketTag|mark, r.Num, r.Den, r.Capacity, b.Cost*r.Den, r.MaxDelay*r.Num)
	case policy.FixedWindow:
		c.appendNumbers(fixedWindowTag|mark, r.Window, r.Limit.Count, b.Cost)
	case policy.SlidingWindow:
		c.appendNumbers(slidingWindowTag|mark, r.Window, r.Limit.Count, b.Cost)
	case policy.SlidingLog:
		c.appendNumbers(slidingLogTag|mark, r.Window, r.Limit.Count, b.Cost)
	default:
		c.appendNumbers(tokenBucketTag|mark, r.Num, r.Den, r.Capacity, b.Cost*r.Den)
	}
}

func (c *call) appendNumbers(what byte, numbers ...int64) {
	c.bytes = append(c.bytes, what)
	for _, n := range numbers {
		c.bytes = binary.LittleEndian.AppendUint64(c.bytes, math.Float64bits(float64(n)))
	}
}

// seal ends the text, whose first parts are keys.
func (c *call) seal(keys int) {
	c.keys, c.text, c.parts = keys, string(c.bytes), c.parts[:0]
	start := 0
	for _, end := range c.ends {
		c.parts = append(c.parts, c.text[start:end])
		start = end
	}
}

// malformed is the error of a reply that no script of ours gives.
func malformed(reply string, want int) error {
	if len(reply) == want {
		return nil
	}
	return notRedis(fmt.Sprintf("%d bytes instead of %d", len(reply), want))
}

// key is the first key, which stands for all: they live in one slot.
func (c *call) key() string { return c.parts[0] }

// time is the time that the script is to use; empty for the server's own.
func (c *call) time() string { return c.parts[c.keys] }

// numbers is what lua/take.lua wants to know of the buckets.
func (c *call) numbers() string { return c.parts[c.keys+1] }

// command builds the command for the call alone.
func (c *call) command() []any {
	c.args = append(c.args[:0], "evalsha", c.script.sha, c.keys)
	for i := range c.parts {
		c.args = append(c.args, &c.parts[i])
	}
	return c.args
}

// withText is a command with the script's text in place of its name.
func (s *script) withText(command []any) []any {
	return append([]any{"eval", s.text}, command[2:]...)
}

// answer keeps the reply to the call alone. Its error is of a reply that no script of
// ours gives.
func (c *call) answer(reply string) error {
	if err := malformed(reply, c.want); err != nil {
		return err
	}
	if c.script == takeScript {
		c.now, reply = reply[:numberSize], reply[numberSize:]
	}
	c.reply = reply
	return nil
}

// check reports a reply that cannot be: something else may answer in place of Redis,
// and its numbers are a failure, and never a decision.
func (c *call) check() error {
	sound := true
	if c.script == giveBackScript {
		for i := range len(c.reply) / numberSize {
			sound = sound && c.within(i, 0)
		}
	} else {
		sound = float(c.now, 0) > 0
		for i := 0; i < len(c.reply)/numberSize; i += 3 {
			sound = sound && c.within(i, -policy.LongestDelay) && c.within(i+1, 0) && c.within(i+2, 0)
		}
	}
	if !sound {
		return notRedis(fmt.Sprintf("no decision: %.80q", c.reply))
	}
	return nil
}

// taken is when lua/take.lua decided, in microseconds by the server's clock.
func (c *call) taken() int64 { return number(c.now, 0) }

// number reads the i-th number of the reply.
func (c *call) number(i int) int64 { return number(c.reply, i) }

// micros is the i-th number of the reply as a duration.
func (c *call) micros(i int) time.Duration { return time.Duration(c.number(i)) * time.Microsecond }

// within reports whether the i-th number of the reply is one that a script may
// send, from least on: neither NaN nor beyond exact arithmetic.
func (c *call) within(i int, least time.Duration) bool {
	const exact = 1 << 53
	n := float(c.reply, i)
	return n >= float64(least/time.Microsecond) && n <= exact
}

// number reads the i-th number of a text.
func number(text string, i int) int64 { return int64(float(text, i)) }

func float(text string, i int) float64 {
	var b [numberSize]byte
	copy(b[:], text[i*numberSize:])
	return math.Float64frombits(binary.LittleEndian.Uint64(b[:]))
}
