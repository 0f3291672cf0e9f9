package admin

import (
	"net/http"
	"net/url"
	"slices"
)

// defaulted are the parameters that have a default, which an empty one is not.
var defaulted = []string{"window", "limit"}

// checkQuery reports parameters that an operation would half read: of one that is
// written twice only the first counts, and an empty one would be its default.
func checkQuery(r *http.Request) *Problem {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return newProblem(http.StatusUnprocessableEntity, "invalid_request", "the query cannot be read; percent-encode special characters, and separate parameters by &")
	}
	for name, values := range query {
		switch {
		case len(values) > 1:
			return wrongField("query", name, "it is written more than once; write it once")
		case values[0] == "" && slices.Contains(defaulted, name):
			return wrongField("query", name, "it is empty; write a value, or leave it out for its default")
		}
	}
	return nil
}
