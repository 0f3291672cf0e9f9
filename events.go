package ratelimit

import (
	"net"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// eventExceeded is emitted for every request over a limit, with zone, wait and
// remote_ip.
const eventExceeded = "rate_limit_exceeded"

// Under attack there are as many refusals as requests; of equal log lines, this
// many are written each second.
const logsPerSecond = 10

// sampled returns a logger for what happens on requests.
func sampled(logger *zap.Logger) *zap.Logger {
	return logger.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, time.Second, logsPerSecond, 0)
	}))
}

// announce tells logs and event subscribers that a limit refused the request.
func (h *Handler) announce(e *evaluation, why *refusal) {
	if c := h.logger.Check(zap.InfoLevel, "rate limit exceeded"); c != nil {
		fields := []zap.Field{
			zap.String("zone", why.zone),
			zap.Duration("wait", why.retryAfter),
			zap.String("remote_ip", remoteIP(e)),
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
			"remote_ip": remoteIP(e),
		})
	}
}

func remoteIP(e *evaluation) string {
	host, _, err := net.SplitHostPort(e.r.RemoteAddr)
	if err != nil { // no port, as on a Unix socket
		return e.r.RemoteAddr
	}
	return host
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
