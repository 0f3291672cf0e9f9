package main

import (
	"testing"
	"time"
)

const wrkReport = `Running 5s test @ http://127.0.0.1:8080/
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   812.45us    1.02ms  21.50ms   93.50%
    Req/Sec    42.50k     2.50k   47.00k    70.00%
  Latency Distribution
     50%  705.00us
     75%    0.98ms
     90%    1.41ms
     99%    5.21ms
  212500 requests in 5.01s, 30.21MB read
Requests/sec:  42415.17
Transfer/sec:      6.03MB
`

const wrkReportOfFailures = `Running 1s test @ http://127.0.0.1:8080/
  1 threads and 32 connections
  Latency Distribution
     50%    1.00s
     75%    1.10s
     90%    1.20s
     99%    1.90s
  77 requests in 1.00s, 1.00MB read
  Socket errors: connect 1, read 2, write 3, timeout 4
  Non-2xx or 3xx responses: 77
Requests/sec:     77.00
Transfer/sec:      1.00MB
`

func TestReportsOfWrkAreRead(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		out  string
		want sample
	}{
		"all answered": {wrkReport, sample{
			rate: 42415.17, p50: 705 * time.Microsecond, p99: 5210 * time.Microsecond, requests: 212500, scriptCalls: -1,
		}},
		"with failures": {wrkReportOfFailures, sample{
			rate: 77, p50: time.Second, p99: 1900 * time.Millisecond, requests: 77, failed: 77, broken: 10, scriptCalls: -1,
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseWrk(tt.out)
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestAnIncompleteReportOfWrkIsAnError(t *testing.T) {
	t.Parallel()
	for _, cut := range []string{"Requests/sec", "     50%", "     99%", "212500 requests"} {
		if got, err := parseWrk(without(wrkReport, cut)); err == nil {
			t.Errorf("without %q: got %+v and no error", cut, got)
		}
	}
}

func TestAMeasurementOfSomethingElseIsAnError(t *testing.T) {
	t.Parallel()
	allowed, refused := benchCase{status: 200}, benchCase{status: 429}
	inRedis := benchCase{status: 200, redis: true}
	tests := []struct {
		name string
		c    benchCase
		s    sample
		ok   bool
	}{
		{"allowed, all passed", allowed, sample{requests: 200, scriptCalls: -1}, true},
		{"allowed, one in a hundred refused", allowed, sample{requests: 200, failed: 2, scriptCalls: -1}, true},
		{"allowed, more refused", allowed, sample{requests: 200, failed: 3, scriptCalls: -1}, false},
		{"refused, all refused", refused, sample{requests: 200, failed: 200, scriptCalls: -1}, true},
		{"refused, one in a hundred passed", refused, sample{requests: 200, failed: 198, scriptCalls: -1}, true},
		{"refused, more passed", refused, sample{requests: 200, failed: 197, scriptCalls: -1}, false},
		{"nothing answered", allowed, sample{scriptCalls: -1}, false},
		{"a connection broke", allowed, sample{requests: 200, broken: 1, scriptCalls: -1}, false},
		{"Redis was asked", inRedis, sample{requests: 200, scriptCalls: 1}, true},
		{"Redis was not asked", inRedis, sample{requests: 200}, false},
	}
	for _, tt := range tests {
		if err := check(tt.c, tt.s); (err == nil) != tt.ok {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
}
