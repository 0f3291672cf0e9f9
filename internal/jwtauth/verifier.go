package jwtauth

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/golang-jwt/jwt/v5"
	"github.com/maypok86/otter/v2"
)

// Why a token does not pass. What an error says besides is safe to show: it holds
// nothing of the token.
var (
	// ErrMissing says that a request has no token at all.
	ErrMissing = errors.New("a bearer token is required")

	// ErrInvalid says that a token is not valid, now or ever.
	ErrInvalid = errors.New("the token is not valid")

	// ErrUnavailable says that nothing is known of a token, since the key set could
	// not be read so far.
	ErrUnavailable = errors.New("the keys to verify tokens by are not available")
)

const (
	// maxToken is the length beyond which nothing is a token.
	maxToken = 8 << 10

	maxKeyID = 256

	// remembered is how many verified tokens are kept, and rememberedFor how long.
	remembered    = 10_000
	rememberedFor = time.Minute
)

// Claims is what a valid token says.
type Claims struct {
	Account string // never empty
	Issuer  string // the claim iss; empty if there is none
	Tier    string // empty if there is none
	Roles   []string
}

// Verifier verifies tokens. It is safe for concurrent use.
type Verifier struct {
	config *Config
	keys   keySource
	cache  *otter.Cache[[sha256.Size]byte, *verified]
	now    func() time.Time
}

// verified is a token that was found valid.
type verified struct {
	claims  Claims
	expires time.Time // of the token, leeway included
	forget  time.Time
}

// keySource finds the key for a token. Its errors are ErrInvalid or ErrUnavailable.
type keySource interface {
	find(ctx context.Context, keyID, algorithm string) (*key, error)
}

// New makes a verifier that works until ctx ends. Its error says what is wrong with
// the configuration; a key set that cannot be read is not wrong, but logged and
// tried again.
func New(ctx caddy.Context, c *Config) (*Verifier, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	resolved, err := c.resolve()
	if err != nil {
		return nil, err
	}
	keys, err := resolved.keySource(ctx)
	if err != nil {
		return nil, err
	}
	return newVerifier(resolved, keys, time.Now)
}

func newVerifier(resolved *Config, keys keySource, now func() time.Time) (*Verifier, error) {
	// without an expiry of otter's own it needs no goroutine; lookup checks the time
	cache, err := otter.New(&otter.Options[[sha256.Size]byte, *verified]{MaximumSize: remembered})
	if err != nil {
		return nil, err
	}
	return &Verifier{config: resolved, keys: keys, cache: cache, now: now}, nil
}

// keySource returns where the keys of a resolved configuration come from.
func (c *Config) keySource(ctx caddy.Context) (keySource, error) {
	switch {
	case c.Secret != "":
		return single(secretKey(c.Secret))
	case c.PublicKey != "":
		text, err := c.publicKeyPEM()
		if err != nil {
			return nil, err
		}
		return single(parsePEM(text))
	}
	return joinKeySet(ctx, c.JWKS)
}

// oneKey is a source with one key, for tokens of whatever kid.
type oneKey struct{ *key }

func single(k *key, err error) (keySource, error) {
	if err != nil {
		return nil, err
	}
	return oneKey{k}, nil
}

func (k oneKey) find(_ context.Context, _, algorithm string) (*key, error) {
	if !k.accepts(algorithm) {
		return nil, errAlgorithm
	}
	return k.key, nil
}

// invalid makes an ErrInvalid with its reason.
func invalid(reason string) error { return fmt.Errorf("%w: %s", ErrInvalid, reason) }

var (
	errMalformed = invalid("it is not a well-formed JWT")
	errTooLong   = invalid(fmt.Sprintf("it has more than %d bytes", maxToken))
	errAlgorithm = invalid("its algorithm is not one of the configured key")
	errCritical  = invalid("it has critical extensions, which are not known here")
	errKey       = invalid("its key is not known")
	errSignature = invalid("its signature is wrong")
	errExpired   = invalid("it has expired")
	errNotYet    = invalid("it is not valid yet")
	errNoExpiry  = invalid("it has no exp, and a token must expire")
	errIssuer    = invalid("its issuer is another one")
	errAudience  = invalid("it is meant for another audience")
	errNoAccount = invalid("it does not name an account")
)

