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
// function in a file of its own, which decide (algorithm.go) chooses. Only what a
// sliding log remembers of its requests is changed in place, when a decision is
// written.
//
// What a change of the limit does to a live bucket:
//
//   - The count, the burst and the longest delay hold from the next request on, in
//     both directions. A lowered limit is kept to; what is above it is forgotten with
//     the next charge, but of a fixed window and a log nothing is.
//   - The window of a token or leaky bucket: what was used stays used and comes back
//     at the new rate.
//   - The window of a fixed window: what was used in the old one counts if the last
//     charge lies in the new one.
//   - The window of a sliding window: the estimate at the last charge counts as used
//     then.
//   - The window of a sliding log: requests count by the new one; those that did not
//     count any more at the last charge are gone.
//   - The algorithm: the bucket is as if never seen, once.
//
// # Bounds
//
// A Store keeps at most a fixed number of buckets, each shard its part of them.
// A bucket that has drained equals one never seen and is dropped, a few with
// every call, soonest first.
//
// A shard that is full of buckets which have not drained forgets one when a new one
// comes: of the limit (the scope) that has most buckets in the shard, the bucket nearest
// to idle. So a flood of made-up clients displaces its own limit's clients as soon as
// they are the most, and those of other limits stay, with all that is known of them.
//
// If that were all, whoever fills the table would get a fresh allowance. So of each
// scope the shard remembers until when the buckets it forgot are in debt, and every
// bucket of the scope that it does not know is in debt until the latest of these times:
// it may be one of them. The idea is that of the Space-Saving sketch
// (Metwally, Agrawal and El Abbadi, Efficient Computation of Frequent and Top-k
// Elements in Data Streams, 2005), whose newcomers take over the count of the
// element they replace. So a client that was forgotten and comes back is never
// given more than if it had been remembered. Buckets that have drained are kept
// while newcomers of their scope are in debt, unless their place is needed, since of
// them it is known that they owe nothing.
//
// One warning says that buckets in use are forgotten, and of which limit; the next one
// comes after ten minutes at the earliest.
//
// # What this gives up
//
// While a table is too small for its clients, and for as long afterwards as the
// longest debt forgotten, clients that are really new to a limit of which buckets were
// forgotten start with less than a full bucket, or with an empty one. Such a client is
// refused once, is remembered as owing what its limit allows to owe, and pays it off at
// its limit's own rate. The cure is a larger max_keys.
//
// Which limit gives way is a matter of numbers, not of guilt. One that really has most
// of the clients gives way to a flood of another, until the flood is the larger one: of
// two limits each keeps half of the table at least, of n the nth part. A flood of
// requests that count against several limits at once weighs on all of them.
//
// A debt is carried over as a time. If the limit of a forgotten bucket is changed
// before it comes back, it owes that time by the new limit, which is not always
// what it had used. A window that ends later than the debt owes nothing, since a
// bucket of that window with anything used would have been forgotten later.
//
// A log takes 16 bytes more, up to twice that, for each moment at which a request
// passed in its window, up to its count; the bound on buckets does not bound them.
//
// Which bucket of a scope is nearest to idle is exact, and so is which scope of a shard
// has most; which shard a client is in is chance. A table is full when a shard is, at a
// few percent less than its bound.
//
// Nothing is shared between processes, and nothing survives a restart. A process
// has one store, which lives as long as it does: a configuration without limits
// that is loaded in between makes nobody's counters fresh.
//
// Time is the process's own, see Now: while a machine sleeps, buckets may not
// drain.
package memorybackend
