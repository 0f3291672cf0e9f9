package main

import (
	"bufio"
	"strings"
	"testing"
)

func TestRepliesOfRedisAreRead(t *testing.T) {
	t.Parallel()
	tests := []struct {
		reply, want string
		ok          bool
	}{
		{"+OK\r\n", "OK", true},
		{":42\r\n", "42", true},
		{"$5\r\na\r\nbc\r\n", "a\r\nbc", true},
		{"$-1\r\n", "", false},
		{"-ERR unknown\r\n", "", false},
		{"$5\r\nab", "", false},
		{"\r\n", "", false},
		{"", "", false},
	}
	for _, tt := range tests {
		got, err := readReply(bufio.NewReader(strings.NewReader(tt.reply)))
		if (err == nil) != tt.ok || tt.ok && got != tt.want {
			t.Errorf("%q: got %q, %v", tt.reply, got, err)
		}
	}
}

func TestScriptCallsAreAddedUpOverTheirCommands(t *testing.T) {
	t.Parallel()
	const stats = "# Commandstats\r\ncmdstat_get:calls=9,usec=1\r\ncmdstat_evalsha:calls=30,usec=9\r\ncmdstat_eval:calls=4,usec=9\r\n"
	if got := scriptStats.FindAllStringSubmatch(stats, -1); len(got) != 2 || got[0][1] != "30" || got[1][1] != "4" {
		t.Errorf("got %q", got)
	}
}
