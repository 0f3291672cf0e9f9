package ratelimit

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/internal/jwtauth"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// Identify says how clients are told apart. The first source that is present in
// a request decides; what it brings is not tried further.
type Identify struct {
	// Where to look, in order. Required.
	Sources []*Source `json:"sources,omitempty"`

	// What a request is that has none of the sources, or an API key that is not
	// known: "anonymous" (the tier anonymous, counted by address) or "reject" (the
	// same, and then 401). A JWT that is not valid is always counted by address and
	// answered 401. Default: anonymous.
	Unknown string `json:"unknown,omitempty"`
}

// Source is one place where a client may say who it is. Exactly one field is set.
type Source struct {
	// An API key, which the provider knows.
	APIKey *APIKeySource `json:"api_key,omitempty"`

	// A JSON Web Token in the header Authorization, behind the word Bearer. Its
	// issuer and account are the client, its tier claim is the client's tier; a tier
	// that the provider does not have is anonymous. Beside an API key in the same
	// header, what has the two dots of a JWT is a token.
	JWT *jwtauth.Config `json:"jwt,omitempty"`

	// Text with placeholders that something trusted has set before, like
	// {http.request.tls.client.fingerprint}. It has no tier of its own, so it counts as anonymous,
	// by itself instead of by address.
	Placeholder string `json:"placeholder,omitempty"`
}

// APIKeySource is where an API key stands in a request.
type APIKeySource struct {
	// "header", "query" or "cookie".
	In string `json:"in,omitempty"`

	// The name of the header field, the query parameter or the cookie. In the
	// header Authorization the key stands behind the word Bearer.
	Name string `json:"name,omitempty"`
}

// Values of Identify.Unknown.
const (
	unknownAnonymous = "anonymous"
	unknownReject    = "reject"
)

// maxAPIKey is the length beyond which a value is no API key, and not hashed.
const maxAPIKey = 4096

// defaultIdentify is what tiers uses when nothing says how to identify clients.
var defaultIdentify = &Identify{Sources: []*Source{{APIKey: &APIKeySource{In: "header", Name: "X-API-Key"}}}}

// Validate reports the first mistake, in words that say what to write instead.
func (i *Identify) Validate() error {
	if len(i.Sources) == 0 {
		return errors.New("identify needs a source; write api_key header X-API-Key, jwt { ... } or placeholder {http.request.tls.client.fingerprint}")
	}
	if err := validateUnknown(i.Unknown); err != nil {
		return err
	}
	tokens := 0
	for _, s := range i.Sources {
		if err := s.validate(); err != nil {
			return err
		}
		if s.JWT != nil {
			tokens++
		}
	}
	if tokens > 1 {
		return errors.New("identify has jwt twice, but the first one decides on every token; write one, with jwks if there are several keys")
	}
	return nil
}

func validateUnknown(word string) error {
	switch word {
	case "", unknownAnonymous, unknownReject:
		return nil
	}
	return fmt.Errorf("unknown %q is not known; write unknown anonymous or unknown reject", word)
}

// needsProvider reports whether a source must be looked up.
func (i *Identify) needsProvider() bool {
	return slices.ContainsFunc(i.Sources, func(s *Source) bool { return s.APIKey != nil })
}

// hasJWT reports whether tokens stand in the header Authorization. Without identify
// there are none.
func (i *Identify) hasJWT() bool {
	return i != nil && slices.ContainsFunc(i.Sources, func(s *Source) bool { return s.JWT != nil })
}

// keysInAuthorization reports whether API keys stand there.
func (i *Identify) keysInAuthorization() bool {
	return slices.ContainsFunc(i.Sources, func(s *Source) bool { return s.APIKey != nil && s.APIKey.inAuthorization() })
}

func (s *APIKeySource) inAuthorization() bool {
	return s.In == "header" && http.CanonicalHeaderKey(s.Name) == "Authorization"
}

var tokenName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func (s *Source) validate() error {
	kinds := 0
	for _, set := range []bool{s.APIKey != nil, s.JWT != nil, s.Placeholder != ""} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return errors.New("a source of identify is one of api_key, jwt and placeholder; write each as a source of its own")
	case s.JWT != nil:
		return s.JWT.Validate()
	case s.APIKey != nil:
		return s.APIKey.validate()
	}
	_, err := newSourceTemplate(s.Placeholder)
	return err
}

// newSourceTemplate makes identities of a text with placeholders, as the key of a zone does.
func newSourceTemplate(text string) (keyTemplate, error) {
	if err := checkPlaceholders(text); err != nil {
		return keyTemplate{}, fmt.Errorf("placeholder: %w", err)
	}
	k, err := newKeyTemplate(text, missingAddress, policy.DefaultIPv4Prefix, policy.DefaultIPv6Prefix)
	switch {
	case err != nil:
		return k, err
	case k.shared:
		return k, fmt.Errorf("placeholder %q has no placeholder in it; write one like {http.request.tls.client.fingerprint}", text)
	}
	return k, nil
}

