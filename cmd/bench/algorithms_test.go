package main

import (
	"bytes"
	"context"
	"regexp"
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// The smallest row, on a real server: what is timed must have been decided as meant.
func TestAStateIsWeighedAndTimed(t *testing.T) {
	s := testserver.NewRedis(t)
	r := redisServer{url: s.URL(), addr: s.Addr()}
	all, requests, calls := stateCases, storedRequests, timedCalls
	t.Cleanup(func() { stateCases, storedRequests, timedCalls = all, requests, calls })
	stateCases, storedRequests, timedCalls = []stateCase{{policy.SlidingLog, 10}}, 1000, 100
	var out bytes.Buffer
	if err := runAlgorithms(context.Background(), r, &out); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile("(?m)^\\| `sliding_log` of 10 \\| 3\\d\\d \\| \\d{3} \\| [1-9]\\d*\\.\\d µs \\| [1-9]\\d*\\.\\d µs \\|$").MatchString(out.String()) {
		t.Errorf("got %s", &out)
	}
}
