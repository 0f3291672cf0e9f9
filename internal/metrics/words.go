package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Status is the outcome of a request for one limit.
type Status uint8

// The values of the label status. Without a suffix, a decision is one that needed
// no substitute for the backend.
const (
	Allowed            Status = iota // counted against the limit, and passed
	AllowedLocal                     // the same, by the count of this process
	AllowedOpen                      // passed uncounted, by on_error open
	Blocked                          // refused by the limit
	BlockedLocal                     // the same, by the count of this process
	ShadowBlocked                    // passed a limit in shadow mode that would have refused it
	ShadowBlockedLocal               // the same, by the count of this process
	Invalid                          // refused for what it is: a bad token, a missing key, a bad cost
	Unavailable                      // refused since nothing could be decided
	statuses
)

var statusWords = [statuses]string{
	"allowed", "allowed_local", "allowed_open", "blocked", "blocked_local",
	"shadow_blocked", "shadow_blocked_local", "invalid", "unavailable",
}

// String is the value of the label.
func (s Status) String() string { return statusWords[s] }

// RedisError is what kept Redis from deciding.
type RedisError uint8

// The values of the label kind.
const (
	RedisTimeout     RedisError = iota // no answer within the timeout
	RedisQueue                         // no connection became free, or too many calls wait: this process asks too much
	RedisConnection                    // refused, broken, or answering what is not Redis's protocol
	RedisReadOnly                      // the server is a replica
	RedisMemory                        // its maxmemory is reached
	RedisLoading                       // it starts, and reads its data
	RedisPersistence                   // it cannot save, and was told not to write then
	RedisReplicas                      // it has too few replicas to write to
	RedisBusy                          // a script of somebody else's does not end
	RedisClients                       // its maxclients is reached
	RedisCluster                       // a Cluster that is down, or whose slots do not agree
	RedisAuth                          // it does not accept the credentials, or not for what is asked
	RedisUnsupported                   // it is too old, or without a command that is needed
	RedisWrongType                     // a key holds something else than a bucket
	RedisReply                         // any other error reply
	redisErrorKinds
)

var redisErrorWords = [redisErrorKinds]string{
	"timeout", "queue", "connection", "readonly", "memory", "loading", "persistence", "replicas", "busy", "clients",
	"cluster", "auth", "unsupported", "wrongtype", "reply",
}

// String is the value of the label.
func (k RedisError) String() string { return redisErrorWords[k] }

// Fallback is the on_error that decided a request.
type Fallback uint8

// The values of the label mode.
const (
	FallbackOpen Fallback = iota
	FallbackLocal
	FallbackClosed
	fallbackModes
)

var fallbackWords = [fallbackModes]string{"open", "local", "closed"}

// String is the value of the label.
func (f Fallback) String() string { return fallbackWords[f] }

// LookUp is how an API key was looked up.
type LookUp uint8

// The values of the label result.
const (
	LookUpHit      LookUp = iota // known, in memory
	LookUpNegative               // known not to exist, in memory
	LookUpMiss                   // asked of the database, which answered
	LookUpTimeout                // asked of the database, which did not answer in time
	LookUpSkipped                // not asked
	lookUpResults
)

var lookUpWords = [lookUpResults]string{"hit", "negative", "miss", "timeout", "skipped"}

// String is the value of the label.
func (l LookUp) String() string { return lookUpWords[l] }

// The counters of one label stand ready: counting takes no look-up, and a word that
// has not occurred yet reads 0, which alerts need.
var (
	redisErrorCounters = counters(redisErrors, redisErrorWords[:])
	fallbackCounters   = counters(fallbacks, fallbackWords[:])
	lookUpCounters     = counters(policyCache, lookUpWords[:])
)

func counters(vec *prometheus.CounterVec, words []string) []prometheus.Counter {
	all := make([]prometheus.Counter, len(words))
	for i, word := range words {
		all[i] = vec.WithLabelValues(word)
	}
	return all
}

// CountRedisError counts a call that Redis did not answer with a decision.
func CountRedisError(k RedisError) { redisErrorCounters[k].Inc() }

// CountFallback counts a request that the backend did not decide.
func CountFallback(f Fallback) { fallbackCounters[f].Inc() }

// CountLookUp counts a look-up of an API key.
func CountLookUp(l LookUp) { lookUpCounters[l].Inc() }

// ObserveRedis takes how long a request waited for Redis.
func ObserveRedis(d time.Duration) { redisDuration.Observe(d.Seconds()) }

// ObservePropagation takes how long ago a change was made that takes effect now.
// Below zero, the clocks of two instances differ, and it counts as none.
func ObservePropagation(d time.Duration) { propagation.Observe(max(0, d).Seconds()) }
