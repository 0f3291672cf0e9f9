package redisbackend

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
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

// call is one EVALSHA on its way. It belongs to its caller until it is queued;
// then the caller and the sender settle by its state who returns it to the pool.
type call struct {
	script *script
	args   []any
	text   []byte // the keys and arguments, in one piece
	ends   []int  // where each of them ends in text
	parts  []string

	state atomic.Int32
	done  chan struct{} // receives one value when an answer is there

	// The answer, written by the sender before done.
	reply string
	err   error
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
	c.script, c.text, c.ends, c.reply, c.err = s, c.text[:0], c.ends[:0], "", nil
	c.state.Store(queued)
	return c
}

// release returns the call to the pool. Nobody may hold it any more.
func (c *call) release() { calls.Put(c) }

// begin tells that the call is being sent; false means that its caller has gone.
func (c *call) begin() bool { return c.state.CompareAndSwap(queued, sending) }

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
func (c *call) endPart() { c.ends = append(c.ends, len(c.text)) }

func (c *call) addKey(prefix string, b *policy.Bucket) {
	c.text = append(c.text, prefix...)
	c.text = append(c.text, b.Identity...)
	c.text = append(c.text, "}:"...)
	c.text = append(c.text, b.Scope...)
	c.endPart()
}

// addTime adds a time in microseconds; nil means the server's clock.
func (c *call) addTime(clock func() int64) {
	if clock != nil {
		c.text = strconv.AppendInt(c.text, clock(), 10)
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
	c.text = append(c.text, what)
	for _, n := range numbers {
		c.text = binary.LittleEndian.AppendUint64(c.text, math.Float64bits(float64(n)))
	}
}

// seal builds the command. The first parts are keys, the rest arguments.
func (c *call) seal(keys int) {
	text := string(c.text)
	c.parts = c.parts[:0]
	start := 0
	for _, end := range c.ends {
		c.parts = append(c.parts, text[start:end])
		start = end
	}
	c.args = append(c.args[:0], "evalsha", c.script.sha, keys)
	for i := range c.parts {
		c.args = append(c.args, &c.parts[i])
	}
}

// key is the first key, which stands for all: they live in one slot.
func (c *call) key() string { return c.parts[0] }

// withText is the command with the script's text in place of its name.
func (c *call) withText() []any {
	return append([]any{"eval", c.script.text}, c.args[2:]...)
}

// number reads the i-th number of the reply.
func (c *call) number(i int) int64 {
	var b [numberSize]byte
	copy(b[:], c.reply[i*numberSize:])
	return int64(math.Float64frombits(binary.LittleEndian.Uint64(b[:])))
}

// micros is the i-th number of the reply as a duration.
func (c *call) micros(i int) time.Duration { return time.Duration(c.number(i)) * time.Microsecond }
