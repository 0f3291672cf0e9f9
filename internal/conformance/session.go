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
	start   int64 // in microseconds since 1970
	backend Backend
}

// at sets the clock to a time since the session's start.
func (s *session) at(d time.Duration) { s.clock.Set(s.start + d.Microseconds()) }

// garbage is what decisions hold before a call: nothing of it may be left.
var garbage = policy.Decision{Allowed: true, Remaining: -7, RetryAfter: -7, ResetAfter: -7, Delay: -7}

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
				written(buckets[i].Rule), buckets[i].Cost, s.elapsed(), describe(got[i]), describe(want[i]))
		}
	}
}

func (s *session) elapsed() time.Duration {
	return time.Duration(s.clock.Now()-s.start) * time.Microsecond
}

// written is a rule in words.
func written(r *policy.Rule) string {
	text := r.Limit.String()
	if r.MaxDelay > 0 {
		text += " max_delay " + r.Limit.MaxDelay.String()
	}
	return text + " " + string(r.Algorithm)
}

func describe(d policy.Decision) string {
	verdict := "refused"
	if d.Allowed {
		verdict = "allowed"
	}
	if d.Delay != 0 {
		verdict += " after " + d.Delay.String()
	}
	return verdict + ", " + strconv.FormatInt(d.Remaining, 10) + " left, retry after " + d.RetryAfter.String() + ", reset after " + d.ResetAfter.String()
}

// rule reads "<count>/<window> [burst <n>] [max_delay <duration>] [<algorithm>]";
// without an algorithm it is a token bucket.
func rule(text string) *policy.Rule {
	words := strings.Fields(text)
	l, err := policy.ParseLimit(words[0])
	algorithm := policy.TokenBucket
	for i := 1; i < len(words) && err == nil; i++ {
		switch words[i] {
		case "burst":
			i++
			l.Burst, err = strconv.ParseInt(words[i], 10, 64)
		case "max_delay":
			i++
			l.MaxDelay, err = policy.ParseWindow(words[i])
		default:
			algorithm = policy.Algorithm(words[i])
		}
	}
	var r *policy.Rule
	if err == nil {
		r, err = policy.NewRule(l, algorithm)
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

// queued is the decision that allows after a delay.
func queued(remaining int64, delay, resetAfter time.Duration) policy.Decision {
	return policy.Decision{Allowed: true, Remaining: remaining, ResetAfter: resetAfter, Delay: delay}
}
