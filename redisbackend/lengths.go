package redisbackend

import (
	"bytes"
	"fmt"
	"strconv"
)

// Bounds of a reply. The library makes room for what is announced, and goes as deep as
// lists are nested, so the other end must not be believed. No reply of Redis's to this
// package comes near them: the longest are INFO, a batch of decisions, and the slots of
// a Cluster.
const (
	maxReply    = 16 << 20 // bytes
	maxLine     = 4 << 10  // bytes of what is no string, as an error, which is logged
	maxElements = 1 << 19  // of all lists together
	maxDepth    = 16       // of lists in lists
)

// lengths looks at the replies on a connection as they come in, for what cannot be
// (the protocol is RESP; see https://redis.io/docs/latest/develop/reference/protocol-spec/).
type lengths struct {
	resp3 bool // the third version of the protocol is spoken, as the library does with sentinels

	line     []byte // the beginning of the line that is not over
	lineSize int    // how many bytes of it have come
	size     int    // how many bytes the reply has, as far as is known
	elements int    // how many elements
	open     []int  // the lists that are not over: how many elements each still gets
	skip     int    // how many bytes of a string are still to come
}

// longestHeader is how much of a line is kept: a type and any number.
const longestHeader = 24

// check takes the next bytes.
func (l *lengths) check(b []byte) error {
	for len(b) > 0 {
		if l.skip > 0 {
			n := min(l.skip, len(b))
			l.skip -= n
			b = b[n:]
			continue
		}
		end := bytes.IndexByte(b, '\n')
		part := b
		if end >= 0 {
			part = b[:end]
		}
		l.line = append(l.line, part[:min(len(part), longestHeader-len(l.line))]...)
		if l.lineSize += len(part); l.lineSize > maxLine {
			return notRedis("a line of more than 4 KB")
		}
		if err := l.grow(len(part)); err != nil {
			return err
		}
		if end < 0 {
			return nil
		}
		b = b[end+1:]
		if err := l.endLine(); err != nil {
			return err
		}
	}
	return nil
}

func (l *lengths) grow(n int) error {
	if l.size += n; l.size > maxReply {
		return notRedis("it has more than 16 MB")
	}
	return nil
}

// endLine judges a line, and begins the next one.
func (l *lengths) endLine() error {
	line := bytes.TrimSuffix(l.line, []byte("\r"))
	l.line, l.lineSize = l.line[:0], 0
	if len(line) == 0 {
		return notRedis("an empty line")
	}
	kind := line[0]
	if l.resp3 {
		kind = inRESP2(kind)
	}
	switch kind {
	case '+', '-', ':':
	case '$':
		n, err := length(line, maxReply)
		if err != nil {
			return err
		}
		if err := l.grow(n); err != nil {
			return err
		}
		if n >= 0 {
			l.skip = n + len("\r\n")
		}
	case '*':
		n, err := length(line, maxElements)
		if err != nil {
			return err
		}
		if line[0] == '%' {
			n *= 2 // keys and values
		}
		if n > 0 {
			return l.begin(n)
		}
	default:
		return notRedis(fmt.Sprintf("the line %q", line))
	}
	l.endElement()
	return nil
}

// inRESP2 is a type of the third version of the protocol that has the form of one of
// the second. There is none for an attribute, which nothing of ours is sent.
func inRESP2(kind byte) byte {
	switch kind {
	case '_', ',', '#', '(':
		return ':'
	case '=', '!':
		return '$'
	case '%', '~', '>':
		return '*'
	}
	return kind
}

// length reads what a line announces; -1 is nothing at all.
func length(line []byte, most int) (int, error) {
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil || n < -1 || n > most {
		return 0, notRedis(fmt.Sprintf("the length %q", line))
	}
	return n, nil
}

// begin begins a list.
func (l *lengths) begin(n int) error {
	l.elements += n
	l.open = append(l.open, n)
	if l.elements > maxElements || len(l.open) > maxDepth {
		return notRedis("its lists are too many or too deep")
	}
	return nil
}

// endElement ends an element, the lists that it was the last of, and with them perhaps
// the reply.
func (l *lengths) endElement() {
	for len(l.open) > 0 {
		last := len(l.open) - 1
		if l.open[last]--; l.open[last] > 0 {
			return
		}
		l.open = l.open[:last]
	}
	l.size, l.elements = 0, 0
}
