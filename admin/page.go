package admin

import (
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Paged is the part of a request that asks for a part of a list.
type Paged struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"The most items of the answer."`
	Cursor string `query:"cursor" doc:"Where to go on: next_cursor of the answer before."`
}

// List is a part of a list.
type List[T any] struct {
	Items      []T    `json:"items" nullable:"false"`
	NextCursor string `json:"next_cursor,omitempty" doc:"Send it as cursor for what follows; absent at the end."`
}

// listed is the answer to a request for a list.
type listed[T any] struct {
	Link string `header:"Link" doc:"The next part, as rel=next."`
	Body List[T]
}

// page asks a store for one item more than is shown, which tells whether there
// are more. A cursor holds the name of its list, so that no other list takes it.
func (p Paged) page(list string) (policy.Page, *Problem) {
	page := policy.Page{Limit: p.Limit + 1}
	if p.Cursor == "" {
		return page, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	after, ok := strings.CutPrefix(string(text), list+":")
	if err != nil || !ok {
		return page, wrongField("query", "cursor", "this is not a cursor of this list; send next_cursor of an answer of it, or none to begin")
	}
	page.After = after
	return page, nil
}

// list makes the answer of the records of a page; filters are kept in its link.
func list[R, T any](p Paged, name string, records []R, id func(R) string, show func(R) T, filters url.Values) *listed[T] {
	answer := new(listed[T])
	if len(records) > p.Limit {
		records = records[:p.Limit]
		answer.Body.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(name + ":" + id(records[p.Limit-1])))
		query := url.Values{"cursor": {answer.Body.NextCursor}, "limit": {strconv.Itoa(p.Limit)}}
		for name, values := range filters {
			if values[0] != "" {
				query[name] = values
			}
		}
		answer.Link = "<?" + query.Encode() + `>; rel="next"`
	}
	answer.Body.Items = make([]T, len(records))
	for i, r := range records {
		answer.Body.Items[i] = show(r)
	}
	return answer
}

// segment is a name as one segment of a path.
func segment(name string) string {
	if name == "." || name == ".." { // would be taken for a step in the path
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}
