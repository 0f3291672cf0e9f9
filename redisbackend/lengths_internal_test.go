package redisbackend

import (
	"fmt"
	"strings"
	"testing"
)

func TestLengthsThatCannotBeAreNotBelievedHoweverTheyArrive(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("*9999999999\r\n", 100)
	for text, ok := range map[string]bool{
		"+OK\r\n:1\r\n-ERR x\r\n$-1\r\n*-1\r\n$0\r\n\r\n*0\r\n":              true,
		fmt.Sprintf("$%d\r\n%s\r\n*2\r\n$1\r\n*\r\n:5\r\n", len(long), long): true, // inside a string, anything
		"$99999999999\r\n":         false,
		"$9223372036854775808\r\n": false,
		"*2000000000\r\n":          false,
		"*1\r\n*-7\r\n":            false,
		"$x\r\n":                   false,
		"\r\n":                     false,

		// Only the third version of the protocol has these, and none was asked for.
		"%1\r\n": false, "+OK\r\n>1\r\n": false, "~1\r\n": false, "|1\r\n": false, "_\r\n": false, "#t\r\n": false,
		",1\r\n": false, "(1\r\n": false, "=5\r\n": false, "!1\r\n": false, "HTTP/1.1 400 Bad Request\r\n": false,

		// Each list is small, and what they make together is not.
		strings.Repeat("*1\r\n", maxDepth) + ":1\r\n":                                                 true,
		strings.Repeat("*1\r\n", maxDepth+1):                                                          false,
		strings.Repeat("*1\r\n*1\r\n*0\r\n", 2*maxDepth):                                              true,
		"*16\r\n" + strings.Repeat("*40000\r\n"+strings.Repeat(":1\r\n", 40000), 14):                  false,
		"*4\r\n" + strings.Repeat(fmt.Sprintf("$%d\r\n%s\r\n", 5<<20, strings.Repeat("x", 5<<20)), 4): false,
		strings.Repeat(fmt.Sprintf("$%d\r\n%s\r\n", 5<<20, strings.Repeat("x", 5<<20)), 4):            true, // four replies
	} {
		first := 1
		if len(text) > 1<<20 { // longer than is worth one byte at a time
			first = 1000
		}
		for size := first; size <= len(text); size = size*2 + 1 {
			var l lengths
			var err error
			for rest := text; rest != "" && err == nil; {
				n := min(size, len(rest))
				err = l.check([]byte(rest[:n]))
				rest = rest[n:]
			}
			if (err == nil) != ok {
				t.Errorf("%.30q in parts of %d: %v", text, size, err)
			}
		}
	}
}

// The library speaks so with sentinels.
func TestTheThirdVersionOfTheProtocolIsBoundedToo(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"%1\r\n+proto\r\n:3\r\n>2\r\n+message\r\n=5\r\ntxt:x\r\n,1.5\r\n#t\r\n_\r\n(12\r\n!3\r\nERR\r\n~0\r\n": true,
		strings.Repeat("%1\r\n:1\r\n:2\r\n", 2*maxDepth):                                                       true,
		"%2000000000\r\n": false, ">2000000000\r\n": false, "=99999999999\r\n": false,
		strings.Repeat("%1\r\n", maxDepth+1): false,
		"|1\r\n+a\r\n+b\r\n+OK\r\n":          false,
	} {
		l := lengths{resp3: true}
		if err := l.check([]byte(text)); (err == nil) != ok {
			t.Errorf("%.30q: %v", text, err)
		}
		if ok && (len(l.open) > 0 || l.skip > 0 || len(l.line) > 0) {
			t.Errorf("%.30q: it has ended, and %+v", text, l)
		}
	}
}

func TestALineWithoutAnEndIsNotReadForEver(t *testing.T) {
	t.Parallel()
	var l lengths
	part := []byte(strings.Repeat("x", 100))
	for range maxLine/100 + 1 {
		if l.check(part) != nil {
			return
		}
	}
	t.Error("more than 4 KB were taken for a line")
}
