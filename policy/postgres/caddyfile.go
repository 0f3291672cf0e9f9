package postgres

import (
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
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
		if err := p.check(); err != nil {
			return d.WrapErr(err)
		}
	}
	return nil
}

func (p *Provider) unmarshalOption(d *caddyfile.Dispenser, option string) error {
	switch option {
	case "cache_ttl":
		return duration(d, &p.CacheTTL, "5s")
	case "max_keys":
		return number(d, &p.MaxKeys, "100000")
	case "lookup_timeout":
		return duration(d, &p.LookupTimeout, "50ms")
	case "max_connections":
		return number(d, &p.MaxConnections, "8")
	case "audit_retention":
		return duration(d, &p.AuditRetention, "400d")
	case "migrate":
		return p.unmarshalMigrate(d)
	}
	return d.Errf("unknown option %q of provider postgres; write cache_ttl, max_keys, lookup_timeout, max_connections, audit_retention or migrate", option)
}

func (p *Provider) unmarshalMigrate(d *caddyfile.Dispenser) error {
	value, err := argument(d, "on or off")
	if err != nil {
		return err
	}
	if value != "on" && value != "off" {
		return d.Errf("migrate %q is not known; write migrate on, or migrate off and run caddy rate-limit migrate yourself", value)
	}
	p.SkipMigrations = value == "off"
	return nil
}

func duration(d *caddyfile.Dispenser, value *caddy.Duration, example string) error {
	option := d.Val()
	text, err := argument(d, example)
	if err != nil {
		return err
	}
	parsed, err := caddy.ParseDuration(text)
	if err != nil || parsed <= 0 {
		return d.Errf("%s %q is not a duration; write one like %s", option, text, example)
	}
	*value = caddy.Duration(parsed)
	return nil
}

func number(d *caddyfile.Dispenser, value *int, example string) error {
	option := d.Val()
	text, err := argument(d, example)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return d.Errf("%s %q is not a number from 1; write one like %s", option, text, example)
	}
	*value = n
	return nil
}

// argument reads the only argument of an option.
func argument(d *caddyfile.Dispenser, example string) (string, error) {
	option := d.Val()
	args := d.RemainingArgs()
	if len(args) != 1 || args[0] == "" {
		return "", d.Errf("%s takes one value, not %d; write %s %s", option, len(args), option, example)
	}
	line := *d
	if d.NextBlock(d.Nesting()) || d.Val() == "}" && line.Val() != "}" {
		return "", line.Errf("%s takes no block; end the line after its value", option)
	}
	return args[0], nil
}
