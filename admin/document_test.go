package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// document is the OpenAPI document as it is served, read without huma: what the
// tests hold every answer against.
type document struct {
	Servers    []struct{ URL string }
	Paths      map[string]map[string]*operation
	Components struct{ Schemas map[string]*schema }
}

type operation struct {
	OperationID string
	Security    []map[string][]string
	RequestBody *struct {
		Content map[string]struct{ Schema *schema }
	}
	Responses map[string]struct {
		Content map[string]struct{ Schema *schema }
	}
}

type schema struct {
	Ref                  string `json:"$ref"`
	Type                 any
	Format               string
	Properties           map[string]*schema
	Required             []string
	Items                *schema
	Enum                 []any
	AdditionalProperties any
}

// seen collects which operations were answered, and how.
type seen struct {
	mu       sync.Mutex
	statuses map[string][]int
}

func (s *seen) add(operation string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.statuses == nil {
		s.statuses = make(map[string][]int)
	}
	if !slices.Contains(s.statuses[operation], status) {
		s.statuses[operation] = append(s.statuses[operation], status)
	}
}

func readDocument(t *testing.T, text string) *document {
	t.Helper()
	d := new(document)
	if err := json.Unmarshal([]byte(text), d); err != nil {
		t.Fatalf("the document is not JSON: %v", err)
	}
	if len(d.Paths) < 10 || len(d.Components.Schemas) < 10 {
		t.Fatalf("the document is nearly empty: %s", text)
	}
	return d
}

var parameter = regexp.MustCompile(`\\\{[^}]*\\\}`)

// find returns the operation that takes a request; nil if there is none.
func (d *document) find(r *http.Request) *operation {
	if r.Method != strings.ToUpper(r.Method) {
		return nil
	}
	for path, item := range d.Paths {
		pattern := "^" + parameter.ReplaceAllString(regexp.QuoteMeta(path), "[^/]+") + "$"
		if regexp.MustCompile(pattern).MatchString(r.URL.EscapedPath()) {
			method := strings.ToLower(r.Method)
			if method == "head" {
				method = "get"
			}
			return item[method]
		}
	}
	return nil
}

// check reports an answer that the document does not describe.
func (d *document) check(t *testing.T, seen *seen, r *http.Request, a *answer) {
	t.Helper()
	op := d.find(r)
	if op == nil {
		if a.status != 404 && a.status != 405 && a.status != 204 && r.URL.Path != "/openapi.json" {
			t.Errorf("%s %s is not in the document and answers %d", r.Method, r.URL, a.status)
		}
		return
	}
	seen.add(op.OperationID, a.status)
	response, ok := op.Responses[strconv.Itoa(a.status)]
	if !ok {
		t.Errorf("%s answers %d, which the document does not have: %s", op.OperationID, a.status, a.body)
		return
	}
	if r.Method == "HEAD" {
		return
	}
	if a.body == "" {
		if len(response.Content) > 0 {
			t.Errorf("%s %d has no body", op.OperationID, a.status)
		}
		return
	}
	content, ok := response.Content[a.header.Get("Content-Type")]
	if !ok {
		t.Errorf("%s %d is of type %q, which the document does not have", op.OperationID, a.status, a.header.Get("Content-Type"))
		return
	}
	var value any
	if err := json.Unmarshal([]byte(a.body), &value); err != nil {
		t.Errorf("%s %d: %v", op.OperationID, a.status, err)
	}
	for _, mistake := range d.validate(content.Schema, value, "body") {
		t.Errorf("%s %d: %s: %s", op.OperationID, a.status, mistake, a.body)
	}
}

// validate says what of a value is not as its schema says.
func (d *document) validate(s *schema, value any, at string) (mistakes []string) {
	if s.Ref != "" {
		name := strings.TrimPrefix(s.Ref, "#/components/schemas/")
		if d.Components.Schemas[name] == nil {
			return []string{at + ": there is no schema " + name}
		}
		return d.validate(d.Components.Schemas[name], value, at)
	}
	if !slices.Contains(s.types(), typeOf(value)) {
		return []string{fmt.Sprintf("%s is of type %s, not %s", at, typeOf(value), s.types())}
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, value) {
		mistakes = append(mistakes, fmt.Sprintf("%s is %v, not one of %v", at, value, s.Enum))
	}
	switch v := value.(type) {
	case string:
		if _, err := time.Parse(time.RFC3339Nano, v); s.Format == "date-time" && err != nil {
			mistakes = append(mistakes, at+" is no time")
		}
	case []any:
		for i, item := range v {
			mistakes = append(mistakes, d.validate(s.Items, item, fmt.Sprintf("%s[%d]", at, i))...)
		}
	case map[string]any:
		mistakes = append(mistakes, d.validateObject(s, v, at)...)
	}
	return mistakes
}

