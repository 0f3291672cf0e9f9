// Package block reads what backends and providers have in their blocks of a Caddyfile: words
// with one value each. Errors carry file and line, and say what to write instead.
package block

import (
	"slices"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Each calls read with every word of the block that follows, which read has to know. A word may
// stand once, unless it is among those that are repeatable.
func Each(d *caddyfile.Dispenser, read func(word string) error, repeatable ...string) error {
	seen := make([]string, 0, 8)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		word := d.Val()
		switch {
		case slices.Contains(seen, word):
			return d.Errf("%s is written twice; write it once", word)
		case !slices.Contains(repeatable, word):
			seen = append(seen, word)
		}
		if err := read(word); err != nil {
			return err
		}
	}
	return nil
}

// Value reads the one value of the present word. The example is one, to be written.
func Value(d *caddyfile.Dispenser, example string) (string, error) {
	word := d.Val()
	args := d.RemainingArgs()
	if len(args) == 1 && args[0] == "" {
		return "", d.Errf("%s is empty; write %s %s", word, word, example)
	}
	if len(args) != 1 {
		return "", d.Errf("%s takes one value, not %d; write %s %s", word, len(args), word, example)
	}
	return args[0], NoBlock(d, word)
}

// Duration reads a duration above nothing.
func Duration(d *caddyfile.Dispenser, value *caddy.Duration, example string) error {
	word := d.Val()
	text, err := Value(d, example)
	if err != nil {
		return err
	}
	parsed, err := caddy.ParseDuration(text)
	if err != nil || parsed <= 0 {
		return d.Errf("%s %q is not a duration; write one like %s", word, text, example)
	}
	*value = caddy.Duration(parsed)
	return nil
}

// Number reads a whole number from 1.
func Number(d *caddyfile.Dispenser, value *int, example string) error {
	word := d.Val()
	text, err := Value(d, example)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return d.Errf("%s %q is not a number from 1; write one like %s", word, text, example)
	}
	*value = n
	return nil
}

// NoBlock refuses a block behind a word, which would else be taken for lines of the block around
// it. The error stands at the word.
func NoBlock(d *caddyfile.Dispenser, word string) error {
	line := *d
	if d.NextBlock(d.Nesting()) || d.Val() == "}" && line.Val() != "}" { // "}" is an empty block's
		return line.Errf("%s takes no block; end the line after its value", word)
	}
	return nil
}
