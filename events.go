package ratelimit

import (
	"errors"
	"net"
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

// tellFailure logs that the backend did not decide a request. A backend tells of
// an outage itself, once; what is logged here is a failure of a backend that works.
func (a *App) tellFailure(cause error) {
	level := zap.WarnLevel
	var timeout interface{ Timeout() bool }
	var network *net.OpError
	if errors.As(cause, &timeout) && timeout.Timeout() || errors.As(cause, &network) || a.down() {
		level = zap.DebugLevel
	}
	if c := a.failures.Check(level, "the backend did not decide; on_error does"); c != nil {
		c.Write(zap.Error(cause))
	}
}

// down reports whether the backend knows that it cannot decide.
func (a *App) down() bool {
	b, ok := a.backend.(interface {
		Health() (up bool, since time.Time, lastErr error)
	})
	if !ok {
		return false
	}
	up, _, _ := b.Health()
	return !up
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
