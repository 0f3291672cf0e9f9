package redisbackend

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
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
	errDropped = &unavailable{reason: errors.New("the call was not sent"), uncounted: true}
)

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

// outageReplies are how the error replies begin of a server that answers and
// cannot do its work. All other error replies come from a live server.
var outageReplies = []string{
	"OOM", "READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "BUSY ", "NOREPLICAS",
	"NOAUTH", "WRONGPASS", "NOPERM", "AUTH ", "ERR AUTH", "ERR invalid password",
	"max number of clients", "ERR max number of clients", "This instance has cluster support disabled",
}

// isOutage reports whether an error of a call means that Redis cannot be used,
// rather than that it objected to this one call.
func isOutage(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return err != nil
	}
	for _, prefix := range outageReplies {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// isUncounted reports whether an error says nothing about Redis: the client
// hung up, or this process was too busy to ask.
func isUncounted(err error) bool {
	var u *unavailable
	return errors.As(err, &u) && u.uncounted || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// explain adds to an error reply what to do about it, where that is not plain.
func explain(err error) error {
	switch {
	case redis.HasErrorPrefix(err, "MOVED"), redis.HasErrorPrefix(err, "CROSSSLOT"):
		return fmt.Errorf("%w (the server belongs to a Cluster; write two or more of its nodes as urls)", err)
	case redis.HasErrorPrefix(err, "This instance has cluster support disabled"):
		return fmt.Errorf("%w (several urls mean a Cluster; write one, or a sentinel)", err)
	case redis.HasErrorPrefix(err, "NOPERM"):
		return fmt.Errorf("%w (the user needs +evalsha +eval +time +type +get +set +del +llen +lindex +lrange +rpush +lset +ltrim +lrem +pexpire on the keys <key_prefix>:*)", err)
	default:
		return err
	}
}

// Interface guards
var _ interface{ Timeout() bool } = (*unavailable)(nil)
