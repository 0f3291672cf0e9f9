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
//	Take ── alone? ── yes, and Redis answers ──────────► Redis
//	  └─ no: queue (bounded) ──► senders, a batch each ──► Redis
//	       └─ waits on its own timer
//
// What waits together travels together, as one script call: one command, one look at
// the clock, one reply. Calls for exactly the same buckets, costs and limits are
// merged in it to one request, which the script grants again and again, in the order
// of their arrival, until it refuses. Every caller gets the very answer that it would
// have got alone at that instant, and an error of one request is that of its equals
// only. In a Cluster only equal calls travel together.
//
// A caller waits for the configured timeout and not longer, whatever happens
// behind the queue. Sockets have a longer deadline of their own, so a short
// stall does not cost the connections: a late answer is read and thrown away.
// They are closed when the breaker opens because nothing answers, since senders
// would wait at those whose other end has vanished. A
// call that its caller gave up before it was sent is not sent any more; a call
// that may have run is never sent again. A full queue is an error at once.
//
// A sender that gets no connection because the server takes no more (maxclients) puts
// its calls, which were not sent, back to the others that may have one, and stands
// aside for a second. The last one does not: then there is none, and calls fail.
//
// A call that finds no other on its way is sent by its own goroutine, which spares
// handing it over and back. Its socket has the caller's deadline, so a stall costs
// this one connection; until Redis has answered again, calls queue.
// client.run is the one place where calls leave for Redis.
//
// # When Redis is down
//
//	         five failures in a row, over 150 ms
//	closed ─────────────────────────► open: every call fails at once, no I/O
//	  ▲                                │
//	  └──── a probe has succeeded ◄────┘ four probes a second, in the background
//
// Failures are timeouts, broken connections and the replies of a server that
// cannot do its work (OOM, READONLY, LOADING, CLUSTERDOWN, NOAUTH and the like), or
// that is not Redis: what no call of ours is answered by one that works. An error that
// objects to one call (WRONGTYPE, TRYAGAIN, CROSSSLOT, a script that fails at what it
// finds) is only reported. No length is believed that a reply announces. The probe
// does what a request does, writing included. In a Cluster every master has its
// own breaker, so one that is gone costs the others' clients nothing. Each trip
// and each recovery is told once, to the observer of the running configuration;
// one that starts in the middle of an outage is told so, also if it asks the same
// server by another client, whose breaker then starts open.
//
// What a server says of itself (its version, maxmemory-policy) is looked at when a
// configuration starts, in each probe during an outage, and once for what could not be
// asked then.
//
// A server that has answered nothing for a second is pinged once a second, by one
// goroutine for all: two pings in vain open its breaker, so that an outage is told
// although nobody asks. A write is not tried for that; an idle Redis stays idle.
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
// Masters that change and slots that move are followed. While a slot moves, Redis runs
// no script whose keys are in part here and in part there (TRYAGAIN). Such a call has
// not run, so each of its buckets is asked for by itself, within what is left of the
// timeout, and the request is all or nothing as over several slots. A slot that nobody
// serves (CLUSTERDOWN) is not asked again: that lasts longer than any request may wait.
//
// # What this gives up
//
// A failover loses what the old master had not yet replicated, and an eviction
// forgets a bucket: both admit again what was used before. Set maxmemory-policy
// noeviction. A server clock that is set forward refills buckets, at most to the
// full; set back, it stops them until it has caught up or the key expires. A call
// that times out may have run, so its cost may stay taken.
package redisbackend
