// Package static is the provider rate_limit.providers.static: tiers, policies
// and API keys written in Caddy's configuration. It needs no server and no
// storage, and it only reads: to change a tier or a key, edit the
// configuration and reload.
//
// A configuration that is wrong in any place is refused whole, at load, with
// the place and what to write there. What loads is compiled once into an
// immutable snapshot, so a request costs look-ups in two maps and no I/O.
//
// API keys are given as the SHA-256 of the key, never as the key, so a
// configuration file, its backups and the output of Caddy's admin API hold no
// secret. A hash alone protects a key that is random and long; a key that can
// be guessed can be guessed from its hash too.
package static
