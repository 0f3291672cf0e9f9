// Package admin is the HTTP API that manages tiers, policies and API keys: an
// http.Handler that can be mounted under any path. The life of a request:
//
//  1. Is there such a resource, and does it have this method? Else 404 or 405
//     (API.route). OPTIONS is answered from what is known then.
//  2. Who asks, and may they? Else 401 or 403; a change of a provider that only
//     reads is 409 (API.admit).
//  3. Is the body JSON of this API: bounded, without duplicate, misspelt or null
//     fields, without numbers that no field can hold (readBody)? What is left is
//     checked against the schema that openapi.json shows.
//  4. The handler of the operation (tiers.go, policies.go, keys.go, ...) turns it
//     into one call of the Store, which keeps the rules and writes the audit.
//
// Every refusal is a Problem that names the field and says what to write. Details
// of failures that are not the client's are logged, never answered.
//
// Changes name the version that they are based on in If-Match, as a GET showed it
// in ETag: without it 428, with another one 412. An API key is in the answer to the
// request that made it and nowhere else; see seal for how that answer can be
// repeated for an Idempotency-Key.
package admin
