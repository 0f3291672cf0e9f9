package postgres

import (
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tollgate/ratelimit/internal/block"
)

// UnmarshalCaddyfile reads the provider. Syntax:
//
//	postgres <connection string> {
//		cache_ttl       <duration>
//		max_keys        <number>
//		lookup_timeout  <duration>
//		max_connections <number>
//		audit_retention <duration>
//		migrate         on|off
//	}
func (p *Provider) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // postgres
	args := d.RemainingArgs()
	if len(args) != 1 || args[0] == "" {
		return d.Errf("postgres takes one connection string, not %d words; write postgres %s (words like host=localhost in quotes)", len(args), exampleDSN)
	}
	p.DSN = args[0]
	if !strings.ContainsAny(p.DSN, "{}") {
		if _, err := parseDSN(p.DSN); err != nil {
			return d.WrapErr(err)
		}
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
	case "cache_ttl":
		return block.Duration(d, &p.CacheTTL, "5s")
	case "max_keys":
		return block.Number(d, &p.MaxKeys, "100000")
	case "lookup_timeout":
		return block.Duration(d, &p.LookupTimeout, "50ms")
	case "max_connections":
		return block.Number(d, &p.MaxConnections, "8")
	case "audit_retention":
		return block.Duration(d, &p.AuditRetention, "400d")
	case "migrate":
		return p.unmarshalMigrate(d)
	}
	return d.Errf("unknown option %q of provider postgres; write cache_ttl, max_keys, lookup_timeout, max_connections, audit_retention or migrate", option)
}

func (p *Provider) unmarshalMigrate(d *caddyfile.Dispenser) error {
	value, err := block.Value(d, "on or off")
	if err != nil {
		return err
	}
	if value != "on" && value != "off" {
		return d.Errf("migrate %q is not known; write migrate on, or migrate off and run caddy rate-limit migrate yourself", value)
	}
	p.SkipMigrations = value == "off"
	return nil
}
