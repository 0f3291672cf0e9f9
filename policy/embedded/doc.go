// Package embedded is the provider rate_limit.providers.embedded: tiers,
// policies and API keys in Caddy's own storage, for one or a few instances and
// without a server. It is the default provider.
//
// # What is stored
//
// Everything that decides requests stands in one JSON document, with the newest
// part of the audit and the idempotent answers of a day. A change reads it under
// the storage's lock, changes it in memory, and writes it in one piece: a crash
// leaves the document before or the one after. Older audit records move, a
// hundred at a time, to documents of their own that are written before the main
// one names them. When a key was last used stands in another document, which is
// merged every few seconds and whose loss costs nothing else.
//
// Before a change is written, its epoch is written to a tiny document of its
// own. Instances that share the storage read that one, twice a second by
// default, and the large one only when the epoch there is not the one that they
// have. A notice that was written without its change, because an instance died
// between the two, makes the others read once per interval until the next change
// or start, and nothing else.
//
// # What that gives up
//
// A change costs as much as the document is large, so this is a store for some
// thousands of keys, changed by people. How quickly two instances take turns is
// up to the storage's lock; that of the file system is asked once a second. When
// an instance is killed while it makes a change, the others wait until the
// storage takes its lock for stale, about ten seconds on the file system. And
// such a lock can, as everywhere in Caddy, let two instances in at once, if one
// of them stands still in the middle of writing: then the later change wins.
//
// # Failures
//
// Health tells, too, when the store cannot be changed: because a change failed,
// or the change of nothing that every instance tries once a minute.
//
// A request is decided from memory alone, so a storage that is away costs it
// nothing; what was read last goes on. At the start, without anything read yet,
// every client has the strictest built-in limit, an error is logged, and the
// store is read as soon as it can be.
package embedded
