// Package lua holds the scripts that run inside Redis, so that one call decides
// every bucket of a request at once, on one clock.
//
// Each file's header comment states its KEYS, its ARGV and its reply. A script
// that is sent is the algorithms, one file each, followed by a main program.
// They use only what Redis 6.2 and Valkey have.
package lua

import _ "embed" // for the scripts

//go:embed token_bucket.lua
var tokenBucket string

//go:embed take.lua
var take string

//go:embed give_back.lua
var giveBack string

// Take decides every bucket of one request and takes its cost: all or nothing.
var Take = tokenBucket + take

// GiveBack returns to buckets what Take took from them.
var GiveBack = tokenBucket + giveBack
