package jwtauth

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// Config says how tokens are verified and what is read from them. Exactly one of
// Secret, PublicKey and JWKS is set. In all texts, placeholders like {env.JWT_SECRET}
// and {file./run/secrets/jwt} are replaced when the configuration is loaded.
type Config struct {
	// The shared secret of HS256 tokens, at least 32 bytes.
	Secret string `json:"secret,omitempty"`

	// The public key of RS*, PS*, ES* or EdDSA tokens: a PEM file, or the PEM
	// itself. RSA keys have at least 2048 bits.
	PublicKey string `json:"public_key,omitempty"`

	// The URL of a JSON Web Key Set with the public keys of the issuer.
	JWKS string `json:"jwks,omitempty"`

	// What the claim iss must be. Default: anything.
	Issuer string `json:"issuer,omitempty"`

	// What the claim aud must have one of. Default: anything.
	Audience []string `json:"audience,omitempty"`

	// How far the clocks of issuer and server may differ, 0 to 5m: exp and nbf are
	// that much less strict. Default: 1s.
	Leeway *caddy.Duration `json:"leeway,omitempty"`

	// The claim that names the account: text or a whole number. A claim within
	// another one is written with dots, like user.id; a claim whose whole name is
	// the text comes first. Default: sub.
	AccountClaim string `json:"account_claim,omitempty"`

	// The claim that names the tier of a client. Default: tier.
	TierClaim string `json:"tier_claim,omitempty"`

	// The claim that holds the roles of an admin, like realm_access.roles: a list of
	// texts, or one text with spaces between them. Default: roles.
	RoleClaim string `json:"role_claim,omitempty"`
}

const (
	defaultLeeway = time.Second
	maxLeeway     = 5 * time.Minute

	defaultAccountClaim = "sub"
	defaultTierClaim    = "tier"
	defaultRoleClaim    = "roles"
)

// HasKey reports whether the configuration says by what tokens are verified.
func (c *Config) HasKey() bool { return c.Secret != "" || c.PublicKey != "" || c.JWKS != "" }

// Validate reports the first mistake that shows before placeholders are replaced,
// in words that say what to write instead. A missing key is none: New reports it.
func (c *Config) Validate() error {
	if len(c.keyWords()) > 1 {
		return fmt.Errorf("jwt has both %s; write one of secret, public_key and jwks", strings.Join(c.keyWords(), " and "))
	}
	if c.Secret != "" && !pending(c.Secret) {
		if err := checkSecret(c.Secret); err != nil {
			return err
		}
	}
	if c.JWKS != "" && !pending(c.JWKS) {
		if err := checkURL(c.JWKS); err != nil {
			return err
		}
	}
	if c.Leeway != nil && (*c.Leeway < 0 || time.Duration(*c.Leeway) > maxLeeway) {
		return fmt.Errorf("leeway %s is out of range; write a duration from 0s to 5m, like 5s", time.Duration(*c.Leeway))
	}
	for _, a := range c.Audience {
		if a == "" {
			return errors.New("audience is empty; write what the claim aud must have, or leave it out")
		}
	}
	return nil
}

// keyWords lists the keys that are set.
func (c *Config) keyWords() (words []string) {
	for _, k := range []struct{ word, value string }{
		{"secret", c.Secret}, {"public_key", c.PublicKey}, {"jwks", c.JWKS},
	} {
		if k.value != "" {
			words = append(words, k.word)
		}
	}
	return words
}

// pending reports whether a text holds placeholders.
func pending(text string) bool { return strings.Contains(text, "{") }

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return errors.New("jwks is not a URL; write one like jwks https://issuer.example.com/.well-known/jwks.json")
	}
	return nil
}

var errNoKey = errors.New("jwt has nothing to verify tokens by; write secret {env.JWT_SECRET}, public_key <pem file> or jwks <url>")

// resolve returns a copy with placeholders replaced and defaults filled in.
func (c *Config) resolve() (*Config, error) {
	if !c.HasKey() {
		return nil, errNoKey
	}
	r, repl := *c, caddy.NewReplacer()
	r.Audience = append([]string(nil), c.Audience...)
	texts := []textField{
		{"secret", &r.Secret},
		{"public_key", &r.PublicKey},
		{"jwks", &r.JWKS},
		{"issuer", &r.Issuer},
		{"account_claim", &r.AccountClaim},
		{"tier_claim", &r.TierClaim},
		{"role_claim", &r.RoleClaim},
	}
	for i := range r.Audience {
		texts = append(texts, textField{"audience", &r.Audience[i]})
	}
	for _, t := range texts {
		if err := t.resolve(repl); err != nil {
			return nil, err
		}
	}
	r.fillDefaults()
	return &r, r.Validate()
}

type textField struct {
	word string
	text *string
}

// resolve replaces the placeholders. A text of which nothing is left is an error:
// to check less than was written is never what was meant.
func (f textField) resolve(repl *caddy.Replacer) error {
	if !pending(*f.text) {
		return nil
	}
	if f.word == "public_key" && strings.Contains(*f.text, pemBegin) {
		return nil
	}
	value, err := repl.ReplaceOrErr(*f.text, true, true)
	if err != nil && f.word == "secret" && !wholePlaceholder.MatchString(*f.text) {
		return errSecretBraces // the other error quotes what stands between the braces
	}
	if err != nil {
		return fmt.Errorf("jwt: %s: %w; set it, or write the value itself", f.word, err)
	}
	*f.text = value
	return nil
}

// wholePlaceholder is a text that is nothing but a placeholder of Caddy's own.
var wholePlaceholder = regexp.MustCompile(`^\{(env|file)\.[^{}]+\}$`)

var errSecretBraces = errors.New(`jwt: secret has a placeholder that is unknown or empty; write {env.JWT_SECRET} or {file.<path>}, or a backslash before a brace that is meant as itself`)

func (c *Config) fillDefaults() {
	if c.Leeway == nil {
		leeway := caddy.Duration(defaultLeeway)
		c.Leeway = &leeway
	}
	for _, d := range []struct {
		claim *string
		word  string
	}{
		{&c.AccountClaim, defaultAccountClaim}, {&c.TierClaim, defaultTierClaim}, {&c.RoleClaim, defaultRoleClaim},
	} {
		if *d.claim == "" {
			*d.claim = d.word
		}
	}
}

// publicKeyPEM returns the PEM of a resolved configuration.
func (c *Config) publicKeyPEM() ([]byte, error) {
	if strings.Contains(c.PublicKey, pemBegin) {
		return []byte(c.PublicKey), nil
	}
	text, err := os.ReadFile(c.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("jwt: public_key is neither a PEM nor a file that can be read: %w", err)
	}
	return text, nil
}
