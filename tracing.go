package ratelimit

import (
	"cmp"
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const (
	tracerName = "github.com/caddy-tollgate/ratelimit"
	spanName   = "rate_limit"
)

// Attributes of the span of a decision.
const (
	attrZone     = attribute.Key("rate_limit.zone")          // that decided; absent if none did
	attrShadow   = attribute.Key("rate_limit.shadow_zone")   // in shadow mode, that would have refused; absent if none would
	attrDecision = attribute.Key("rate_limit.decision")      // as the placeholder has it
	attrTier     = attribute.Key("rate_limit.tier")          // the client's
	attrRedis    = attribute.Key("rate_limit.redis_seconds") // that the request waited for Redis; absent if it was not asked
)

// startSpan begins a span for the decision, if the request is traced. Otherwise it
// costs a look into the context.
func (e *evaluation) startSpan(ctx context.Context) context.Context {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx
	}
	ctx, e.span = parent.TracerProvider().Tracer(tracerName).Start(ctx, spanName)
	return ctx
}

// endSpan says what was decided.
func (e *evaluation) endSpan(why *refusal) {
	if e.span == nil {
		return
	}
	rep := e.report
	outcome, zone := rep.outcome, ""
	switch current, ok := rep.current(); {
	case why != nil:
		outcome, zone = why.outcome, why.zone
	case ok:
		zone = current.name
	}
	if zone != "" {
		e.span.SetAttributes(attrZone.String(zone))
	}
	if shadow := rep.shadowZone(e.first); shadow != "" {
		e.span.SetAttributes(attrShadow.String(shadow))
	}
	if outcome != "" {
		e.span.SetAttributes(attrDecision.String(outcome), attrTier.String(cmp.Or(rep.client.Tier, policy.Anonymous)))
	}
	if outcome == outcomeUnavailable {
		e.span.SetStatus(codes.Error, why.detail)
	}
	e.span.End()
}

// ask has the backend decide.
func (e *evaluation) ask(ctx context.Context) error {
	app := e.h.app
	if e.span == nil || app.inProcess {
		return app.backend.Take(ctx, e.buckets, e.decisions)
	}
	began := time.Now()
	err := app.backend.Take(ctx, e.buckets, e.decisions)
	e.span.SetAttributes(attrRedis.Float64(time.Since(began).Seconds()))
	if err != nil {
		e.span.RecordError(err)
	}
	return err
}
