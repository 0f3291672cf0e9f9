package block

import (
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// read reads a block of wait <duration>, count <n> and any number of name <text>.
func read(text string) error {
	d := caddyfile.NewTestDispenser(text)
	d.Next()
	return Each(d, func(word string) (err error) {
		switch word {
		case "wait":
			return Duration(d, new(caddy.Duration), "5s")
		case "count":
			return Number(d, new(int), "8")
		case "name":
			_, err = Value(d, "acme")
			return err
		}
		return d.Errf("unknown word %q", word)
	}, "name")
}

func TestEveryMistakeIsToldAtItsLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a":      "",
		"a {\n}": "",
		"a {\n wait 1s\n count 2\n name x\n name y\n}": "",
		"a {\n wait 1s\n name x\n wait 1s\n}":          "wait is written twice; write it once, at Testfile:4",
		"a {\n wait\n}":                                "wait takes one value, not 0; write wait 5s, at Testfile:2",
		"a {\n wait 1s 2s\n}":                          "wait takes one value, not 2; write wait 5s, at Testfile:2",
		"a {\n name \"\"\n}":                           "name is empty; write name acme, at Testfile:2",
		"a {\n wait 0s\n}":                             `wait "0s" is not a duration; write one like 5s, at Testfile:2`,
		"a {\n count 0\n}":                             `count "0" is not a number from 1; write one like 8, at Testfile:2`,
		"a {\n count 1 {\n name x\n }\n}":              "count takes no block; end the line after its value, at Testfile:2",
		"a {\n count 1 {\n }\n}":                       "count takes no block; end the line after its value, at Testfile:2",
		"a {\n name x {\n }\n name y\n}":               "name takes no block; end the line after its value, at Testfile:2",
	} {
		got := ""
		if err := read(text); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q\ngot  %s\nwant %s", text, got, want)
		}
	}
}
