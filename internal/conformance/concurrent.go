package conformance

import (
	"sync"
	"sync/atomic"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// concurrentCases are about requests at the same moment.
var concurrentCases = []namedTest{
	{"of many requests exactly as many pass as the limit has", exactlyTheLimit},
	{"two buckets in either order neither deadlock nor leak", crossedBuckets},
	{"different requests of one bucket share it exactly", mixedCosts},
	{"every answer is that of some order of the requests", linearizable},
}

// Requests that a case sends: from so many goroutines, so many each.
const (
	goroutines = 16
	requests   = 25
)

// storm sends requests at once and returns how many of them passed. The nth
// goroutine sends what request(n) returns.
func (s *session) storm(request func(n int) []policy.Bucket) int64 {
	var passed atomic.Int64
	var group sync.WaitGroup
	start := make(chan struct{})
	for n := range goroutines {
		buckets := request(n)
		group.Go(func() {
			<-start
			decisions := make([]policy.Decision, len(buckets))
			for range requests {
				if err := s.backend.Take(s.Context(), buckets, decisions); err != nil {
					s.Errorf("Take: %v", err)
					return
				}
				if policy.Allowed(buckets, decisions) {
					passed.Add(1)
				}
			}
		})
	}
	close(start)
	group.Wait()
	return passed.Load()
}

func (s *session) expectPassed(got, want int64) {
	s.Helper()
	if got != want {
		s.Errorf("%d of %d requests passed, want %d", got, goroutines*requests, want)
	}
}

func exactlyTheLimit(s *session) {
	passed := s.storm(func(int) []policy.Bucket { return []policy.Bucket{bucket("100/1h", 1)} })
	s.expectPassed(passed, 100)
	s.expect([]policy.Bucket{bucket("100/1h", 1)}, refuse(0, 36*sec, hour))
}

func crossedBuckets(s *session) {
	a, b := of("a", bucket("60/1h", 1)), of("b", bucket("100/1h", 1))
	b.Identity = "k_other"
	passed := s.storm(func(n int) []policy.Bucket {
		if n%2 == 0 {
			return []policy.Bucket{a, b}
		}
		return []policy.Bucket{b, a}
	})
	s.expectPassed(passed, 60)
	s.expect([]policy.Bucket{a, b}, refuse(0, minute, hour), pass(40, 36*minute))
	b.Cost = 40
	s.expect([]policy.Bucket{b}, pass(0, hour))
}

// Half of the goroutines take one bucket with a shadow beside it, half only
// look: what is left must come out as if they had come one by one.
func mixedCosts(s *session) {
	shared, side := bucket("150/1h", 1), shadow(of("side", bucket("100/1h", 1)))
	look := shared
	look.Cost = 0
	passed := s.storm(func(n int) []policy.Bucket {
		if n%2 == 0 {
			return []policy.Bucket{shared, side}
		}
		return []policy.Bucket{look}
	})
	s.expectPassed(passed, 150+goroutines/2*requests)
	s.expect([]policy.Bucket{shared, side}, refuse(0, 24*sec, hour), refuse(0, 36*sec, hour))
}
