// Package lua holds the scripts that run inside Redis, so that one call decides
// every bucket of a request at once, on one clock.
//
// The header comments of take.lua and give_back.lua, the main programs, state their
// KEYS, ARGV and replies. A script that is sent is a beginning that both share, the
// algorithms, one file each, and a main program; the commonest case of take.lua comes
// before the algorithms that it does not need.
// They use only what Redis 6.2 and Valkey have.
package lua

import _ "embed" // for the scripts

//go:embed bucket.lua
var bucket string

//go:embed token_bucket.lua
var tokenBucket string

//go:embed leaky_bucket.lua
var leakyBucket string

//go:embed fixed_window.lua
var fixedWindow string

//go:embed sliding_window.lua
var slidingWindow string

//go:embed sliding_log.lua
var slidingLog string

//go:embed begin.lua
var begin string

//go:embed take_one.lua
var takeOne string

//go:embed take.lua
var take string

//go:embed give_back.lua
var giveBack string

// otherAlgorithms are all but the token bucket.
var otherAlgorithms = leakyBucket + fixedWindow + slidingWindow + slidingLog

// Take decides every bucket of a request and takes its cost: all or nothing.
var Take = begin + bucket + tokenBucket + takeOne + otherAlgorithms + take

// GiveBack returns to buckets what Take took from them.
var GiveBack = begin + bucket + tokenBucket + otherAlgorithms + giveBack
