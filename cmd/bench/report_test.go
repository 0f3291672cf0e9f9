package main

import (
	"testing"
	"time"
)

func rates(values ...float64) []sample {
	all := make([]sample, len(values))
	for i, v := range values {
		all[i] = sample{rate: v, p50: time.Millisecond, p99: 2 * time.Millisecond, requests: int64(v), scriptCalls: -1, caddyCPU: time.Duration(v) * 20 * time.Microsecond}
	}
	return all
}

func TestRatiosAreTakenWithinARoundAndTheirMedianIsShown(t *testing.T) {
	t.Parallel()
	// The machine is twice as fast in the last round, which changes no ratio.
	own, bare, yardstick := rates(80, 90, 160), rates(100, 100, 200), rates(80, 100, 200)
	const want = "| x | 90 | 1.00 ms | 2.00 ms | 0.80 | 0.900 (0.800 to 1.000) | 0.95: missed | 2.00 |  |"
	if got := row(benchCase{name: "x", budget: 0.95}, own, bare, yardstick); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	const met = "| x | 90 | 1.00 ms | 2.00 ms | 0.80 | 0.900 (0.800 to 1.000) | 0.90: met | 2.00 |  |"
	if got := row(benchCase{name: "x", budget: 0.9}, own, bare, yardstick); got != met {
		t.Errorf("got\n%s\nwant\n%s", got, met)
	}
}

func TestACaseWithoutAYardstickHasNoRatioToOne(t *testing.T) {
	t.Parallel()
	own := rates(100)
	own[0].scriptCalls, own[0].redisCPU = 50, time.Millisecond
	const want = "| x | 100 | 1.00 ms | 2.00 ms | 1.00 |  |  | 2.00 + 1.00 | 50000 |"
	if got := row(benchCase{name: "x"}, own, own, nil); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTheMedianIsTheMiddleOrTheMeanOfTheTwoThere(t *testing.T) {
	t.Parallel()
	tests := []struct {
		values []float64
		want   float64
	}{
		{[]float64{5, 1, 3}, 3},
		{[]float64{4, 1, 3, 2}, 2.5},
		{[]float64{7}, 7},
		{nil, 0},
	}
	for _, tt := range tests {
		if got := median(tt.values); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestAnswersOfAnotherStatusAreMentioned(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status int
		own    []sample
		want   string
	}{
		{200, []sample{{requests: 10}, {requests: 10}}, ""},
		{200, []sample{{requests: 10, failed: 1}, {requests: 10, failed: 2}}, "x: 3 of 20 answers had another status than 200.\n"},
		{429, []sample{{requests: 10, failed: 10}}, ""},
		{429, []sample{{requests: 10, failed: 9}}, "x: 1 of 10 answers had another status than 429.\n"},
	}
	for _, tt := range tests {
		if got := othersNote(benchCase{name: "x", status: tt.status}, tt.own); got != tt.want {
			t.Errorf("%d, %+v: got %q, want %q", tt.status, tt.own, got, tt.want)
		}
	}
}
