package embedded

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// UnmarshalCaddyfile reads the provider. Syntax:
//
//	embedded {
//		poll_interval   <duration>
//		audit_retention <duration>
//	}
func (p *Provider) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // embedded
	if d.NextArg() {
		return d.Errf("embedded takes no argument %q: it keeps everything in Caddy's storage; write provider embedded, and storage ... in the global options for another place", d.Val())
	}
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if seen[option] {
			return d.Errf("%s is written twice; write it once", option)
		}
		seen[option] = true
		if err := p.unmarshalOption(d, option); err != nil {
			return err
		}
	}
	return nil
}

func (p *Provider) unmarshalOption(d *caddyfile.Dispenser, option string) error {
	switch option {
	case "poll_interval":
		return p.duration(d, &p.PollInterval, "500ms")
	case "audit_retention":
		return p.duration(d, &p.AuditRetention, "400d")
	}
	return d.Errf("unknown option %q of provider embedded; write poll_interval or audit_retention", option)
}

func (p *Provider) duration(d *caddyfile.Dispenser, value *caddy.Duration, example string) error {
	option := d.Val()
	args := d.RemainingArgs()
	if len(args) != 1 {
		return d.Errf("%s takes one duration, not %d words; write %s %s", option, len(args), option, example)
	}
	parsed, err := caddy.ParseDuration(args[0])
	if err != nil || parsed <= 0 {
		return d.Errf("%s %q is not a duration; write one like %s", option, args[0], example)
	}
	*value = caddy.Duration(parsed)
	if err := p.check(); err != nil {
		return d.WrapErr(err)
	}
	line := *d
	if d.NextBlock(d.Nesting()) || d.Val() == "}" && line.Val() != "}" {
		return line.Errf("%s takes no block; end the line after its value", option)
	}
	return nil
}
