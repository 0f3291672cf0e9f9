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

	err error // a failure of Caddy's own, passed on as it is
}

// unavailableRetry is when a client may come back after a failure of the backend:
// the breaker looks for it again within that time.
const unavailableRetry = time.Second

func refuseOverLimit(e entry) *refusal {
	return &refusal{
		status:     http.StatusTooManyRequests,
		code:       "rate_limited",
		detail:     fmt.Sprintf("The limit %s of %s is used up.", e.name, e.rule.Limit),
		outcome:    outcomeBlocked,
		zone:       e.name,
		retryAfter: max(e.RetryAfter, 1),
	}
}

func refuseUnavailable(zone string) *refusal {
	return &refusal{
		status:     http.StatusServiceUnavailable,
		code:       "rate_limit_unavailable",
		detail:     "It cannot be decided at the moment whether this request is within its limits.",
		outcome:    outcomeUnavailable,
		zone:       zone,
		retryAfter: unavailableRetry,
	}
}

func refuseUnknownClient() *refusal {
	return &refusal{
		status:  http.StatusUnauthorized,
		code:    "invalid_token",
		detail:  "An API key or token that is known here is required.",
		outcome: outcomeInvalid,
	}
}

// refuseToken refuses a token that is not valid, for the reason given.
func refuseToken(why error) *refusal {
	r := refuseUnknownClient()
	r.detail = sentence(why)
	return r
}

// refuseUnjudged refuses a token that cannot be verified at the moment: to let it
// pass would take its claims for true.
func refuseUnjudged(why error) *refusal {
	r := refuseUnavailable("")
	r.detail = sentence(why)
	return r
}

// sentence writes an error as a sentence.
func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

func refuseMissingKey(zone string) *refusal {
	return &refusal{
		status:  http.StatusBadRequest,
		code:    "missing_key",
		detail:  fmt.Sprintf("The request lacks what the limit %s is counted by.", zone),
		outcome: outcomeInvalid,
		zone:    zone,
	}
}

func refuseCost(zone string, err error) *refusal {
	return &refusal{
		status:  http.StatusBadRequest,
		code:    "invalid_cost",
		detail:  fmt.Sprintf("The limit %s cannot count this request: %v.", zone, err),
		outcome: outcomeInvalid,
		zone:    zone,
	}
}

// problem is the body of a refusal (RFC 9457).
type problem struct {
	Title         string `json:"title"`
	Status        int    `json:"status"`
	Detail        string `json:"detail"`
	Error         string `json:"error"`
	Policy        string `json:"policy,omitempty"`
	RetryAfter    int64  `json:"retry_after,omitempty"`
	CorrelationID string `json:"correlation_id"`
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
		w.Header()["Retry-After"] = []string{strconv.FormatInt(rep.retryAfter, 10)}
	}
	rep.writeHeaders(w.Header(), h.families)
	if why.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
	}
	id := correlationID(r, e)
	w.Header().Set("X-Correlation-Id", id)
	if why.outcome == outcomeBlocked {
		h.announce(e, why)
	}

	failure := caddyhttp.Error(why.status, errors.New(why.detail))
	if handlesError(r, failure) {
		return failure
	}
	return writeProblem(w, &problem{
		Title:         http.StatusText(why.status),
		Status:        why.status,
		Detail:        why.detail,
		Error:         why.code,
		Policy:        why.zone,
		RetryAfter:    rep.retryAfter,
		CorrelationID: id,
	})
}

// retryAfterSeconds rounds up, so that who waits as told is let in, and spreads
// clients over the time after that if the operator wants it.
func (h *Handler) retryAfterSeconds(d time.Duration) int64 {
	if h.Jitter > 0 {
		d += time.Duration(rand.Float64() * h.Jitter * float64(d))
	}
	return ceilSeconds(d)
}

func writeProblem(w http.ResponseWriter, p *problem) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	w.Header()["Content-Type"] = []string{"application/problem+json"}
	w.WriteHeader(p.Status)
	_, err = w.Write(append(body, '\n'))
	return err
}

// saneID is what a client may choose as its correlation id: it goes into logs.
var saneID = regexp.MustCompile(`^[A-Za-z0-9._~:/+=@-]{1,128}$`)

// correlationID names the request in the answer and in logs: by the client's
// X-Correlation-Id if it is sane, else by Caddy's id of the request, which the
// access log then has too.
func correlationID(r *http.Request, e *evaluation) string {
	if id := r.Header.Get("X-Correlation-Id"); saneID.MatchString(id) {
		return id
	}
	id, _ := e.repl.GetString("http.request.uuid")
	return id
}

// handlesError reports whether the site has a handle_errors for this error.
// Error routes belong to the whole server, so their matchers tell which site and
// which errors they are for.
func handlesError(r *http.Request, failure error) bool {
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil || server.Errors == nil || len(server.Errors.Routes) == 0 {
		return false
	}
	return anyRouteHandles(server.Errors.Routes, server.Errors.WithError(r, failure))
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
