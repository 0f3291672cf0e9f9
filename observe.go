package ratelimit

import (
	"context"

	"go.opentelemetry.io/otel/trace"
)

// observation is what metrics, the access log and traces need of an evaluation.
type observation struct {
	first    int        // of this handler's entries in the report
	span     trace.Span // nil if the request is not traced
	fallback fallback
}

// observe begins before the decision, and returns the context for it.
func (e *evaluation) observe(ctx context.Context) context.Context {
	e.first = len(e.report.entries)
	e.report.joinAccessLog(e.r)
	return e.startSpan(ctx)
}

// observed ends after the decision.
func (e *evaluation) observed(why *refusal) {
	e.report.from = e.address.Unmap()
	if why != nil {
		e.report.refusedBy = why.zone
	}
	e.count(why)
	e.endSpan(why)
}
