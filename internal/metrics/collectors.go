package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	namespace = "caddy"
	subsystem = "rate_limit"
)

// The metrics, as an operator reads them.
var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "requests_total",
		Help: "Decisions about requests, by the zone or policy that decided, the client's tier and the outcome. " +
			"A request that passes counts once for each limit that it was counted against (allowed, or shadow_blocked if a limit in shadow mode would have refused it); " +
			"one that is refused counts only for the limit that refused it (blocked). " +
			"invalid: a missing key or a bad cost, under the zone that minded; a bad token, under no zone, after the request counted as allowed for the limits that it passed. " +
			"unavailable: it could not be decided, and was answered 503. " +
			"_local and _open: decided without Redis, by a count in this process or by letting it pass.",
	}, []string{"zone", "tier", "status"})

	redisDuration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "redis_duration_seconds",
		Help: "How long requests waited for the answer of Redis, queueing in this process included. " +
			"One observation per call; a call decides all limits of a request (in a Redis Cluster, those of one slot).",
		Buckets: []float64{
			50e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6, 750e-6,
			1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7.5e-3, 10e-3, 20e-3, 30e-3, 50e-3, 55e-3, 75e-3, 100e-3, // 55: calls that run into the default timeout
		},
	})

	redisErrors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "redis_errors_total",
		Help: "Calls that Redis did not answer with a decision, by what went wrong. " +
			"While the breaker is open requests make no calls; then the attempts to find out whether Redis is back count, up to four a second.",
	}, []string{"kind"})

	fallbacks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "fallback_total",
		Help: "Times that a rate_limit handler decided a request without the backend, by the on_error that did: closed (answered 503), local (counted in this process), open (let pass). " +
			"If the limits of the handler differ in it, the first of these; a request that passes two handlers counts twice. Anything but a standstill means that the backend is or was down.",
	}, []string{"mode"})

	policyCache = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "policy_cache_total",
		Help: "Look-ups of API keys that clients presented, by result: hit and negative (in memory, known or known not to exist), " +
			"miss (asked of the database, which answered), timeout (asked, and no answer in time), skipped (not asked: the database is down or too many ask). " +
			"Clients of the last two count as anonymous. With the providers static and embedded every key is in memory.",
	}, []string{"result"})

	propagation = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "policy_propagation_seconds",
		Help:    "Time from a change of tiers, policies or API keys, by whichever instance, until this instance decides by it.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600},
	})

	// BreakerState has a source per Redis client: 0, 1 or 2.
	BreakerState = newSampled("breaker_state",
		"State of the circuit breaker between this process and Redis: 0 closed (Redis is asked), 1 half-open (a probe is on its way), 2 open (Redis is down; on_error decides). "+
			"With several servers, the worst of them.")

	// PolicyAge has a source per provider that stores.
	PolicyAge = newSampled("policy_age_seconds",
		"Seconds since the tiers, policies and API keys that decide here were last known to be current. +Inf: they could never be read, and the strictest built-in limit holds.")

	// Keys and MaxKeys have one source, the table of the process.
	Keys = newSampled("keys",
		"Buckets in the memory of this process: of the backend memory, or of what on_error local counts by while Redis is down. "+
			"Buckets that nobody uses any more are dropped as others are used.")
	MaxKeys = newSampled("max_keys",
		"The most buckets that the memory of this process holds: max_keys of the backend memory. Near it, new clients can be refused too early.")
)

// Register adds all metrics to the registry of a configuration. Those that are in
// it already stay.
func Register(registry prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{
		openedRequests{requests}, redisDuration, redisErrors, fallbacks, policyCache, propagation, BreakerState, PolicyAge, Keys, MaxKeys,
	} {
		var already prometheus.AlreadyRegisteredError
		if err := registry.Register(c); err != nil && !errors.As(err, &already) {
			return err
		}
	}
	return nil
}