// Verify returns what a token says if it is valid. Its errors are ErrInvalid and
// ErrUnavailable.
func (v *Verifier) Verify(ctx context.Context, token string) (*Claims, error) {
	if len(token) > maxToken {
		return nil, errTooLong
	}
	sum := sha256.Sum256([]byte(token))
	if known, ok := v.cache.GetIfPresent(sum); ok {
		now := v.now()
		if !now.Before(known.expires) {
			return nil, errExpired
		}
		if now.Before(known.forget) {
			return &known.claims, nil
		}
	}
	fresh, err := v.verify(ctx, token)
	if err != nil {
		return nil, err
	}
	v.cache.Set(sum, fresh)
	return &fresh.claims, nil
}

func (v *Verifier) verify(ctx context.Context, token string) (*verified, error) {
	now := v.now()
	leeway := time.Duration(*v.config.Leeway)
	parser := jwt.NewParser(
		jwt.WithStrictDecoding(),
		jwt.WithExpirationRequired(),
		jwt.WithLeeway(leeway),
		jwt.WithIssuer(v.config.Issuer),
		jwt.WithAudience(v.config.Audience...),
		jwt.WithTimeFunc(func() time.Time { return now }),
	)
	p := new(payload)
	_, err := parser.ParseWithClaims(token, p, func(t *jwt.Token) (any, error) { return v.keyOf(ctx, t) })
	if err != nil {
		return nil, reason(err)
	}
	claims := v.claims(p)
	if claims.Account == "" {
		return nil, errNoAccount
	}
	return &verified{claims: claims, expires: p.expires.Add(leeway), forget: now.Add(rememberedFor)}, nil
}

// keyOf finds the key for a token by its header, of which nothing is believed yet.
func (v *Verifier) keyOf(ctx context.Context, t *jwt.Token) (any, error) {
	encoded, _, _ := strings.Cut(t.Raw, ".")
	text, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return nil, errMalformed
	}
	header, err := strictObject(text)
	if err != nil {
		return nil, errMalformed
	}
	if _, ok := header["crit"]; ok {
		return nil, errCritical
	}
	id, isText := header["kid"].(string)
	if _, given := header["kid"]; given && !isText || len(id) > maxKeyID {
		return nil, errKey
	}
	k, err := v.keys.find(ctx, id, t.Method.Alg())
	if err != nil {
		return nil, err
	}
	return k.material, nil
}

func (v *Verifier) claims(p *payload) Claims {
	return Claims{
		Account: p.name(v.config.AccountClaim),
		Issuer:  p.issuer,
		Tier:    p.name(v.config.TierClaim),
		Roles:   p.words(v.config.RoleClaim),
	}
}

// reason turns an error of the JWT library into one of this package: its own text
// may quote the token.
func reason(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return ErrUnavailable
	}
	for _, own := range []error{errAlgorithm, errCritical, errKey, errMalformed} {
		if errors.Is(err, own) {
			return own
		}
	}
	for _, m := range []struct{ theirs, ours error }{
		{jwt.ErrTokenSignatureInvalid, errSignature},
		{jwt.ErrTokenExpired, errExpired},
		{jwt.ErrTokenNotValidYet, errNotYet},
		{jwt.ErrTokenInvalidIssuer, errIssuer},
		{jwt.ErrTokenInvalidAudience, errAudience},
		{jwt.ErrTokenUnverifiable, errAlgorithm}, // one that the library does not know
	} {
		if errors.Is(err, m.theirs) {
			return m.ours
		}
	}
	if errors.Is(err, jwt.ErrTokenRequiredClaimMissing) {
		return errMissingClaim(err)
	}
	return errMalformed
}

// errMissingClaim tells which of the required claims is missing.
func errMissingClaim(err error) error {
	switch text := err.Error(); {
	case strings.Contains(text, "exp claim"):
		return errNoExpiry
	case strings.Contains(text, "iss claim"):
		return errIssuer
	}
	return errAudience
}
