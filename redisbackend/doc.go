// Package redisbackend keeps buckets in Redis (6.2 or later) or Valkey, so that
// any number of Caddy instances share one set of counters.
//
// # One call
//
// Take sends one EVALSHA that carries every bucket of a request, and the script
// decides all of them on the server's clock: all or nothing. The script and the
// format of its arguments are described in package lua. The algorithms' state
// stands in one key per bucket,
//
//	<key_prefix>:{<identity>}:<scope>
//
// whose braces keep the buckets of one client in one slot of a Cluster. Every
// key has a TTL, after which the bucket would equal one never seen.
//
// # Waiting
//
//	Take ── queue (bounded) ──► senders, one per connection ──► Redis
//	  └─ waits on its own timer
//
// A caller waits for the configured timeout and not longer, whatever happens
// behind the queue. Sockets have a longer deadline of their own, so a short
// stall does not cost the connections: a late answer is read and thrown away. A
// call that its caller gave up before it was sent is not sent any more; a call
// that may have run is never sent again. A full queue is an error at once.
// client.send is the one place where calls leave for Redis.
//
// # When Redis is down
//
//	         five failures in a row, over 150 ms
//	closed ─────────────────────────► open: every call fails at once, no I/O
//	  ▲                                │
//	  └──── a probe has succeeded ◄────┘ four probes a second, in the background
//
// Failures are timeouts, broken connections and the replies of a server that
// cannot do its work (OOM, READONLY, LOADING, CLUSTERDOWN, NOAUTH and the like);
// any other error reply comes from a live server and is only reported. The probe
// does what a request does, writing included. In a Cluster every master has its
// own breaker, so one that is gone costs the others' clients nothing. Each trip
// and each recovery is told once, to the observer of the running configuration.
//
// Every failure of Take wraps ErrUnavailable. What happens to the request then
// is for the caller to say.
//
// # Cluster
//
// Buckets of one request that live in several slots take one call per slot, in
// parallel. If one slot refuses or fails, what the others took is given back by
// a second script before Take returns. In between, and for good if the giving
// back fails, those buckets stand fuller than they should: another request may
// be refused that would have passed. None is ever admitted that should have been
// refused. A bucket that drained to the ground in between gets back only what is
// certainly its own.
//
// Masters that change and slots that move are followed. While a slot moves,
// Redis does not decide requests whose buckets are in part here and in part
// there (TRYAGAIN); those are errors until the slot has moved.
//
// # What this gives up
//
// A failover loses what the old master had not yet replicated, and an eviction
// forgets a bucket: both admit again what was used before. Set maxmemory-policy
// noeviction. A server clock that is set forward refills buckets, at most to the
// full; set back, it stops them until it has caught up or the key expires. A call
// that times out may have run, so its cost may stay taken.
package redisbackend
