package redisbackend

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
)

// ErrUnavailable is wrapped by every error of Take: Redis did not decide, and
// the operator's on_error says what happens to the request. An error that means
// a wait in vain has a method Timeout that returns true.
var ErrUnavailable = errors.New("redis backend unavailable")

// The failures that are not errors of Redis or the network.
var (
	errTimeout = &unavailable{reason: errors.New("no answer within the timeout"), timeout: true}
	errQueued  = &unavailable{reason: errors.New("no connection became free within the timeout"), timeout: true, uncounted: true}
	errBusy    = &unavailable{reason: errors.New("too many calls are waiting")}
	errClosed  = &unavailable{reason: errors.New("the client was closed"), uncounted: true}
)

// errNoRoom is of a call that was not sent, since the server takes no more connections.
var errNoRoom = errors.New("max number of clients reached (raise maxclients of Redis, or lower max_connections)")

// errTooOld is wrapped by what is said of a server below the oldest version.
var errTooOld = errors.New("run 6.2 or later, or Valkey")

// unavailable is an error that wraps ErrUnavailable and its reason.
type unavailable struct {
	reason    error
	timeout   bool
	uncounted bool // says nothing about Redis, so the breaker does not count it
}

// failed wraps an error of Redis or the network.
func failed(reason error) *unavailable {
	var t interface{ Timeout() bool }
	return &unavailable{reason: explain(reason), timeout: errors.As(reason, &t) && t.Timeout()}
}

func (e *unavailable) Error() string   { return ErrUnavailable.Error() + ": " + e.reason.Error() }
func (e *unavailable) Unwrap() []error { return []error{ErrUnavailable, e.reason} }

// Timeout reports whether the failure was a wait in vain.
func (e *unavailable) Timeout() bool { return e.timeout }

// replies are the error replies that are told apart, by how they begin. Those of an
// outage come from a server that cannot do its work; the others object to one call.
var replies = []struct {
	prefix string
	kind   metrics.RedisError
	outage bool
}{
	{"OOM", metrics.RedisMemory, true},
	{"READONLY", metrics.RedisReadOnly, true},
	{"LOADING", metrics.RedisLoading, true},
	{"MASTERDOWN", metrics.RedisReadOnly, true},
	{"MISCONF", metrics.RedisPersistence, true},
	{"NOREPLICAS", metrics.RedisReplicas, true},
	{"BUSY ", metrics.RedisBusy, true},
	{"CLUSTERDOWN", metrics.RedisCluster, true},
	{"This instance has cluster support disabled", metrics.RedisCluster, true},
	{"NOAUTH", metrics.RedisAuth, true},
	{"WRONGPASS", metrics.RedisAuth, true},
	{"NOPERM", metrics.RedisAuth, true},
	{"The user executing the script can't", metrics.RedisAuth, true},
	{"AUTH ", metrics.RedisAuth, true},
	{"invalid password", metrics.RedisAuth, true},
	{"Protocol error: unauthenticated", metrics.RedisAuth, true}, // to a command with many arguments
	{"max number of clients", metrics.RedisClients, true},
	{"unknown command", metrics.RedisUnsupported, true},
	{"MOVED", metrics.RedisCluster, true}, // the library follows it, unless the server was taken for a single one
	{"ASK", metrics.RedisCluster, true},
	{"TRYAGAIN", metrics.RedisCluster, false},
	{"CROSSSLOT", metrics.RedisCluster, false},
	{"WRONGTYPE", metrics.RedisWrongType, false},
}

// inScript is how an error begins that a script met: Redis before 7.0 and servers like
// it put where it was before what it is.
var inScript = regexp.MustCompile(`^(?:Error running script \(call to [^)]*\): )?(?:@?user_script: ?\d+: )+-?`)

// replyKind sorts an error reply, and reports whether it makes an outage. What is not
// known does, since no call of ours is answered so by a Redis that works; only a script
// that fails at what it finds concerns but one call.
func replyKind(reply redis.Error) (kind metrics.RedisError, outage bool) {
	text, inner := reason(reply)
	for _, r := range replies {
		if strings.HasPrefix(inner, r.prefix) {
			return r.kind, r.outage
		}
	}
	return metrics.RedisReply, inner == text
}

// reason is the text of an error reply, and the part of it that says what a script met;
// without a script both are the same.
func reason(reply redis.Error) (text, inner string) {
	text = strings.TrimPrefix(reply.Error(), "ERR ")
	return text, strings.TrimPrefix(text[len(inScript.FindString(text)):], "ERR ")
}

// isOutage reports whether an error of a call means that Redis cannot be used,
// rather than that it objected to this one call.
func isOutage(err error) bool {
	if err == nil { // on every call: it must cost nothing
		return false
	}
	if reply := redis.Error(nil); errors.As(err, &reply) {
		_, outage := replyKind(reply)
		return outage
	}
	return true
}

// isReply reports whether an error is a reply, so that something answers.
func isReply(err error) bool {
	if errors.Is(err, errNoRoom) {
		return true
	}
	var reply redis.Error
	return errors.As(err, &reply)
}

// kindOf sorts an error of a call; false if it says nothing about Redis.
func kindOf(err error) (metrics.RedisError, bool) {
	var timeout interface{ Timeout() bool }
	var u *unavailable
	var reply redis.Error
	switch {
	case err == error(errQueued), err == error(errBusy),
		errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return metrics.RedisQueue, true
	case errors.As(err, &u) && u.uncounted:
		return 0, false
	case errors.As(err, &reply):
		kind, _ := replyKind(reply)
		return kind, true
	case errors.Is(err, errTooOld):
		return metrics.RedisUnsupported, true
	case errors.Is(err, errNoRoom):
		return metrics.RedisClients, true
	case errors.As(err, &timeout) && timeout.Timeout():
		return metrics.RedisTimeout, true
	}
	return metrics.RedisConnection, true
}

// isUncounted reports whether an error says nothing about Redis: the client
// hung up, or this process was too busy to ask.
func isUncounted(err error) bool {
	if err == nil {
		return false
	}
	var u *unavailable
	return errors.As(err, &u) && u.uncounted || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// explain adds to an error reply what to do about it, where that is not plain.
func explain(err error) error {
	var inner string
	if reply := redis.Error(nil); errors.As(err, &reply) {
		_, inner = reason(reply)
	}
	switch {
	case strings.HasPrefix(inner, "MOVED"), strings.HasPrefix(inner, "CROSSSLOT"):
		return fmt.Errorf("%w (the server belongs to a Cluster; write two or more of its nodes as urls)", err)
	case strings.HasPrefix(inner, "This instance has cluster support disabled"):
		return fmt.Errorf("%w (several urls mean a Cluster; write one, or a sentinel)", err)
	case strings.HasPrefix(inner, "NOPERM"), strings.HasPrefix(inner, "The user executing the script"):
		return fmt.Errorf("%w (the user needs +evalsha +eval +time +type +get +psetex +del +llen +lindex +lrange +rpush +lset +ltrim +lrem +pexpire on the keys <key_prefix>:*)", err)
	default:
		return err
	}
}

// Interface guards
var _ interface{ Timeout() bool } = (*unavailable)(nil)