func (d *document) validateObject(s *schema, v map[string]any, at string) (mistakes []string) {
	for _, name := range s.Required {
		if _, ok := v[name]; !ok {
			mistakes = append(mistakes, at+" lacks "+name)
		}
	}
	for name, value := range v {
		if property := s.Properties[name]; property != nil {
			mistakes = append(mistakes, d.validate(property, value, at+"."+name)...)
		} else if s.AdditionalProperties != true {
			mistakes = append(mistakes, at+" has "+name)
		}
	}
	return mistakes
}

func (s *schema) types() (types []string) {
	switch t := s.Type.(type) {
	case string:
		types = []string{t}
	case []any:
		for _, one := range t {
			types = append(types, one.(string))
		}
	}
	if slices.Contains(types, "integer") {
		types = append(types, "number")
	}
	return types
}

func typeOf(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case float64:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}

// The check itself can fail: each of these is not what its schema says.
func TestAnAnswerThatTheDocumentDoesNotDescribeIsFound(t *testing.T) {
	d := new(document)
	d.Components.Schemas = map[string]*schema{"Thing": {
		Type: "object", Required: []string{"id"}, AdditionalProperties: false,
		Properties: map[string]*schema{
			"id":    {Type: "string"},
			"at":    {Type: []any{"string", "null"}, Format: "date-time"},
			"parts": {Type: "array", Items: &schema{Type: "integer"}},
			"kind":  {Type: "string", Enum: []any{"a", "b"}},
		},
	}}
	tests := map[string]string{
		`{"id":"1","at":null,"parts":[1],"kind":"a"}`: "",
		`{}`:                         "lacks id",
		`{"id":1}`:                   "of type number",
		`{"id":"1","other":2}`:       "has other",
		`{"id":"1","at":"now"}`:      "no time",
		`{"id":"1","parts":["one"]}`: "parts[0] is of type string",
		`{"id":"1","kind":"c"}`:      "not one of",
		`[]`:                         "of type array",
	}
	for text, want := range tests {
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		mistakes := strings.Join(d.validate(&schema{Ref: "#/components/schemas/Thing"}, value, "body"), "; ")
		if (want == "") != (mistakes == "") || !strings.Contains(mistakes, want) {
			t.Errorf("%s: got %q, want %q", text, mistakes, want)
		}
	}
}

// What the design promises, and no more; who may ask is in the document too.
func TestTheDocumentHasEveryOperationWithItsAccess(t *testing.T) {
	t.Parallel()
	s := setup(t)
	want := []string{
		"delete /api-keys/{id}", "delete /api-keys/{id}/usage", "delete /policies/{id}", "delete /tiers/{name}",
		"get /api-keys", "get /api-keys/{id}", "get /api-keys/{id}/usage", "get /audit", "get /explain", "get /healthz",
		"get /policies", "get /policies/{id}", "get /tiers", "get /tiers/{name}", "get /top",
		"patch /api-keys/{id}", "patch /policies/{id}", "patch /tiers/{name}",
		"post /api-keys", "post /api-keys/{id}/revoke", "post /api-keys/{id}/rotate", "post /policies", "post /tiers",
	}
	var got []string
	for path, item := range s.document.Paths {
		for method, op := range item {
			got = append(got, method+" "+path)
			status := 401
			if len(op.Security) == 0 {
				status = 200
			}
			concrete := strings.NewReplacer("{id}", "x", "{name}", "x").Replace(path)
			s.as("").do(strings.ToUpper(method), concrete, "").want(t, status)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	for _, name := range []string{"ErrorModel", "ErrorDetail"} {
		if s.document.Components.Schemas[name] != nil {
			t.Errorf("the document has the schema %s, which nothing answers", name)
		}
	}
}
