package static

import (
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// UnmarshalCaddyfile reads the provider's block. Every line is checked where
// it stands, so an error carries the file and line of the mistake. Syntax:
//
//	static {
//		tier <name> {
//			policy <route> [<METHOD>...] <count>/<window> [burst <n>] [algorithm <name>] [cost <n>] [mode <mode>] [on_error <mode>]
//		}
//		api_key <name> <sha256 of the key, hex> <tier>
//	}
//
// Both lines may be repeated, in any order.
func (p *Provider) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume the provider's name
	if d.NextArg() {
		return d.Errf("static takes no argument %q; write its tiers in a block: static { ... }", d.Val())
	}
	line := *d
	b := &block{Provider: p, keys: newKeyring()}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := b.parseLine(d); err != nil {
			return err
		}
	}
	if err := p.checkTiers(); err != nil {
		return line.WrapErr(err)
	}
	return b.checkKeyTiers()
}

// block is a provider's block while it is parsed.
type block struct {
	*Provider
	keys     *keyring
	keyLines []*caddyfile.Dispenser // where APIKeys[i] stands
}

func (b *block) parseLine(d *caddyfile.Dispenser) error {
	switch d.Val() {
	case "tier":
		return b.parseTier(d)
	case "api_key":
		return b.parseAPIKey(d)
	}
	return d.Errf("unknown word %q in static; write tier or api_key", d.Val())
}

// parseTier reads a tier's block. Syntax:
//
//	tier <name> {
//		policy ...
//	}
func (b *block) parseTier(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) != 1 {
		return d.Errf("tier takes one name and a block, not %d words; write tier FREE { ... }", len(args))
	}
	t := Tier{Name: args[0]}
	if err := b.checkNewTier(t.Name); err != nil {
		return d.WrapErr(err)
	}
	line := *d // an empty tier is a mistake of this line, not of its closing brace
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := t.parseLine(d); err != nil {
			return err
		}
	}
	if err := t.check(); err != nil {
		return line.WrapErr(err)
	}
	b.Tiers = append(b.Tiers, t)
	return nil
}

// checkNewTier has the vocabulary judge a tier's name beside those before it.
func (b *block) checkNewTier(name string) error {
	names := make([]Tier, 0, len(b.Tiers)+1)
	for _, t := range b.Tiers {
		names = append(names, Tier{Name: t.Name})
	}
	_, err := compile(append(names, Tier{Name: name}))
	return err
}

func (t *Tier) parseLine(d *caddyfile.Dispenser) error {
	if d.Val() != "policy" {
		return d.Errf("unknown word %q in tier %s; write policy", d.Val(), t.Name)
	}
	p, err := parsePolicy(d.RemainingArgs())
	if err != nil {
		return d.Errf("tier %s: %w", t.Name, err)
	}
	t.Policies = append(t.Policies, p)
	if _, err := compile([]Tier{*t}); err != nil {
		return d.WrapErr(err)
	}
	return refuseBlock(d, "policy")
}

// parseAPIKey reads one key. Syntax:
//
//	api_key <name> <sha256 of the key, hex> <tier>
func (b *block) parseAPIKey(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) != 3 {
		return d.Errf("api_key takes a name, a hash and a tier, not %d words; write api_key <name> <sha256 of the key, hex> <tier>", len(args))
	}
	k := APIKey{Name: args[0], SHA256: strings.ToLower(args[1]), Tier: args[2]}
	if err := b.keys.add(k); err != nil {
		return d.WrapErr(err)
	}
	line := *d
	b.APIKeys, b.keyLines = append(b.APIKeys, k), append(b.keyLines, &line)
	return refuseBlock(d, "api_key")
}

// checkKeyTiers waits for the end of the block, since a tier may be defined
// below its keys.
func (b *block) checkKeyTiers() error {
	for i, k := range b.APIKeys {
		if err := b.checkTierOf(k); err != nil {
			return b.keyLines[i].WrapErr(err)
		}
	}
	return nil
}

// refuseBlock keeps a block behind a one-line word from being taken for lines
// of the block around it.
func refuseBlock(d *caddyfile.Dispenser, word string) error {
	line := *d
	if d.NextBlock(d.Nesting()) || d.Val() == "}" { // "}" is an empty block's
		return line.Errf("%s takes no block; write it on one line", word)
	}
	return nil
}
