// Package memorybackend keeps buckets in the memory of one process: the backend
// that needs no server, the fallback while a server is down, and the reference
// that the other backends are tested against.
//
// # Design
//
// A Store is a hash map in up to 64 shards, each behind a lock of its own. A
// client's buckets are all in one shard. Take locks the shards of its buckets in
// ascending order, looks at every bucket, and writes only if all enforced ones
// have room: all or nothing, in one process, is only a matter of holding the
// locks. There is no goroutine and nothing to stop.
//
// Of a bucket, the state says what was used as of a time, and in which unit; see
// policy.Rule. So a limit may change under a live bucket in any direction, and
// what was used stays used. The state of each algorithm is computed by a pure
// function in a file of its own, which decide (algorithm.go) chooses.
//
// # Bounds
//
// A Store keeps at most a fixed number of buckets, each shard its part of them.
// A bucket that has drained equals one never seen and is dropped, a few with
// every call, soonest first.
//
// A shard that is full of buckets which have not drained forgets the one nearest
// to it when a new one comes. If that were all, whoever fills the table would get
// a fresh allowance. So the shard remembers until when the buckets it forgot are
// in debt, the latest time of all, and every bucket it does not know is in debt
// until then: it may be one of them. The idea is that of the Space-Saving sketch
// (Metwally, Agrawal and El Abbadi, Efficient Computation of Frequent and Top-k
// Elements in Data Streams, 2005), whose newcomers take over the count of the
// element they replace. So a client that was forgotten and comes back is never
// given more than if it had been remembered. Buckets that have drained are kept
// while newcomers are in debt, unless their place is needed, since of them it is
// known that they owe nothing.
//
// # What this gives up
//
// While a table is too small for its clients, and for as long afterwards as the
// longest debt forgotten, clients that are really new start with less than a full
// bucket, or with an empty one. Such a client is refused once, is remembered as
// owing what its limit allows to owe, and pays it off at its limit's own rate;
// limits of short windows so suffer for debts of long ones, but no longer than
// their own window. The cure is a larger max_keys.
//
// A debt is carried over as a time. If the limit of a forgotten bucket is changed
// before it comes back, it owes that time by the new limit, which is not always
// what it had used.
//
// Which bucket is nearest to idle is exact; which shard a client is in is chance.
// A table is full when a shard is, at a few percent less than its bound.
//
// Nothing is shared between processes, and nothing survives a restart.
//
// Time is the process's own, see Now: while a machine sleeps, buckets may not
// drain.
package memorybackend
