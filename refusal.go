package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// refusal is why a request does not pass.
type refusal struct {
	status int
	code   string // of the problem: rate_limited, invalid_token, ...
	detail string

	outcome    string
	zone       string        // the zone or policy that refused; empty if none did
	retryAfter time.Duration // zero if coming back will not help

	opening []byte // the problem body, up to what each request has for itself

	err error // a failure of Caddy's own, passed on as it is
}

// worded writes the opening of the refusal's problem body.
func (why *refusal) worded() *refusal {
	body, err := json.Marshal(problem{
		Title:  http.StatusText(why.status),
		Status: why.status,
		Detail: why.detail,
		Error:  why.code,
		Policy: why.zone,
	})
	if err != nil { // not of text and numbers
		panic(err)
	}
	why.opening = body[:len(body)-1]
	return why
}

// unavailableRetry is when a client may come back after a failure of the backend:
// the breaker looks for it again within that time.
const unavailableRetry = time.Second

func refuseUnavailable(zone string) *refusal {
	return (&refusal{
		status:     http.StatusServiceUnavailable,
		code:       "rate_limit_unavailable",
		detail:     "It cannot be decided at the moment whether this request is within its limits.",
		outcome:    outcomeUnavailable,
		zone:       zone,
		retryAfter: unavailableRetry,
	}).worded()
}

func refuseUnknownClient() *refusal {
	return (&refusal{
		status:  http.StatusUnauthorized,
		code:    "invalid_token",
		detail:  "An API key or token that is known here is required.",
		outcome: outcomeInvalid,
	}).worded()
}

// refuseToken refuses a token that is not valid, for the reason given.
func refuseToken(why error) *refusal {
	r := refuseUnknownClient()
	r.detail = sentence(why)
	return r.worded()
}

// refuseUnjudged refuses a token that cannot be verified at the moment: to let it
// pass would take its claims for true.
func refuseUnjudged(why error) *refusal {
	r := refuseUnavailable("")
	r.detail = sentence(why)
	return r.worded()
}

// sentence writes an error as a sentence.
func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

func refuseMissingKey(zone string) *refusal {
	return (&refusal{
		status:  http.StatusBadRequest,
		code:    "missing_key",
		detail:  fmt.Sprintf("The request lacks what the limit %s is counted by.", zone),
		outcome: outcomeInvalid,
		zone:    zone,
	}).worded()
}

func refuseCost(zone string, err error) *refusal {
	return (&refusal{
		status:  http.StatusBadRequest,
		code:    "invalid_cost",
		detail:  fmt.Sprintf("The limit %s cannot count this request: %v.", zone, err),
		outcome: outcomeInvalid,
		zone:    zone,
	}).worded()
}

// problem is the body of a refusal (RFC 9457), without what each request has for
// itself.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Error  string `json:"error"`
	Policy string `json:"policy,omitempty"`
}

// appendProblem writes the body of a refusal: its opening, the seconds until the
// request would pass if that helps, and the request's sane correlation id.
func (why *refusal) appendProblem(b []byte, retryAfter int64, id string) []byte {
	b = append(b, why.opening...)
	if retryAfter > 0 {
		b = append(b, `,"retry_after":`...)
		b = strconv.AppendInt(b, retryAfter, 10)
	}
	b = append(b, `,"correlation_id":"`...)
	b = append(b, id...)
	return append(b, "\"}\n"...)
}

// refuse answers a request that does not pass: by the site's handle_errors if it
// has one for this, else with a problem body.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, e *evaluation, why *refusal) error {
	if why.err != nil {
		return why.err
	}
	rep := e.report
	rep.outcome = why.outcome
	if why.retryAfter > 0 {
		rep.retryAfter = h.retryAfterSeconds(why.retryAfter)
		rep.set(w.Header(), "Retry-After", strconv.FormatInt(rep.retryAfter, 10))
	}
	rep.writeHeaders(w.Header(), h.families)
	if why.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
	}
	id := correlationID(r, e)
	rep.set(w.Header(), "X-Correlation-Id", id)
	if why.outcome == outcomeBlocked {
		h.announce(e, why)
	}

	if failure := why.handled(r); failure != nil {
		return failure
	}
	rep.set(w.Header(), "Content-Type", "application/problem+json")
	w.WriteHeader(why.status)
	e.body = why.appendProblem(e.body[:0], rep.retryAfter, id)
	_, err := w.Write(e.body)
	return err
}

// retryAfterSeconds rounds up, so that who waits as told is let in, and spreads
// clients over the time after that if the operator wants it.
func (h *Handler) retryAfterSeconds(d time.Duration) int64 {
	if h.Jitter > 0 {
		d += time.Duration(rand.Float64() * h.Jitter * float64(d))
	}
	return ceilSeconds(d)
}

// saneID is what a client may choose as its correlation id: it goes into logs and,
// as it is, into JSON.
var saneID = regexp.MustCompile(`^[A-Za-z0-9._~:/+=@-]{1,128}$`)

// correlationID names the request in the answer and in logs: by the client's
// X-Correlation-Id if it is sane, else by Caddy's id of the request, which the
// access log then has too.
func correlationID(r *http.Request, e *evaluation) string {
	if id := r.Header.Get("X-Correlation-Id"); id != "" && saneID.MatchString(id) {
		return id
	}
	id, _ := e.repl.GetString("http.request.uuid")
	return id
}

// handled returns the refusal as an error if the site has a handle_errors for it.
// Error routes belong to the whole server, so their matchers tell which site and
// which errors they are for.
func (why *refusal) handled(r *http.Request) error {
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil || server.Errors == nil || len(server.Errors.Routes) == 0 {
		return nil
	}
	failure := caddyhttp.Error(why.status, errors.New(why.detail))
	if !anyRouteHandles(server.Errors.Routes, server.Errors.WithError(r, failure)) {
		return nil
	}
	return failure
}

func anyRouteHandles(routes caddyhttp.RouteList, r *http.Request) bool {
	for _, route := range routes {
		matched, err := route.MatcherSets.AnyMatchWithError(r)
		if err != nil || !matched {
			continue
		}
		for _, handler := range route.Handlers {
			subroute, ok := handler.(*caddyhttp.Subroute)
			if !ok || anyRouteHandles(subroute.Routes, r) {
				return true
			}
		}
	}
	return false
}
