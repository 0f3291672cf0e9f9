// Package postgres is the provider rate_limit.providers.postgres: tiers,
// policies and API keys in PostgreSQL, for any number of instances.
//
// # Requests
//
// A request is decided from memory. Tiers and policies are an immutable snapshot
// that is swapped whole. API keys are a bounded cache of known ones and one of
// unknown ones, apart, so that made-up keys never push out real ones. Only the
// first request of a key waits, for the time of one query and lookup_timeout at
// most; then it counts as unknown for this request, while the answer still goes
// into the cache.
//
// Keys that are looked up at the same time are looked up together: at most two
// queries are in flight, with up to 256 keys each, and one key is never asked
// for twice at once. So a flood of made-up keys costs as many queries as the
// database can answer one after the other, not as many as there are keys; what
// cannot wait for its turn (more than 4096 keys) is unknown at once.
//
// # Changes
//
// Every change adds one to the epoch, the only row of rate_limit_epoch, before
// it does anything else, and thereby waits for all other changes. In the same
// transaction it writes its audit record and the hashes of the API keys that
// mean something else now, and sends a notice.
//
// Rows that are changed by hand, with psql for example, do the same by triggers:
// one epoch per transaction, a notice, and a new version of the row. They are not
// in the audit.
//
// Every instance listens for notices on a connection of its own. A notice only
// says "look": the instance then compares the epoch with the one that it knows,
// and reads what changed in between. Twice per cache_ttl it compares, too, on
// another connection, so neither a notice that is lost nor a connection that is
// costs more than that, and after a reconnection it goes on where it was. An answer about a key that is older than what the instance
// has read since is used and not kept.
//
//	        connect, migrate, LISTEN, read all
//	down ─────────────────────────────────────────► up ──┐ notice or cache_ttl:
//	 ▲   ◄───────────────────────────────────────── │    │ compare, read the rest
//	 │ wait (doubles to 10 s, jittered)   any error │ ◄──┘
//	 └──────────────────────────────────────────────┘
//
// # Rows that cannot be used
//
// The schema refuses most of what could not be counted by, but not all, and rows
// may be older than its rules. A policy that cannot be used is left out: an error
// is logged, once for each version of it, health counts it, and all others apply.
// In its place applies what this instance used before under its id or for its
// route (also from the saved policies, after a restart); else the strictest
// built-in limit on its route. So a row that is left out never loosens a limit.
//
// # Failures
//
// While Postgres is down, what was read last goes on: policies and known keys.
// Unknown keys are anonymous at once; nothing waits. Policies are also kept in
// Caddy's storage after every change, so that an instance that starts meanwhile
// has them; it says how old they are. Without them, every client has the
// strictest built-in limit, and an error is logged.
//
// # What that gives up
//
// Changes are made one at a time, some hundred a second: it is a store for
// people, not for traffic. A pooler in transaction mode passes no notices on, so
// behind one, changes take cache_ttl to arrive. When a key was last used is
// exact to ten seconds, and some seconds late.
package postgres
