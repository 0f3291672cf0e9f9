package ratelimit

import (
	"cmp"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Fields of Caddy's access log.
const (
	logZone       = "rate_limit.zone"
	logShadowZone = "rate_limit.shadow_zone"
	logDecision   = "rate_limit.decision"
	logRemaining  = "rate_limit.remaining"
	logTier       = "rate_limit.tier"
)

// joinAccessLog adds the report to the line that the access log writes of the
// request, once, and if there is such a log at all. What stands there is found out
// when the line is written.
func (rep *report) joinAccessLog(r *http.Request) {
	if rep.logged {
		return
	}
	rep.logged = true
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil || server.Logs == nil {
		return
	}
	if extra, ok := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		extra.Add(zap.Inline(rep))
	}
}

// MarshalLogObject writes the fields: what the placeholders of the same names say,
// and of a refusal always the zone that refused. Of a request that no limit applied
// to there are none.
func (rep *report) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	e, ok := rep.current()
	ok = ok && (rep.refusedBy == "" || rep.refusedBy == e.name)
	if !ok && rep.outcome == "" {
		return nil
	}
	zone := rep.refusedBy
	if ok {
		zone = e.name
	}
	enc.AddString(logZone, zone)
	enc.AddString(logDecision, rep.outcome)
	if ok {
		enc.AddInt64(logRemaining, e.Remaining)
	}
	if shadow := rep.shadowZone(0); shadow != "" {
		enc.AddString(logShadowZone, shadow)
	}
	enc.AddString(logTier, cmp.Or(rep.client.Tier, policy.Anonymous))
	return nil
}

// Interface guards
var _ zapcore.ObjectMarshaler = (*report)(nil)
