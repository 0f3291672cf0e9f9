package jwtauth

import (
	"net/http"
	"strings"
)

// Bearer returns the tokens that a request has in its header Authorization, as
// RFC 6750 has them. Credentials of another scheme are somebody else's.
func Bearer(r *http.Request) (tokens []string) {
	for _, v := range r.Header["Authorization"] {
		if scheme, token, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "Bearer") {
			tokens = append(tokens, strings.TrimSpace(token))
		}
	}
	return tokens
}

// Shaped reports whether a text has the shape of a JWT, valid or not: three parts
// with dots between them.
func Shaped(text string) bool { return strings.Count(text, ".") == 2 }

// VerifyOne verifies the one token of a request. Several at once are ambiguous, so
// that whoever sends them is nobody.
func (v *Verifier) VerifyOne(r *http.Request, tokens []string) (*Claims, error) {
	switch len(tokens) {
	case 0:
		return nil, ErrMissing
	case 1:
		return v.Verify(r.Context(), tokens[0])
	}
	return nil, invalid("there are several")
}

// Authenticate returns who sends a request and the roles that its bearer token
// grants. Its errors are ErrMissing, ErrInvalid and ErrUnavailable.
func (v *Verifier) Authenticate(r *http.Request) (subject string, roles []string, err error) {
	claims, err := v.VerifyOne(r, Bearer(r))
	if err != nil {
		return "", nil, err
	}
	return claims.Account, claims.Roles, nil
}
