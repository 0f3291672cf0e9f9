// Package lua holds the scripts that run inside Redis, so that one call decides
// every bucket of a request at once, on one clock.
//
// Each file's header comment states its KEYS, its ARGV and its reply. A script
// that is sent is the algorithms, one file each, followed by a main program.
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

//go:embed take.lua
var take string

//go:embed give_back.lua
var giveBack string

var algorithms = bucket + tokenBucket + leakyBucket + fixedWindow + slidingWindow + slidingLog

// Take decides every bucket of one request and takes its cost: all or nothing.
var Take = algorithms + take

// GiveBack returns to buckets what Take took from them.
var GiveBack = algorithms + giveBack
