package main

import (
	"net/http"
	"strings"
	"testing"
)

// without removes the lines that begin with a text or with blanks and it.
func without(text, start string) string {
	var kept []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), strings.TrimSpace(start)) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func TestEveryCaseRefersToCasesThatExist(t *testing.T) {
	t.Parallel()
	for _, c := range cases {
		for _, name := range []string{c.copies, c.yardstick} {
			if name != "" && find(name) < 0 {
				t.Errorf("%s refers to %q, which is no case", c.name, name)
			}
		}
		if (c.site == "") != (c.copies != "") {
			t.Errorf("%s has either a site of its own or a case that it copies", c.name)
		}
		if c.yardstick == "" {
			continue
		}
		if y := cases[find(c.yardstick)]; y.status != c.status || y.spread != c.spread {
			t.Errorf("%s is held against %s, which has another status or load", c.name, y.name)
		}
	}
}

func TestACopiedAnswerIsWrittenWithoutWhatCaddyAddsItself(t *testing.T) {
	t.Parallel()
	refusal := answer{status: 429, body: `{"a":1}`, header: http.Header{
		"Date": {"now"}, "Server": {"Caddy"}, "Content-Length": {"7"},
		"Content-Type": {"application/problem+json"},
		"Ratelimit":    {`"a";r=0;t=60`, `"b";r=1;t=30`},
	}}
	const want = "header {\n" +
		"\t\tContent-Type `application/problem+json`\n" +
		"\t\tRatelimit `\"a\";r=0;t=60`\n" +
		"\t\t+Ratelimit `\"b\";r=1;t=30`\n" +
		"\t}\n\trespond `\\{\"a\":1\\}` 429"
	if got, err := sameBytes(refusal); err != nil || got != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
	refusal.body = "`"
	if got, err := sameBytes(refusal); err == nil {
		t.Errorf("a backtick was written as %s", got)
	}
}

func TestACopyOfAnotherShapeIsNoCopy(t *testing.T) {
	t.Parallel()
	model := answer{status: 200, body: "hello", header: http.Header{"A": {"1"}}}
	tests := map[string]struct {
		copied answer
		same   bool
	}{
		"equal":          {answer{status: 200, body: "hello", header: http.Header{"A": {"1"}}}, true},
		"other values":   {answer{status: 200, body: "HELLO", header: http.Header{"A": {"2"}}}, true},
		"another status": {answer{status: 429, body: "hello", header: http.Header{"A": {"1"}}}, false},
		"a longer body":  {answer{status: 200, body: "hello!", header: http.Header{"A": {"1"}}}, false},
		"another field":  {answer{status: 200, body: "hello", header: http.Header{"B": {"1"}}}, false},
	}
	for name, tt := range tests {
		if err := tt.copied.sameShape(model); (err == nil) != tt.same {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestEveryRoundMeasuresEachCaseOnce(t *testing.T) {
	t.Parallel()
	first := make(map[int]bool)
	for round := range 4 {
		seen := make(map[int]bool)
		for k := range cases {
			seen[order(round, k)] = true
		}
		if len(seen) != len(cases) {
			t.Errorf("round %d measures %d of %d cases", round, len(seen), len(cases))
		}
		first[order(round, 0)] = true
	}
	if len(first) != 4 {
		t.Errorf("four rounds begin with %d cases", len(first))
	}
}
