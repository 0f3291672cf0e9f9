// Package policy holds Tollgate's vocabulary and its pure rules: what a limit
// is, which policies apply to a client on a route, how a client is named. It
// does no I/O, keeps no state and imports the standard library only, so every
// other package may import it.
//
// The words have one meaning everywhere:
//
//   - A Limit is a count per window, plus a burst.
//   - A Rule is a Limit and an Algorithm, reduced to the integers that a
//     backend computes with.
//   - A Bucket is one Rule for one client in one request; the backend keeps
//     its state under the bucket's identity and scope.
//   - A Decision is what a backend answers for one Bucket.
//   - A Policy is what a Tier (or one API key) gets on a Route.
package policy
