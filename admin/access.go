package admin

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"go.uber.org/zap"
)

// Authenticator finds out which admin sends a request.
type Authenticator interface {
	// Authenticate returns the admin's name and roles. Its error is ErrNoToken,
	// ErrAuthUnavailable, or one whose text may be shown: what is wrong with the
	// credentials.
	Authenticate(r *http.Request) (subject string, roles []string, err error)
}

// Errors of an Authenticator; ask with errors.Is.
var (
	ErrNoToken         = errors.New("the request has no bearer token")
	ErrAuthUnavailable = errors.New("credentials cannot be checked now")
)

// access says who may call an operation.
type access int

const (
	public  access = iota // everybody, without credentials
	reads                 // viewers and admins
	resets                // admins
	changes               // admins, where the provider stores
)

// The roles, in the two spellings that are common.
var (
	adminRoles  = []string{"ADMIN", "ROLE_ADMIN"}
	viewerRoles = []string{"VIEWER", "ROLE_VIEWER"}
)

// KnownRole reports whether a role gives access to anything.
func KnownRole(role string) bool {
	return slices.Contains(adminRoles, role) || slices.Contains(viewerRoles, role)
}

// allows reports whether one of the roles gives the access.
func (a access) allows(roles []string) bool {
	has := func(wanted []string) bool {
		return slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(wanted, r) })
	}
	return has(adminRoles) || a == reads && has(viewerRoles)
}

// anyRole is what is wrong when access is denied.
func (a access) denial() string {
	if a == reads {
		return "the token's roles allow nothing here; it needs the role ADMIN, or VIEWER to read"
	}
	return "the token's roles do not allow changes; it needs the role ADMIN"
}

type actorKey struct{}

// actorOf is the name of the admin who sent the request.
func actorOf(ctx context.Context) string {
	actor, _ := ctx.Value(actorKey{}).(string)
	return actor
}

// admit finds out who asks, and returns the request with the name in its context.
func (a *API) admit(r *http.Request, need access) (*http.Request, *Problem) {
	if need == public {
		return r, nil
	}
	subject, roles, err := a.auth.Authenticate(r)
	if err != nil {
		return nil, a.notAuthenticated(err)
	}
	if !need.allows(roles) {
		p := newProblem(http.StatusForbidden, "forbidden", need.denial())
		p.header("WWW-Authenticate", `Bearer realm="rate_limit_admin", error="insufficient_scope"`)
		return nil, p
	}
	if need == changes && a.store == nil {
		return nil, newProblem(http.StatusConflict, "read_only", a.readOnlyReason())
	}
	if subject == "" {
		subject = "(a token without a subject)"
	}
	return r.WithContext(context.WithValue(r.Context(), actorKey{}, subject)), nil
}

func (a *API) notAuthenticated(err error) *Problem {
	const realm = `Bearer realm="rate_limit_admin"`
	switch {
	case errors.Is(err, ErrAuthUnavailable):
		a.log.Error("tokens cannot be checked", zap.Error(err))
		return unavailable("tokens cannot be checked now; try again later")
	case errors.Is(err, ErrNoToken):
		p := newProblem(http.StatusUnauthorized, "missing_token", "send a token in the header Authorization, as Bearer <token>")
		p.header("WWW-Authenticate", realm)
		return p
	}
	p := newProblem(http.StatusUnauthorized, "invalid_token", err.Error())
	p.header("WWW-Authenticate", realm+`, error="invalid_token"`)
	return p
}
