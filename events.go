package ratelimit

import (
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// eventExceeded is emitted for every request over a limit, with zone, wait and
// remote_ip.
const eventExceeded = "rate_limit_exceeded"

// Under attack there are as many refusals as requests, and during an outage as
// many failures: of equal log lines, this many are written in this time.
const (
	refusalsLogged, refusalsPer = 10, time.Second
	failuresLogged, failuresPer = 1, time.Minute
)

// sampled returns a logger for what happens on requests.
func sampled(logger *zap.Logger, most int, per time.Duration) *zap.Logger {
	return logger.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, per, most, 0)
	}))
}

// announce tells logs and event subscribers that a limit refused the request.
func (h *Handler) announce(e *evaluation, why *refusal) {
	if c := h.refusals.Check(zap.InfoLevel, "rate limit exceeded"); c != nil {
		fields := []zap.Field{
			zap.String("zone", why.zone),
			zap.Duration("wait", why.retryAfter),
			zap.String("remote_ip", remoteHost(e.r)),
		}
		if key, ok := e.loggedKey(why.zone); ok {
			fields = append(fields, zap.String("key", key))
		}
		c.Write(fields...)
	}
	if h.events.ShouldEmit(eventExceeded) {
		h.events.Emit(h.ctx, eventExceeded, map[string]any{
			"zone":      why.zone,
			"wait":      why.retryAfter,
			"remote_ip": remoteHost(e.r),
		})
	}
}

// loggedKey is the key of the zone as it came out for this request, if keys may
// stand in logs.
func (e *evaluation) loggedKey(zone string) (string, bool) {
	if !e.h.LogKey {
		return "", false
	}
	for i, l := range e.limits {
		if l.name == zone && e.keys[i] != "" {
			return e.repl.ReplaceAll(e.keys[i], ""), true
		}
	}
	return "", false
}
