package conformance

import (
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// limitsInTurn asks one bucket by two limits, as instances do of which some have the new
// configuration and some the old one. From each change on, no more passes than of a new
// bucket; and no wait is longer than what the limit tells when all of it is used.
func limitsInTurn(s *session) {
	s.check(func(r *rapid.T, client string) {
		b := policy.Bucket{Identity: client, Scope: "zone"}
		rules := []*policy.Rule{drawRule(r), drawRule(r)}
		var counter counter
		for i := range 40 {
			if rule := rapid.SampledFrom(rules).Draw(r, "limit"); rule != b.Rule {
				b.Rule, counter = rule, newCounter(rule)
			}
			s.clock.Advance(drawPause(r, b.Rule))
			s.keepClear(b.Rule)
			b.Cost = rapid.Int64Range(1, b.Rule.Limit.Capacity()).Draw(r, "cost")
			d := s.send(r, b)[0]
			if longest := longestWait(b.Rule, b.Cost); d.RetryAfter > longest {
				r.Fatalf("%s, cost %d, told to wait %s with request %d, more than %s", written(b.Rule), b.Cost, d.RetryAfter, i, longest)
			}
			if !d.Allowed {
				continue
			}
			if over := counter.admit(s.clock.Now(), b.Cost, d.Delay.Microseconds()); over > 0 {
				r.Fatalf("%s admitted more than a new bucket, by %d scaled units, with request %d", written(b.Rule), over, i)
			}
		}
	})
}

// longestWait is what a limit tells at worst.
func longestWait(r *policy.Rule, cost int64) time.Duration {
	window := r.Limit.Window.Microseconds()
	switch r.Algorithm {
	case policy.TokenBucket:
		return time.Duration((cost*window+r.Limit.Count-1)/r.Limit.Count) * time.Microsecond
	case policy.SlidingWindow:
		return 2 * r.Limit.Window
	default:
		return r.Limit.Window
	}
}
