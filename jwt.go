package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/internal/jwtauth"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// jwtSource identifies clients by their bearer token. If API keys may stand in the
// same header, only what is shaped like a token is one.
func (id *identifier) jwtSource(ctx caddy.Context, config *jwtauth.Config, beside bool) (clientSource, error) {
	verifier, err := jwtauth.New(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("identify: %w", err)
	}
	tokens := jwtauth.Bearer
	if beside {
		tokens = bearerTokens
	}
	return func(_ context.Context, r *http.Request, _ *caddy.Replacer) (finding, bool) {
		presented := tokens(r)
		if len(presented) == 0 {
			return finding{}, false
		}
		claims, err := verifier.VerifyOne(r, presented)
		switch {
		case errors.Is(err, jwtauth.ErrUnavailable):
			return finding{standing: standingUnavailable, why: err}, true
		case err != nil:
			return finding{standing: standingInvalid, why: err}, true
		}
		return known(id.tokenClient(claims))
	}, nil
}

// tokenClient is the client that a token names: by issuer and account, since
// accounts of two issuers are two clients.
func (id *identifier) tokenClient(claims *jwtauth.Claims) policy.Client {
	c := policy.Client{Identity: policy.HashIdentity("jwt", claims.Issuer, claims.Account), Tier: policy.Anonymous}
	if id.provider != nil && id.provider.Snapshot().HasTier(claims.Tier) {
		c.Tier = claims.Tier
	}
	return c
}

// bearerTokens and bearerKeys part what stands in the header Authorization into
// JWTs and API keys, by the two dots.
func bearerTokens(r *http.Request) []string {
	return slices.DeleteFunc(jwtauth.Bearer(r), func(s string) bool { return !jwtauth.Shaped(s) })
}

func bearerKeys(r *http.Request) []string {
	return slices.DeleteFunc(jwtauth.Bearer(r), jwtauth.Shaped)
}
