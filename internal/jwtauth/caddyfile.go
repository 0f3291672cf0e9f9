package jwtauth

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Use is what tokens are for, which decides what is read from them.
type Use int

// The uses of tokens.
const (
	ForClients Use = iota // they name an account and its tier
	ForAdmins             // they name an admin and their roles
)

// words lists what a block of this use may hold.
func (u Use) words() []string {
	words := []string{"secret", "public_key", "jwks", "issuer", "audience", "leeway", "account_claim"}
	if u == ForAdmins {
		return append(words, "role_claim")
	}
	return append(words, "tier_claim")
}

// Parse reads a block jwt, on whose word d stands. Syntax:
//
//	jwt {
//	    secret        <at least 32 bytes>      one of these three
//	    public_key    <pem file or pem>
//	    jwks          <url>
//	    issuer        <text>
//	    audience      <text...>
//	    leeway        <duration>
//	    account_claim <claim>
//	    tier_claim    <claim>                  for clients
//	    role_claim    <claim>                  for admins
//	}
func Parse(d *caddyfile.Dispenser, use Use) (*Config, error) {
	if d.NextArg() {
		return nil, d.Err("jwt takes no word; write jwt { secret {env.JWT_SECRET} }")
	}
	p := &parser{Dispenser: d, use: use, config: new(Config), seen: make(map[string]bool)}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := p.word(); err != nil {
			return nil, err
		}
	}
	if use == ForClients && !p.config.HasKey() {
		return nil, d.WrapErr(errNoKey)
	}
	return p.config, nil
}

type parser struct {
	*caddyfile.Dispenser
	use    Use
	config *Config
	seen   map[string]bool
}

func (p *parser) word() error {
	word := p.Val()
	if !slices.Contains(p.use.words(), word) {
		return p.unknown(word)
	}
	if p.seen[word] {
		return p.Errf("%s is given twice in jwt; write it once", word)
	}
	p.seen[word] = true
	if err := p.read(word); err != nil {
		return err
	}
	if err := p.config.Validate(); err != nil {
		return p.WrapErr(err)
	}
	return nil
}

func (p *parser) unknown(word string) error {
	hint := ""
	switch word {
	case "role_claim":
		hint = " of identify: roles are for rate_limit_admin"
	case "tier_claim":
		hint = " of rate_limit_admin: tiers are for identify"
	}
	return p.Errf("%q is not known in jwt%s; write one of %s", word, hint, strings.Join(p.use.words(), ", "))
}

func (p *parser) read(word string) (err error) {
	c := p.config
	switch word {
	case "secret":
		c.Secret, err = p.value(word, "at least 32 bytes, like {env.JWT_SECRET}")
	case "public_key":
		c.PublicKey, err = p.value(word, "a PEM file")
	case "jwks":
		c.JWKS, err = p.value(word, "the URL of a key set")
	case "issuer":
		c.Issuer, err = p.value(word, "what the claim iss must be")
	case "audience":
		err = p.audience()
	case "leeway":
		err = p.leeway()
	case "account_claim":
		c.AccountClaim, err = p.value(word, "a claim, like sub")
	case "tier_claim":
		c.TierClaim, err = p.value(word, "a claim, like tier")
	case "role_claim":
		c.RoleClaim, err = p.value(word, "a claim, like realm_access.roles")
	}
	return err
}

// value reads the one argument of a word. What is too much is not repeated in the
// error: it may be a part of a secret.
func (p *parser) value(word, what string) (string, error) {
	if !p.NextArg() || p.Val() == "" {
		return "", p.Errf("%s needs a value: %s", word, what)
	}
	value := p.Val()
	if p.NextArg() {
		return "", p.Errf("%s takes one value: %s; put quotes around one with spaces", word, what)
	}
	if p.NextBlock(p.Nesting()) {
		return "", p.Errf("%s takes one value and no block: %s", word, what)
	}
	return value, nil
}

func (p *parser) audience() error {
	p.config.Audience = p.RemainingArgs()
	if len(p.config.Audience) == 0 {
		return p.Err("audience needs a value: what the claim aud must have one of")
	}
	return nil
}

func (p *parser) leeway() error {
	text, err := p.value("leeway", "a duration, like 5s")
	if err != nil {
		return err
	}
	d, err := caddy.ParseDuration(text)
	if err != nil {
		return p.WrapErr(fmt.Errorf("leeway %q is not a duration; write one from 0s to 5m, like 5s", text))
	}
	leeway := caddy.Duration(d)
	p.config.Leeway = &leeway
	return nil
}
