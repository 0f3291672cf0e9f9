package main

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

func TestARowSetsApartWhatWasBeforeTheBreakerOpened(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	o := &outcome{
		fault:  testserver.Fault{Name: "black hole"},
		normal: []sample{{took: time.Millisecond}, {took: time.Millisecond}, {took: 9 * time.Millisecond}},
		opened: at(100),
		samples: []sample{
			{"open", at(0), 51 * time.Millisecond, 200},
			{"closed", at(10), 53 * time.Millisecond, 503},
			{"local", at(20), 41 * time.Millisecond, 200},
			{"closed", at(100), 2 * time.Millisecond, 503},
			{"closed", at(101), time.Millisecond / 2, 0},
		},
		log:      "{\"level\":\"info\",\"msg\":\"serving\"}\n{\"level\":\"error\",\"msg\":\"redis is unavailable; requests are\",\"kind\":\"timeout\"}\n",
		recovery: 300 * time.Millisecond,
	}
	want := "| black hole | 200 | no answer 33.3 %, 503 66.7 % | 200 | error, kind `timeout` | 50.0 ms, 52.0 ms, 52.0 ms | 0.0 ms, 1.0 ms, 1.0 ms | 300.0 ms |"
	if got := o.row(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var table strings.Builder
	if err := report(&table, []*outcome{o}); err != nil || !strings.Contains(table.String(), want) {
		t.Errorf("the table is %s, %v", table.String(), err)
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	list := []time.Duration{1, 2, 3, 4}
	for share, want := range map[float64]time.Duration{0: 1, 0.25: 1, 0.5: 2, 0.51: 3, 0.99: 4, 1: 4} {
		if got := quantile(list, share); got != want {
			t.Errorf("%v of %v is %d, want %d", share, list, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("of nothing it is %d", got)
	}
}
