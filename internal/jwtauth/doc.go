// Package jwtauth verifies JSON Web Tokens (RFC 7519), for clients in identify
// and for admins in rate_limit_admin alike.
//
// What a token says about how to verify it is not believed: the kind of key that
// is configured decides which algorithms are accepted.
//
//	secret        HS256
//	RSA key       RS256, RS384, RS512, PS256, PS384, PS512
//	ECDSA key     ES256, ES384 or ES512, by its curve
//	Ed25519 key   EdDSA
//
// A token is refused if it is longer than 8 KiB, has a header or claim of a name
// twice, has critical extensions (crit), lacks exp, or is not yet valid (nbf).
// Its issuer and audience are checked if they are configured.
//
// Verified tokens are remembered by their SHA-256 until they expire, at most one
// minute: for so long a token outlives the removal of its key from a key set. A
// token that expires while it is remembered is refused.
//
// A key set (JWKS) is read when it is first configured, then every five minutes,
// and when a token names a key that it does not have, at most once in five seconds, not again within ten for one that was still missing.
// A request waits at most 200 ms for that, and only while a read is due or runs; all
// other tokens with unknown keys are refused at once. The last good set stays while
// its server is down. Sets are shared by URL, and outlive reloads.
package jwtauth
