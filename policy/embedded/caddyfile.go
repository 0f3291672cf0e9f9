package embedded

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tollgate/ratelimit/internal/block"
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
	return block.Each(d, func(option string) error {
		if err := p.unmarshalOption(d, option); err != nil {
			return err
		}
		if err := p.check(); err != nil {
			return d.WrapErr(err)
		}
		return nil
	})
}

func (p *Provider) unmarshalOption(d *caddyfile.Dispenser, option string) error {
	switch option {
	case "poll_interval":
		return block.Duration(d, &p.PollInterval, "500ms")
	case "audit_retention":
		return block.Duration(d, &p.AuditRetention, "400d")
	}
	return d.Errf("unknown option %q of provider embedded; write poll_interval or audit_retention", option)
}
