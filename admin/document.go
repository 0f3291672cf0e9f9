package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
)

const schemas = "#/components/schemas/"

// description is the head of the OpenAPI document. It has no pages of its own
// except the document, since huma's load from foreign servers.
func description() huma.Config {
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title:       "Tollgate admin API",
				Version:     "1",
				Description: "Manages tiers, policies and API keys of the rate limiter. Every change takes effect with the next request, on every instance.",
			},
			// where the document itself stands, whatever the API is mounted under
			Servers:    []*huma.Server{{URL: "."}},
			Components: &huma.Components{Schemas: huma.NewMapRegistry(schemas, huma.DefaultSchemaNamer), SecuritySchemes: bearer},
		},
		Formats:                      map[string]huma.Format{"application/json": huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{asProblem},
	}
}

var bearer = map[string]*huma.SecurityScheme{
	"token": {Type: "http", Scheme: "bearer", BearerFormat: "JWT", Description: "A token with the role ADMIN, or VIEWER to read."},
}

// operation is what the document and the checks before a handler know of it.
type operation struct {
	id      string
	method  string
	path    string
	summary string
	access  access
	status  int   // of success; 0 is 200
	errors  []int // besides those that its access brings
}

// register adds an operation to the API and to its document.
func register[I, O any](a *API, o operation, handle func(context.Context, *I) (*O, error)) {
	a.access[o.method+" "+o.path] = o.access
	op := huma.Operation{
		// readBody has read it already. The library's deadline would stay on the
		// connection and end a request that waits longer than that for its turn.
		BodyReadTimeout: -1,

		OperationID:   o.id,
		Method:        o.method,
		Path:          o.path,
		Summary:       o.summary,
		DefaultStatus: o.status,
		MaxBodyBytes:  MaxBody + 1, // readBody has refused longer ones
		Responses:     a.problems(o.statuses()...),
	}
	if o.access != public {
		op.Security = []map[string][]string{{"token": {}}}
	}
	huma.Register(a.huma, op, handle)
}

// statuses are those of the problems that the operation can answer with.
func (o operation) statuses() []int {
	all := append([]int{http.StatusServiceUnavailable, http.StatusRequestEntityTooLarge, http.StatusBadRequest}, o.errors...)
	if o.access != public {
		all = append(all, http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity)
	}
	if o.access == changes {
		all = append(all, http.StatusConflict)
	}
	if o.method == http.MethodPost || o.method == http.MethodPatch {
		all = append(all, http.StatusUnsupportedMediaType)
	}
	return all
}

func (a *API) problems(statuses ...int) map[string]*huma.Response {
	schema := a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")
	responses := make(map[string]*huma.Response)
	for _, status := range statuses {
		responses[strconv.Itoa(status)] = &huma.Response{
			Description: http.StatusText(status),
			Content:     map[string]*huma.MediaType{"application/problem+json": {Schema: schema}},
		}
	}
	return responses
}

// registerDocument serves the document. It comes last, when all is in it.
func (a *API) registerDocument() {
	components := a.huma.OpenAPI().Components.Schemas.Map()
	delete(components, "ErrorModel") // huma's, which asProblem replaces
	delete(components, "ErrorDetail")
	document, err := json.Marshal(a.huma.OpenAPI())
	if err != nil {
		panic("the OpenAPI document cannot be written: " + err.Error()) // the same for every API
	}
	a.openapi = document
	const pattern = "GET /openapi.json"
	a.access[pattern] = public
	a.mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(a.openapi) // who is gone needs no answer
	})
}
