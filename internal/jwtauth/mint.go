package jwtauth

import (
	"errors"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Grant is what a token that is minted here says.
type Grant struct {
	Subject string
	Roles   []string
	Tier    string
	TTL     time.Duration
}

var errNotMintable = errors.New("tokens can be minted only from a secret; with public_key or jwks, the issuer makes them")

// Mint makes a token that a verifier of the same configuration accepts, valid from
// now on for the TTL. The configuration must have a secret.
func Mint(c *Config, g Grant, now time.Time) (string, error) {
	if c.Secret == "" && c.HasKey() {
		return "", errNotMintable
	}
	r, err := c.resolve()
	if err != nil {
		return "", err
	}
	k, err := secretKey(r.Secret)
	if err != nil {
		return "", err
	}
	claims := jwt.MapClaims{"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(g.TTL).Unix()}
	put(claims, r.AccountClaim, g.Subject)
	if len(g.Roles) > 0 {
		put(claims, r.RoleClaim, g.Roles)
	}
	if g.Tier != "" {
		put(claims, r.TierClaim, g.Tier)
	}
	if r.Issuer != "" {
		claims["iss"] = r.Issuer
	}
	if len(r.Audience) > 0 {
		claims["aud"] = r.Audience[0]
	}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(k.material)
}

// put sets the claim at a path, as find reads it.
func put(claims map[string]any, path string, value any) {
	name, rest, nested := strings.Cut(path, ".")
	if !nested || strings.Contains(path, "/") { // a URL is one name, dots and all
		claims[path] = value
		return
	}
	inner, ok := claims[name].(map[string]any)
	if !ok {
		inner = make(map[string]any)
		claims[name] = inner
	}
	put(inner, rest, value)
}
