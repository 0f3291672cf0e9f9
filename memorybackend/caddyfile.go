package memorybackend

import (
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// UnmarshalCaddyfile reads the backend's settings. Syntax:
//
//	memory {
//		max_keys <n>
//	}
//
// The block and what is in it may be left out.
func (b *Backend) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the module's name
	if d.NextArg() {
		return d.Errf("memory takes no %q here; write its settings in a block: memory { max_keys <n> }", d.Val())
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if d.Val() != "max_keys" {
			return d.Errf("memory has no setting %q; the only one is max_keys <n>", d.Val())
		}
		if err := b.unmarshalMaxKeys(d); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) unmarshalMaxKeys(d *caddyfile.Dispenser) error {
	if b.MaxKeys != 0 {
		return d.Err("max_keys is written twice; write it once")
	}
	if !d.NextArg() {
		return d.Errf("max_keys needs a number; write max_keys <n>, like max_keys %d", DefaultMaxKeys)
	}
	n, err := strconv.Atoi(d.Val())
	if err != nil {
		return d.Errf("max_keys %q is not a whole number, or too large; write one like %d", d.Val(), DefaultMaxKeys)
	}
	if err := checkMaxKeys(n); err != nil {
		return d.WrapErr(err)
	}
	b.MaxKeys = n
	if d.NextArg() {
		return d.Errf("max_keys takes one number, and %q is one too many; write max_keys %d", d.Val(), n)
	}
	if d.NextBlock(d.Nesting()) {
		return d.Errf("max_keys takes no block, and %q is in one; write max_keys %d", d.Val(), n)
	}
	return nil
}

// Interface guard.
var _ caddyfile.Unmarshaler = (*Backend)(nil)
