package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Problem is every answer that is not what was asked for, as RFC 9457 has it,
// with the members error and errors.
type Problem struct {
	Title  string `json:"title" doc:"The status in words."`
	Status int    `json:"status" doc:"The HTTP status."`
	Detail string `json:"detail" doc:"What is wrong, and what to do instead."`

	Code string `json:"error" doc:"What is wrong, for programs: invalid_field, not_found, version_conflict, ..."`

	Fields []FieldProblem `json:"errors,omitempty" nullable:"false" doc:"The fields that are wrong."`

	headers http.Header
}

// FieldProblem is what is wrong with one field of a request.
type FieldProblem struct {
	Field    string `json:"field" doc:"The field's name."`
	Location string `json:"location" doc:"Where it stands: body.limit, query.cursor, header.If-Match."`
	Detail   string `json:"detail" doc:"What is wrong with it, and what is allowed."`
}

func newProblem(status int, code, detail string) *Problem {
	return &Problem{Title: http.StatusText(status), Status: status, Detail: detail, Code: code}
}

// wrongField is the problem with one field. Place is body, query or header.
func wrongField(place, field, detail string) *Problem {
	p := newProblem(http.StatusUnprocessableEntity, "invalid_field", field+": "+detail)
	p.Fields = []FieldProblem{{Field: field, Location: place + "." + field, Detail: detail}}
	return p
}

// unavailable is a failure that is not the client's and may pass.
func unavailable(detail string) *Problem {
	p := newProblem(http.StatusServiceUnavailable, "unavailable", detail)
	p.header("Retry-After", "5")
	return p
}

// header adds a header to the answer.
func (p *Problem) header(name, value string) {
	if p.headers == nil {
		p.headers = make(http.Header)
	}
	p.headers.Set(name, value)
}

// Error is the detail.
func (p *Problem) Error() string { return p.Detail }

// GetStatus is the HTTP status, for huma.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders are the headers of the answer, for huma.
func (p *Problem) GetHeaders() http.Header { return p.headers }

// ContentType is the type of a problem, for huma.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// write answers a request that no operation has taken.
func (p *Problem) write(w http.ResponseWriter) {
	for name, values := range p.headers {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", p.ContentType(""))
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // who is gone needs no answer
}

// asProblem turns the errors of the schema's checks into problems.
func asProblem(_ huma.Context, _ string, v any) (any, error) {
	model, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	code := "invalid_field"
	if len(model.Errors) == 0 {
		code = "invalid_request"
	}
	p := newProblem(model.Status, code, model.Detail)
	var details []string
	for _, e := range model.Errors {
		f := fieldProblem(e)
		p.Fields = append(p.Fields, f)
		details = append(details, f.Field+": "+f.Detail)
	}
	if len(details) > 0 {
		p.Detail = strings.Join(details, "; ")
	}
	return p, nil
}

var missingProperty = regexp.MustCompile(`^expected required property (\w+) to be present$`)

// fieldProblem puts what the schema's check says into the API's words.
func fieldProblem(e *huma.ErrorDetail) FieldProblem {
	location, detail := e.Location, e.Message
	if location == "" {
		location = "body"
	}
	missing := missingProperty.FindStringSubmatch(detail)
	switch {
	case missing != nil:
		location, detail = location+"."+missing[1], "it is missing, and required; write it"
	case detail == "unexpected property":
		detail = "there is no such field here; leave it out"
	case detail == "unknown query parameter":
		detail = "there is no such parameter here; leave it out"
	}
	return FieldProblem{Field: fieldOf(location), Location: location, Detail: detail}
}

// failed turns what a store or backend answers into a problem. What the client
// cannot mend is logged.
func (a *API) failed(what string, err error) *Problem {
	var p *Problem
	var field *policy.FieldError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &field):
		return wrongField("body", field.Field, field.Detail)
	case errors.Is(err, policy.ErrNotFound):
		return newProblem(http.StatusNotFound, "not_found", what+" is not known; list what there is, without its name at the end of the path")
	case errors.Is(err, policy.ErrConflict):
		return conflict(what, 0)
	case errors.Is(err, policy.ErrExists):
		return newProblem(http.StatusConflict, "exists", err.Error())
	case errors.Is(err, policy.ErrInUse):
		return newProblem(http.StatusConflict, "in_use", err.Error())
	case errors.Is(err, context.Canceled): // the client has gone, and nobody is to be alarmed
	default:
		a.log.Error("the admin API could not do what it was asked", zap.String("what", what), zap.Error(err))
	}
	return unavailable("the provider cannot be asked now, and nothing was changed as far as is known; look before you try again")
}

// conflict says that a record has another version than the client believes.
func conflict(what string, current int64) *Problem {
	p := newProblem(http.StatusPreconditionFailed, "version_conflict",
		what+" was changed meanwhile; get it again, decide again, and send its new ETag in If-Match")
	if current > 0 {
		p.header("ETag", etag(current))
	}
	return p
}

// etag is a record's version as an entity tag.
func etag(version int64) string { return strconv.Quote(strconv.FormatInt(version, 10)) }

// Interface guards
var (
	_ huma.StatusError       = (*Problem)(nil)
	_ huma.HeadersError      = (*Problem)(nil)
	_ huma.ContentTypeFilter = (*Problem)(nil)
	_ huma.Transformer       = asProblem
)
