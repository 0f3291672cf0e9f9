package integration_test

import (
	"encoding/hex"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// traces is a server that spans are sent to, over OTLP.
type traces struct {
	*httptest.Server

	mu    sync.Mutex
	spans []*tracepb.Span
}

func newTraces(t *testing.T) *traces {
	t.Helper()
	tr := new(traces)
	tr.Server = httptest.NewServer(http.HandlerFunc(tr.receive))
	t.Cleanup(tr.Close)
	return tr
}

// env makes a process send its spans here, soon.
func (tr *traces) env() []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + tr.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_TRACES_EXPORTER=otlp", "OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_SERVICE_NAME=test",
	}
}

func (tr *traces) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var sent collector.ExportTraceServiceRequest
	if err != nil || proto.Unmarshal(body, &sent) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, resource := range sent.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			tr.spans = append(tr.spans, scope.GetSpans()...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// of returns the spans of the decisions of a request, by the trace that the client
// began, once the request's own span has come: that one ends last.
func (tr *traces) of(t *testing.T, traceID string) (request *tracepb.Span, decisions []*tracepb.Span) {
	t.Helper()
	eventually(t, "the spans of the trace "+traceID+" have come", func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		request, decisions = nil, nil
		for _, s := range tr.spans {
			switch {
			case hex.EncodeToString(s.GetTraceId()) != traceID:
			case s.GetName() == "rate_limit":
				decisions = append(decisions, s)
			default:
				request = s
			}
		}
		return request != nil
	})
	return request, decisions
}

func attributesOf(s *tracepb.Span) map[string]*commonpb.AnyValue {
	found := make(map[string]*commonpb.AnyValue)
	for _, a := range s.GetAttributes() {
		found[a.GetKey()] = a.GetValue()
	}
	return found
}

// traced makes the request part of a trace that a client began.
func traced(traceID string) option {
	return with("traceparent", "00-"+traceID+"-00f067aa0ba902b7-01")
}

// wantSpan checks the one span of a decision, by its attributes that are texts, and
// returns for how long it says that Redis took; negative if it does not say.
func (tr *traces) wantSpan(t *testing.T, traceID string, want map[string]string) (redis float64) {
	t.Helper()
	request, decisions := tr.of(t, traceID)
	if len(decisions) != 1 {
		t.Fatalf("trace %s: got %d spans rate_limit, want one", traceID, len(decisions))
	}
	span := decisions[0]
	if string(span.GetParentSpanId()) != string(request.GetSpanId()) {
		t.Errorf("trace %s: the span is not a child of the request's", traceID)
	}
	if span.GetStartTimeUnixNano() < request.GetStartTimeUnixNano() || span.GetEndTimeUnixNano() > request.GetEndTimeUnixNano() {
		t.Errorf("trace %s: the span is not within the request's", traceID)
	}
	got, redis := make(map[string]string), -1.0
	for name, value := range attributesOf(span) {
		if name == "rate_limit.redis_seconds" {
			redis = value.GetDoubleValue()
			continue
		}
		got[name] = value.GetStringValue()
	}
	if !maps.Equal(got, want) {
		t.Errorf("trace %s: got %v, want %v", traceID, got, want)
	}
	return redis
}

func decided(zone, decision string) map[string]string {
	return map[string]string{"rate_limit.zone": zone, "rate_limit.decision": decision, "rate_limit.tier": "anonymous"}
}

// tracing makes the site on {$PORT} trace its requests.
func tracing(caddyfile string) string {
	return strings.Replace(caddyfile, ":{$PORT} {", ":{$PORT} {\n\ttracing {\n\t\tspan site\n\t}\n", 1)
}

const (
	trace1 = "4bf92f3577b34da6a3ce929d0e0e4731"
	trace2 = "4bf92f3577b34da6a3ce929d0e0e4732"
	trace3 = "4bf92f3577b34da6a3ce929d0e0e4733"
	trace4 = "4bf92f3577b34da6a3ce929d0e0e4734"
)

func TestATracedRequestHasASpanForItsDecision(t *testing.T) {
	t.Parallel()
	receiver, server := newTraces(t), testserver.NewRedis(t)
	c := startCaddy(t, tracing(modes), append(receiver.env(), impatient(server))...)
	c.sequence(3, "/closed").want(t, tally{200: 3})
	c.get("/open", traced(trace1)).wantStatus(t, 200)
	if took := receiver.wantSpan(t, trace1, decided("open", "allowed")); took <= 0 {
		t.Errorf("Redis decided, and took %v seconds", took)
	}
	c.get("/closed", traced(trace2)).wantStatus(t, 429)
	receiver.wantSpan(t, trace2, decided("closed", "blocked"))
	server.Kill()
	c.get("/strict", traced(trace3)).wantStatus(t, 503)
	if took := receiver.wantSpan(t, trace3, decided("firm", "unavailable")); took < 0 {
		t.Error("Redis was asked, and the span does not say for how long")
	}
	if _, spans := receiver.of(t, trace3); spans[0].GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR || len(spans[0].GetEvents()) == 0 {
		t.Errorf("an outage: got status %v and events %v, want an error that says why", spans[0].GetStatus(), spans[0].GetEvents())
	}
	c.get("/other", traced(trace4)).wantStatus(t, 200)
	if _, spans := receiver.of(t, trace4); len(spans) != 0 {
		t.Errorf("nothing was decided: got spans %v, want none", spans)
	}
}

func TestATracedRequestInMemoryHasNoTimeOfRedis(t *testing.T) {
	t.Parallel()
	receiver := newTraces(t)
	c := startCaddy(t, tracing(countedSite), receiver.env()...)
	c.get("/two", traced(trace1)).wantStatus(t, 200)
	if took := receiver.wantSpan(t, trace1, decided("first", "allowed")); took >= 0 {
		t.Errorf("got %v seconds of Redis, want none", took)
	}
	c.get("/key", traced(trace2)).wantStatus(t, 400)
	receiver.wantSpan(t, trace2, decided("keyed", "invalid"))
	c.sequence(2, "/shadow").want(t, tally{200: 2})
	c.get("/shadow", traced(trace3)).wantStatus(t, 200)
	want := decided("wide", "shadow_blocked")
	want["rate_limit.shadow_zone"] = "watching"
	receiver.wantSpan(t, trace3, want)
}
