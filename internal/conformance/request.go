package conformance

import (
	"fmt"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// requestCases are about requests with several buckets.
var requestCases = []namedTest{
	{"two zones are charged together or not at all", twoZones},
	{"the order of the buckets does not matter", anyOrder},
	{"each bucket has its own cost", ownCosts},
	{"a look beside a charge is no charge, and a look refuses nothing", lookBeside},
	{"a shadow bucket counts by itself and refuses nothing", shadowCounts},
	{"a shadow bucket is not charged for a refused request", shadowSpared},
	{"a refusing shadow bucket is not charged, the others are", shadowRefuses},
	{"shadow buckets alone never refuse", shadowsAlone},
	{"scopes and identities are apart", apart},
	{"forty buckets are charged together or not at all", fortyBuckets},
	{"buckets of all algorithms are charged together or not at all", mixedAlgorithms},
	{"a shadow queue delays nobody", shadowQueue},
	{"a changed algorithm counts as never seen, whichever it was", changedAlgorithms},
	{"no buckets are no error", noBuckets},
}

// Public limiters charge the first zone fifty times here.
func twoZones(s *session) {
	request := []policy.Bucket{of("wide", bucket("100/1h", 1)), of("narrow", bucket("5/1d", 1))}
	const unit, narrowUnit = 36 * sec, 288 * minute
	for i := int64(1); i <= 50; i++ {
		if i <= 5 {
			n := time.Duration(i)
			s.expect(request, pass(100-i, n*unit), pass(5-i, n*narrowUnit))
			continue
		}
		s.expect(request, pass(95, 5*unit), refuse(0, narrowUnit, day))
	}
	s.expect([]policy.Bucket{of("wide", bucket("100/1h", 95))}, pass(0, hour))
}

func anyOrder(s *session) {
	wide, narrow := of("wide", bucket("10/10m", 1)), of("narrow", bucket("2/10m", 1))
	s.expect([]policy.Bucket{wide, narrow}, pass(9, minute), pass(1, 5*minute))
	s.expect([]policy.Bucket{narrow, wide}, pass(0, 10*minute), pass(8, 2*minute))
	s.expect([]policy.Bucket{narrow, wide}, refuse(0, 5*minute, 10*minute), pass(8, 2*minute))
	s.expect([]policy.Bucket{wide, narrow}, pass(8, 2*minute), refuse(0, 5*minute, 10*minute))
	s.expect([]policy.Bucket{wide}, pass(7, 3*minute))
}

func ownCosts(s *session) {
	a, b := of("a", bucket("10/10m", 3)), of("b", bucket("10/10m", 5))
	s.expect([]policy.Bucket{a, b}, pass(7, 3*minute), pass(5, 5*minute))
	s.expect([]policy.Bucket{a, b}, pass(4, 6*minute), pass(0, 10*minute))
	s.expect([]policy.Bucket{a, b}, pass(4, 6*minute), refuse(0, 5*minute, 10*minute))
	s.at(5*minute - us)
	s.expect([]policy.Bucket{a, b}, pass(8, minute+us), refuse(4, us, 5*minute+us))
	s.at(5 * minute)
	s.expect([]policy.Bucket{a, b}, pass(6, 4*minute), pass(0, 10*minute))
}

func lookBeside(s *session) {
	look, charge := of("look", bucket("2/10m", 0)), of("charge", bucket("3/10m", 1))
	s.expect([]policy.Bucket{look, charge}, pass(2, 0), pass(2, 200*sec))
	s.expect([]policy.Bucket{of("look", bucket("2/10m", 2))}, pass(0, 10*minute))
	s.expect([]policy.Bucket{look, charge}, pass(0, 10*minute), pass(1, 400*sec))
	s.expect([]policy.Bucket{charge, look}, pass(0, 600*sec), pass(0, 10*minute))
	s.expect([]policy.Bucket{look, charge}, pass(0, 10*minute), refuse(0, 200*sec, 600*sec))
}

func shadowCounts(s *session) {
	request := []policy.Bucket{shadow(of("shadow", bucket("2/10m", 1))), of("enforced", bucket("4/10m", 1))}
	s.expect(request, pass(1, 5*minute), pass(3, 150*sec))
	s.expect(request, pass(0, 10*minute), pass(2, 300*sec))
	s.expect(request, refuse(0, 5*minute, 10*minute), pass(1, 450*sec))
	s.expect(request, refuse(0, 5*minute, 10*minute), pass(0, 600*sec))
	s.expect(request, refuse(0, 5*minute, 10*minute), refuse(0, 150*sec, 600*sec))
	s.at(5 * minute)
	s.expect(request, pass(0, 10*minute), pass(1, 450*sec))
}

func shadowSpared(s *session) {
	request := []policy.Bucket{of("enforced", bucket("2/10m", 1)), shadow(of("shadow", bucket("10/10m", 1)))}
	s.expect(request, pass(1, 5*minute), pass(9, 1*minute))
	s.expect(request, pass(0, 10*minute), pass(8, 2*minute))
	s.expect(request, refuse(0, 5*minute, 10*minute), pass(8, 2*minute))
	s.expect([]policy.Bucket{request[1]}, pass(7, 3*minute))
}

func shadowRefuses(s *session) {
	request := []policy.Bucket{
		of("first", bucket("10/10m", 1)),
		shadow(of("full", bucket("10/10m", 4))),
		shadow(of("free", bucket("100/10m", 1))),
	}
	s.expect(request, pass(9, 1*minute), pass(6, 4*minute), pass(99, 6*sec))
	s.expect(request, pass(8, 2*minute), pass(2, 8*minute), pass(98, 12*sec))
	s.expect(request, pass(7, 3*minute), refuse(2, 2*minute, 8*minute), pass(97, 18*sec))
	s.expect(request, pass(6, 4*minute), refuse(2, 2*minute, 8*minute), pass(96, 24*sec))
}

func shadowsAlone(s *session) {
	request := []policy.Bucket{shadow(of("a", bucket("1/10m", 1))), shadow(of("b", bucket("2/10m", 1)))}
	s.expect(request, pass(0, 10*minute), pass(1, 5*minute))
	s.expect(request, refuse(0, 10*minute, 10*minute), pass(0, 10*minute))
	s.expect(request, refuse(0, 10*minute, 10*minute), refuse(0, 5*minute, 10*minute))
}

// The names are those whose parts would meet if a backend joined them without
// care.
func apart(s *session) {
	names := []struct{ identity, scope string }{
		{"203.0.113.7", "login"},
		{"203.0.113.7", "log"},
		{"203.0.113.7", "global"},
		{"203.0.113.7", "%67lobal"},
		{"203.0.113.70", "login"},
		{"2001:db8::", "login"},
		{"2001:db8::/64", "login"},
		{"2001:db8::1", "login"},
		{"2001:db8:", "1:login"},
		{"k_7", "route:/a"},
		{"k_7", "route:/a:POST"},
		{"k_7", "route:/a/*"},
		{"k_7", "route:/A"},
		{"k_7:route", "/a"},
		{"h_7", "route:/a"},
		{"*", "login"},
		{"*", "*"},
	}
	for _, n := range names {
		b := bucket("1/1h", 1)
		b.Identity, b.Scope = n.identity, n.scope
		s.expect([]policy.Bucket{b}, pass(0, hour))
		s.expect([]policy.Bucket{b}, refuse(0, hour, hour))
	}
}

func fortyBuckets(s *session) {
	const n = 40
	request := make([]policy.Bucket, n)
	passes, spared := make([]policy.Decision, n), make([]policy.Decision, n)
	for i := range request {
		request[i] = of(fmt.Sprint("zone", i), bucket("10/10m", 1))
		request[i].Identity = fmt.Sprint("client", i%7)
		passes[i], spared[i] = pass(9, minute), pass(9, minute)
	}
	request[n-1].Rule = rule("1/10m")
	passes[n-1], spared[n-1] = pass(0, 10*minute), refuse(0, 10*minute, 10*minute)
	s.expect(request, passes...)
	s.expect(request, spared...)
	s.expect(request, spared...)
}

// allAlgorithms are limits of an hour by each algorithm.
var allAlgorithms = []string{
	"10/1h token_bucket", "20/1h max_delay 6m leaky_bucket", "10/1h fixed_window", "10/1h sliding_window", "10/1h sliding_log",
}

func mixedAlgorithms(s *session) {
	s.start = midnight
	s.at(0)
	var request []policy.Bucket
	for _, limit := range allAlgorithms {
		request = append(request, of(limit, bucket(limit, 1)))
	}
	request[4].Rule = rule("2/1h sliding_log")
	const unit, place = 6 * minute, 3 * minute // of the token bucket and in the queue
	s.expect(request, pass(9, unit), pass(2, place), pass(9, hour), pass(9, 2*hour), pass(1, hour))
	s.expect(request, pass(8, 2*unit), queued(1, place, 2*place), pass(8, hour), pass(8, 2*hour), pass(0, hour))
	for range 3 {
		s.expect(request, pass(8, 2*unit), pass(1, 2*place), pass(8, hour), pass(8, 2*hour), refuse(0, hour, hour))
	}
	s.at(hour)
	s.expect(request, pass(9, unit), pass(2, place), pass(9, hour), pass(7, 2*hour), pass(1, hour))
}

func shadowQueue(s *session) {
	request := []policy.Bucket{
		shadow(of("queue", bucket("20/1h max_delay 6m leaky_bucket", 1))),
		of("enforced", bucket("10/1h", 1)),
	}
	const unit, place = 6 * minute, 3 * minute // of the token bucket and in the queue
	s.expect(request, pass(2, place), pass(9, unit))
	s.expect(request, pass(1, 2*place), pass(8, 2*unit))
	s.expect(request, pass(0, 3*place), pass(7, 3*unit))
	s.expect(request, refuse(0, place, 3*place), pass(6, 4*unit))
}

// A look at a bucket of another algorithm leaves it as it is; a charge replaces it.
func changedAlgorithms(s *session) {
	for _, from := range allAlgorithms {
		for _, to := range allAlgorithms {
			if from == to {
				continue
			}
			before, after := of(from+to, bucket(from, 10)), of(from+to, bucket(to, 10))
			look, lookAfter := before, after
			look.Cost, lookAfter.Cost = 0, 0
			full := s.take(before)[0]
			s.expect([]policy.Bucket{lookAfter}, pass(after.Rule.AtOnce, 0))
			s.expect([]policy.Bucket{look}, full)
			if d := s.take(after)[0]; !d.Allowed || d.Remaining != 0 || d.Delay != 0 {
				s.Errorf("%s after %s: got %s, want a bucket never seen", to, from, describe(d))
			}
			s.expect([]policy.Bucket{look}, pass(before.Rule.AtOnce, 0))
		}
	}
}

func noBuckets(s *session) { s.expect(nil) }
