package policy

import "time"

// Bucket is one limit for one client in one request: what a backend is asked
// to take Cost units from.
//
// The buckets of one call are distinct in (Identity, Scope); a backend may
// rely on it.
type Bucket struct {
	// Identity says whose bucket it is: an Identity from this package, never
	// a secret, and free of the braces that enclose it in a key.
	Identity string

	// Scope says of which limit: a ZoneScope or RouteScope.
	Scope string

	Rule *Rule

	// Units to take: 0 looks and takes nothing, and is always allowed. At most what
	// Rule.CheckCost accepts.
	Cost int64

	// A shadow bucket is counted by itself and never refuses the request.
	Shadow bool
}

// Decision is what a backend says of one bucket.
//
// A worked example: a bucket of 10/1m, untouched, asked for 1, answers
// {Allowed: true, Remaining: 9, RetryAfter: 0, ResetAfter: 6s}. The eleventh
// request at once answers {false, 0, 6s, 60s}: one unit comes back every six
// seconds, and after sixty the bucket is as if never seen.
type Decision struct {
	// Whether this bucket alone has room for the cost. If another enforced
	// bucket of the call refuses, nothing is taken from this one either, and
	// Remaining says what is still there.
	Allowed bool

	// Whole units left after the call, never negative.
	Remaining int64

	// How long until this cost would pass if nothing else were taken, by this
	// limit or by another one that the bucket is also asked by; exact to
	// the microsecond and rounded up to it. Zero when allowed.
	RetryAfter time.Duration

	// How long until the bucket equals one never seen, rounded up to the
	// microsecond.
	ResetAfter time.Duration

	// How long the request must wait for its turn before it passes, rounded up to
	// the microsecond; of leaky buckets alone. Zero if it passes at once, if this
	// bucket or another enforced one of the call refuses, and for shadow buckets.
	Delay time.Duration
}

// Allowed reports whether a request passes: whether every enforced bucket
// allowed it.
func Allowed(buckets []Bucket, decisions []Decision) bool {
	for i := range buckets {
		if !buckets[i].Shadow && !decisions[i].Allowed {
			return false
		}
	}
	return true
}
