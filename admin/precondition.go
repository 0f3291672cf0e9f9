package admin

import (
	"net/http"
	"slices"
	"strings"
)

// Versioned is the part of a request that names the version it is based on.
type Versioned struct {
	IfMatch string `header:"If-Match" doc:"The ETag of the version that the change is based on, or * for any."`
}

// check refuses a request without If-Match (428), and one whose If-Match does not
// name the current version (412).
func (v Versioned) check(what string, current int64) *Problem {
	if v.IfMatch == "" {
		p := newProblem(http.StatusPreconditionRequired, "precondition_required",
			"send the ETag of the version that the change is based on in the header If-Match, so that no change of somebody else is lost")
		p.header("ETag", etag(current))
		return p
	}
	return v.checkOptional(what, current)
}

// checkOptional refuses only an If-Match that does not name the current version.
func (v Versioned) checkOptional(what string, current int64) *Problem {
	if v.IfMatch == "" || v.any() {
		return nil
	}
	named := slices.ContainsFunc(strings.Split(v.IfMatch, ","), func(tag string) bool {
		return strings.TrimSpace(tag) == etag(current) // weak tags never match here
	})
	if !named {
		return conflict(what, current)
	}
	return nil
}

func (v Versioned) any() bool { return strings.TrimSpace(v.IfMatch) == "*" }
