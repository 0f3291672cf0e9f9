package conformance

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// session is one new backend with its clock.
type session struct {
	*testing.T
	clock   *Clock
	backend Backend
}

// at sets the clock to a time since the session's start.
func (s *session) at(d time.Duration) { s.clock.Set(epoch + d.Microseconds()) }

// garbage is what decisions hold before a call: nothing of it may be left.
var garbage = policy.Decision{Allowed: true, Remaining: -7, RetryAfter: -7, ResetAfter: -7}

// take sends one request.
func (s *session) take(buckets ...policy.Bucket) []policy.Decision {
	s.Helper()
	decisions := make([]policy.Decision, len(buckets))
	for i := range decisions {
		decisions[i] = garbage
	}
	if err := s.backend.Take(s.Context(), buckets, decisions); err != nil {
		s.Fatalf("Take: %v", err)
	}
	return decisions
}

// expect sends one request and compares what is decided of each bucket.
func (s *session) expect(buckets []policy.Bucket, want ...policy.Decision) {
	s.Helper()
	got := s.take(buckets...)
	for i := range buckets {
		if got[i] != want[i] {
			s.Errorf("bucket %d (%s of %s, %s, cost %d) at %s:\n got %s\nwant %s", i, buckets[i].Scope, buckets[i].Identity,
				buckets[i].Rule.Limit, buckets[i].Cost, s.elapsed(), describe(got[i]), describe(want[i]))
		}
	}
}

func (s *session) elapsed() time.Duration {
	return time.Duration(s.clock.Now()-epoch) * time.Microsecond
}

func describe(d policy.Decision) string {
	verdict := "refused"
	if d.Allowed {
		verdict = "allowed"
	}
	return verdict + ", " + strconv.FormatInt(d.Remaining, 10) + " left, retry after " + d.RetryAfter.String() + ", reset after " + d.ResetAfter.String()
}

// rule reads "<count>/<window> [burst <n>]" as a token bucket.
func rule(limit string) *policy.Rule {
	text, burst, _ := strings.Cut(limit, " burst ")
	l, err := policy.ParseLimit(text)
	if err == nil && burst != "" {
		l.Burst, err = strconv.ParseInt(burst, 10, 64)
	}
	var r *policy.Rule
	if err == nil {
		r, err = policy.NewRule(l, policy.TokenBucket)
	}
	if err != nil {
		panic("conformance: " + err.Error()) // a mistake in the suite
	}
	return r
}

// bucket is a bucket of the client and scope that most tests use.
func bucket(limit string, cost int64) policy.Bucket {
	return policy.Bucket{Identity: "203.0.113.7", Scope: "zone", Rule: rule(limit), Cost: cost}
}

// of returns the bucket for another scope.
func of(scope string, b policy.Bucket) policy.Bucket {
	b.Scope = scope
	return b
}

// shadow returns the bucket as one that only counts.
func shadow(b policy.Bucket) policy.Bucket {
	b.Shadow = true
	return b
}

// pass is the decision that allows.
func pass(remaining int64, resetAfter time.Duration) policy.Decision {
	return policy.Decision{Allowed: true, Remaining: remaining, ResetAfter: resetAfter}
}

// refuse is the decision that does not.
func refuse(remaining int64, retryAfter, resetAfter time.Duration) policy.Decision {
	return policy.Decision{Remaining: remaining, RetryAfter: retryAfter, ResetAfter: resetAfter}
}