func (s *APIKeySource) validate() error {
	switch s.In {
	case "header", "cookie":
		if !tokenName.MatchString(s.Name) {
			return fmt.Errorf("api_key %s %q is not a name; write one like api_key header X-API-Key", s.In, s.Name)
		}
	case "query":
		if s.Name == "" {
			return errors.New("api_key query needs a name, like api_key query api_key")
		}
	default:
		return fmt.Errorf("api_key %q is not known; write api_key header X-API-Key, api_key query <name> or api_key cookie <name>", s.In)
	}
	return nil
}

// standing is what became of the question who a client is.
type standing int

const (
	standingUnknown     standing = iota // it said nothing, or named a key that is not known
	standingKnown                       // a source vouches for it
	standingInvalid                     // it presented a token that is not valid
	standingUnavailable                 // it presented a token that cannot be judged now
)

// finding is what a source says of a request.
type finding struct {
	client   policy.Client // if it is known
	standing standing
	why      error // of a token that is not valid; safe to show
}

// identifier finds out who a client is.
type identifier struct {
	sources  []clientSource
	provider Provider
	reject   bool
}

// clientSource finds what a request says of its client, and whether the source is
// present at all.
type clientSource func(ctx context.Context, r *http.Request, repl *caddy.Replacer) (f finding, present bool)

func newIdentifier(ctx caddy.Context, how *Identify, provider Provider) (*identifier, error) {
	if err := how.Validate(); err != nil {
		return nil, err
	}
	id := &identifier{provider: provider, reject: how.Unknown == unknownReject}
	for _, s := range how.Sources {
		source, err := id.source(ctx, how, s)
		if err != nil {
			return nil, err
		}
		id.sources = append(id.sources, source)
	}
	return id, nil
}

func (id *identifier) source(ctx caddy.Context, how *Identify, s *Source) (clientSource, error) {
	switch {
	case s.JWT != nil:
		return id.jwtSource(ctx, s.JWT, how.keysInAuthorization())
	case s.APIKey == nil:
		k, err := newSourceTemplate(s.Placeholder)
		warnForeign(ctx.Logger(), "placeholder", s.Placeholder)
		return placeholderSource(k), err
	}
	values := apiKeyValues(s.APIKey)
	if s.APIKey.inAuthorization() && how.hasJWT() {
		values = bearerKeys
	}
	return id.apiKeySource(values), nil
}

// identify returns what the first source that is present says. A client that is
// not known is anonymous, and its Identity is empty: the caller counts it by
// address, never by what it sent.
func (id *identifier) identify(ctx context.Context, r *http.Request, repl *caddy.Replacer) finding {
	for _, source := range id.sources {
		f, present := source(ctx, r, repl)
		if !present {
			continue
		}
		if f.standing != standingKnown {
			f.client = policy.Client{Tier: policy.Anonymous}
		}
		return f
	}
	return finding{client: policy.Client{Tier: policy.Anonymous}}
}

// known is a client that a source vouches for.
func known(c policy.Client) (finding, bool) {
	return finding{client: c, standing: standingKnown}, true
}

// placeholderSource is present if one of its placeholders has a value. Where another one is
// empty the address joins, as in the key of a zone, so that those who lack it are not one.
func placeholderSource(k keyTemplate) clientSource {
	return func(_ context.Context, r *http.Request, repl *caddy.Replacer) (finding, bool) {
		parts, filled := k.values(r, repl)
		if filled == 0 {
			return finding{}, false
		}
		if filled < len(parts) {
			parts = append(parts, addressOf(r, varsOf(r.Context())).identity(k.ipv4, k.ipv6))
		}
		return known(policy.Client{Identity: policy.HashIdentity(parts...), Tier: policy.Anonymous})
	}
}

// keyChecker is what a provider implements that can tell by its looks that a text
// is no API key, without looking it up.
type keyChecker interface {
	CheckAPIKey(presented string) bool
}

func (id *identifier) apiKeySource(values func(*http.Request) []string) clientSource {
	checker, _ := id.provider.(keyChecker)
	return func(ctx context.Context, r *http.Request, _ *caddy.Replacer) (finding, bool) {
		presented := values(r)
		if len(presented) == 0 {
			return finding{}, false
		}
		// several keys at once are ambiguous: whoever sends them is nobody
		if len(presented) > 1 || presented[0] == "" || len(presented[0]) > maxAPIKey {
			return finding{}, true
		}
		if checker != nil && !checker.CheckAPIKey(presented[0]) {
			return finding{}, true
		}
		key, ok := id.provider.APIKey(ctx, sha256.Sum256([]byte(presented[0])))
		if !ok {
			return finding{}, true
		}
		return known(policy.Client{Identity: policy.KeyIdentity(key.ID), Tier: key.Tier, APIKeyID: key.ID})
	}
}

// apiKeyValues returns the function that reads all values of a source.
func apiKeyValues(s *APIKeySource) func(*http.Request) []string {
	name := s.Name
	switch s.In {
	case "query":
		return func(r *http.Request) []string {
			if r.URL.RawQuery == "" {
				return nil
			}
			return r.URL.Query()[name]
		}
	case "cookie":
		return func(r *http.Request) (values []string) {
			for _, c := range r.CookiesNamed(name) {
				values = append(values, c.Value)
			}
			return values
		}
	}
	if s.inAuthorization() {
		return jwtauth.Bearer
	}
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) []string { return r.Header[name] }
}
