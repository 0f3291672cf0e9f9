package ratelimit

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// reader reads the words of one block. Its errors carry file and line, and say
// what to write instead.
type reader struct {
	*caddyfile.Dispenser
	block string
	seen  map[string]bool
}

func newReader(d *caddyfile.Dispenser, block string) *reader {
	return &reader{Dispenser: d, block: block, seen: make(map[string]bool)}
}

// once refuses a word that stood in the block before.
func (r *reader) once() error {
	if r.seen[r.Val()] {
		return r.Errf("%s is given twice in %s; write it once", r.Val(), r.block)
	}
	r.seen[r.Val()] = true
	return nil
}

// value reads the one argument of the current word.
func (r *reader) value(what string) (string, error) {
	word := r.Val()
	if !r.NextArg() {
		return "", r.Errf("%s needs a value: %s", word, what)
	}
	value := r.Val()
	return value, r.noMore(fmt.Sprintf("%s takes one value: %s", word, what))
}

// noMore refuses further arguments on the line.
func (r *reader) noMore(instead string) error {
	if r.NextArg() {
		return r.Errf("unexpected word %q; %s", r.Val(), instead)
	}
	return nil
}

// unknownWord says which words the block knows.
func (r *reader) unknownWord(known []string) error {
	return r.Errf("%q is not known in %s; write one of %s", r.Val(), r.block, strings.Join(known, ", "))
}

// wrap adds file and line to an error, if there is one.
func (r *reader) wrap(err error) error {
	if err == nil {
		return nil
	}
	return r.WrapErr(err)
}

// errAt adds the file and line of a token that was read earlier.
func errAt(at caddyfile.Token, err error) error {
	d := caddyfile.NewDispenser([]caddyfile.Token{at})
	d.Next()
	return d.WrapErr(err)
}

// parseMatcher reads matchers behind a word: on the line, in a block, or by the
// name of a matcher of the site, which named looks up (nil where there are none).
func parseMatcher(d *caddyfile.Dispenser, named func() (caddy.ModuleMap, bool, error)) (caddy.ModuleMap, error) {
	word := d.Val()
	if d.NextArg() {
		name := d.Val()
		d.Prev()
		if strings.HasPrefix(name, "@") {
			return parseNamedMatcher(d, named)
		}
	}
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
	if err != nil {
		return nil, err
	}
	if len(set) == 0 {
		return nil, d.Errf("%s needs a matcher, like %s path /healthz", word, word)
	}
	return set, nil
}

func parseNamedMatcher(d *caddyfile.Dispenser, named func() (caddy.ModuleMap, bool, error)) (caddy.ModuleMap, error) {
	if named == nil {
		d.NextArg()
		return nil, d.Errf("%s is a matcher of a site, which the global options cannot see; write its matchers here", d.Val())
	}
	set, _, err := named()
	if err != nil {
		return nil, d.WrapErr(err)
	}
	if d.NextArg() {
		return nil, d.Errf("unexpected word %q; write one name of a matcher", d.Val())
	}
	return set, nil
}
