package ratelimit

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Identify says how clients are told apart. The first source that is present in
// a request decides; what it brings is not tried further.
type Identify struct {
	// Where to look, in order. Required.
	Sources []*Source `json:"sources,omitempty"`

	// What a request is whose source is missing or not valid: "anonymous" (the
	// tier anonymous, counted by address) or "reject" (the same, and then 401).
	// Default: anonymous.
	Unknown string `json:"unknown,omitempty"`
}

// Source is one place where a client may say who it is. Exactly one field is set.
type Source struct {
	// An API key, which the provider knows.
	APIKey *APIKeySource `json:"api_key,omitempty"`

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
		return errors.New("identify needs a source; write api_key header X-API-Key, or placeholder {http.request.tls.client.fingerprint}")
	}
	if err := validateUnknown(i.Unknown); err != nil {
		return err
	}
	for _, s := range i.Sources {
		if err := s.validate(); err != nil {
			return err
		}
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

var tokenName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func (s *Source) validate() error {
	if (s.APIKey == nil) == (s.Placeholder == "") {
		return errors.New("a source of identify is one of api_key and placeholder; write each as a source of its own")
	}
	if s.APIKey == nil {
		if !strings.Contains(s.Placeholder, "{") {
			return fmt.Errorf("placeholder %q has no placeholder in it; write one like {http.request.tls.client.fingerprint}", s.Placeholder)
		}
		return nil
	}
	switch s.APIKey.In {
	case "header", "cookie":
		if !tokenName.MatchString(s.APIKey.Name) {
			return fmt.Errorf("api_key %s %q is not a name; write one like api_key header X-API-Key", s.APIKey.In, s.APIKey.Name)
		}
	case "query":
		if s.APIKey.Name == "" {
			return errors.New("api_key query needs a name, like api_key query api_key")
		}
	default:
		return fmt.Errorf("api_key %q is not known; write api_key header X-API-Key, api_key query <name> or api_key cookie <name>", s.APIKey.In)
	}
	return nil
}

// errNoKeys says that API keys cannot be looked up.
var errNoKeys = errors.New("identify api_key needs a provider that knows keys; write in the global options: rate_limit { provider static { ... } }")

// identifier finds out who a client is.
type identifier struct {
	sources  []clientSource
	provider Provider
	reject   bool
}

// clientSource finds what a request says of its client: the client if that is
// valid, and whether the source is present at all.
type clientSource func(ctx context.Context, r *http.Request, repl *caddy.Replacer) (c policy.Client, valid, present bool)

func newIdentifier(how *Identify, provider Provider) (*identifier, error) {
	if err := how.Validate(); err != nil {
		return nil, err
	}
	id := &identifier{provider: provider, reject: how.Unknown == unknownReject}
	for _, s := range how.Sources {
		if s.APIKey == nil {
			id.sources = append(id.sources, placeholderSource(s.Placeholder))
			continue
		}
		if provider == nil {
			return nil, errNoKeys
		}
		id.sources = append(id.sources, id.apiKeySource(s.APIKey))
	}
	return id, nil
}

// identify returns the client, and whether it is one that its source vouches for.
// A client that is not is anonymous, and its Identity is empty: the caller counts
// it by address, never by what it sent.
func (id *identifier) identify(ctx context.Context, r *http.Request, repl *caddy.Replacer) (policy.Client, bool) {
	for _, source := range id.sources {
		c, valid, present := source(ctx, r, repl)
		if !present {
			continue
		}
		if valid {
			return c, true
		}
		break
	}
	return policy.Client{Tier: policy.Anonymous}, false
}

func placeholderSource(text string) clientSource {
	return func(_ context.Context, _ *http.Request, repl *caddy.Replacer) (policy.Client, bool, bool) {
		value := repl.ReplaceAll(text, "")
		if value == "" {
			return policy.Client{}, false, false
		}
		return policy.Client{Identity: policy.HashIdentity(value), Tier: policy.Anonymous}, true, true
	}
}

func (id *identifier) apiKeySource(s *APIKeySource) clientSource {
	values := apiKeyValues(s)
	return func(ctx context.Context, r *http.Request, _ *caddy.Replacer) (policy.Client, bool, bool) {
		presented := values(r)
		if len(presented) == 0 {
			return policy.Client{}, false, false
		}
		// several keys at once are ambiguous: whoever sends them is nobody
		if len(presented) > 1 || presented[0] == "" || len(presented[0]) > maxAPIKey {
			return policy.Client{}, false, true
		}
		key, ok := id.provider.APIKey(ctx, sha256.Sum256([]byte(presented[0])))
		if !ok {
			return policy.Client{}, false, true
		}
		return policy.Client{Identity: policy.KeyIdentity(key.ID), Tier: key.Tier, APIKeyID: key.ID}, true, true
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
	name = http.CanonicalHeaderKey(name)
	if name != "Authorization" {
		return func(r *http.Request) []string { return r.Header[name] }
	}
	return bearerValues
}

// bearerValues reads keys from the header Authorization; credentials of another
// scheme are somebody else's.
func bearerValues(r *http.Request) (values []string) {
	for _, v := range r.Header["Authorization"] {
		if scheme, key, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "Bearer") {
			values = append(values, strings.TrimSpace(key))
		}
	}
	return values
}
