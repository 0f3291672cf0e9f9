package redisbackend

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// maxBatch is the most calls that travel together.
const maxBatch = 128

// batch is calls that travel as one command of lua/take.lua. Calls that are equal to
// the last byte, the same buckets by the same limits, are one request in it, to be
// granted as often as there are calls, in the order of their arrival. A sender uses
// one batch again and again.
type batch struct {
	calls []*call // in order of arrival
	heads []*call // the first of each kind; the others hang on it
	known map[string]*call

	args  []any
	text  []byte // what take.lua wants to know of the buckets
	shape []byte // and of the requests
}

func newBatch() *batch { return &batch{known: make(map[string]*call, maxBatch)} }

// begin drops the calls whose callers have gone, which are not sent, and merges the
// others.
func (b *batch) begin() {
	b.calls = slices.DeleteFunc(b.calls, func(c *call) bool {
		if c.begin() {
			return false
		}
		c.release()
		return true
	})
	b.heads = b.heads[:0]
	clear(b.known)
	for _, c := range b.calls {
		c.times, c.next, c.last = 1, nil, c
		if head := b.known[c.text]; head != nil {
			head.times++
			head.last.next = c
			head.last = c
			continue
		}
		b.known[c.text] = c
		b.heads = append(b.heads, c)
	}
}

// end tells the callers. Calls whose callers have gone are released: the answer came
// too late.
func (b *batch) end() {
	for _, c := range b.calls {
		c.next, c.last = nil, nil
	}
	for _, c := range b.calls {
		if !c.end() {
			c.release()
		}
	}
	clear(b.calls)
	clear(b.heads)
	clear(b.args)
	b.calls = b.calls[:0]
}

// takeOut takes the calls out, as if they had never been collected.
func (b *batch) takeOut() []*call {
	calls := slices.Clone(b.calls)
	for _, c := range calls {
		c.next, c.last, c.err = nil, nil, nil
	}
	clear(b.calls)
	clear(b.heads)
	clear(b.args)
	b.calls = b.calls[:0]
	return slices.DeleteFunc(calls, func(c *call) bool {
		if c.unbegin() {
			return false
		}
		c.release()
		return true
	})
}

// command builds the command for all of them. It is good until the next one.
func (b *batch) command() []any {
	if len(b.calls) == 1 {
		return b.calls[0].command()
	}
	keys := 0
	b.text, b.shape = b.text[:0], b.shape[:0]
	for _, head := range b.heads {
		b.text = append(b.text, head.numbers()...)
		b.shape = binary.LittleEndian.AppendUint16(b.shape, uint16(head.keys))
		b.shape = binary.LittleEndian.AppendUint16(b.shape, uint16(head.times))
		keys += head.keys
	}
	b.args = append(b.args[:0], "evalsha", takeScript.sha, keys)
	for _, head := range b.heads {
		for i := range head.keys {
			b.args = append(b.args, &head.parts[i])
		}
	}
	b.args = append(b.args, b.heads[0].time(), b.text, b.shape)
	return b.args
}

// answer gives every call its part of the reply, or the error.
func (b *batch) answer(reply string, err error) {
	if err == nil && len(b.calls) > 1 {
		err = b.split(reply)
	} else if err == nil {
		err = b.calls[0].answer(reply)
	}
	if err != nil {
		for _, c := range b.calls {
			c.err = err
		}
	}
}

// split reads the reply to requests that travelled together.
func (b *batch) split(reply string) error {
	r := reader{rest: reply}
	now := r.next(numberSize)
	for _, head := range b.heads {
		n := r.count()
		if n == 0 {
			head.fail(replyError(r.next(r.count())))
			continue
		}
		size := head.keys * decisionSize
		decisions := r.next(n * size)
		for c, i := head, 0; c != nil && !r.short; c, i = c.next, min(i+1, n-1) {
			c.now, c.reply = now, decisions[i*size:(i+1)*size]
		}
	}
	if r.short || r.rest != "" {
		return notRedis(fmt.Sprintf("%d bytes to %d requests", len(reply), len(b.heads)))
	}
	return nil
}

// fail gives a call and those that hang on it an error.
func (c *call) fail(err error) {
	for ; c != nil; c = c.next {
		c.err = err
	}
}

// reader takes a reply apart.
type reader struct {
	rest  string
	short bool // more was asked for than there is
}

func (r *reader) next(n int) string {
	if n > len(r.rest) {
		r.short = true
		return ""
	}
	part := r.rest[:n]
	r.rest = r.rest[n:]
	return part
}

func (r *reader) count() int {
	part := r.next(2)
	if part == "" {
		return 0
	}
	return int(part[0]) | int(part[1])<<8
}

// replyError is an error reply of Redis to one of the requests that travelled
// together.
type replyError string

func (e replyError) Error() string { return string(e) }

// RedisError marks it as a reply, for the library and for isOutage.
func (e replyError) RedisError() {}

// Interface guards
var _ redis.Error = replyError("")
