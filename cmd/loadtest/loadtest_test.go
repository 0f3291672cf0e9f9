package main

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// example is a profile of which every count can be seen.
var example = profile{
	name:   "example",
	shadow: "stricter",
	phases: []phase{
		{want: counts{{"address", allowed}: 2, exempt: 1}},
		{want: counts{{"address", allowed}: 3, {"address", blocked}: 4, {"stricter", allowed}: 5}},
	},
}

func TestCountsReconcileOnlyWhenAllThreeAgree(t *testing.T) {
	t.Parallel()
	client := counts{{"address", allowed}: 5, {"address", blocked}: 4, exempt: 1}
	prometheus := counts{{"address", allowed}: 5, {"address", blocked}: 4, {"stricter", allowed}: 5}
	tests := map[string]struct {
		change func(client, prometheus counts)
		want   bool
	}{
		"all agree":                             {func(_, _ counts) {}, true},
		"the client got one more":               {func(c, _ counts) { c[row{"address", allowed}]++ }, false},
		"the client got one less":               {func(c, _ counts) { c[row{"address", blocked}]-- }, false},
		"the client got something else":         {func(c, _ counts) { c[row{"", "HTTP 503"}]++ }, false},
		"one exempt request is missing":         {func(c, _ counts) { c[exempt]-- }, false},
		"Prometheus has one more":               {func(_, p counts) { p[row{"address", blocked}]++ }, false},
		"Prometheus has nothing":                {func(_, p counts) { clear(p) }, false},
		"Prometheus has another outcome":        {func(_, p counts) { p[row{"address", "allowed_local"}]++ }, false},
		"the shadow, which no client sees, too": {func(_, p counts) { p[row{"stricter", allowed}]-- }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := outcome{profile: example, client: maps.Clone(client), prometheus: maps.Clone(prometheus)}
			tt.change(out.client, out.prometheus)
			if got := out.reconciled(); got != tt.want {
				t.Errorf("reconciled: got %v, want %v; %v", got, tt.want, out.lines())
			}
			var table bytes.Buffer
			if err := report(&table, []outcome{out}); err != nil {
				t.Fatal(err)
			}
			if got := !strings.Contains(table.String(), "WRONG"); got != tt.want {
				t.Errorf("the table says otherwise:\n%s", &table)
			}
		})
	}
}

func TestAnAnswerIsJudgedByWhatItSays(t *testing.T) {
	t.Parallel()
	limited := http.Header{"Ratelimit-Policy": {`"address";q=50;w=60, "FREE *";q=60;w=60`}}
	tests := map[string]struct {
		result vegeta.Result
		want   counts
	}{
		"passed two limits": {vegeta.Result{Code: 200, Headers: limited}, counts{{"address", allowed}: 1, {"FREE *", allowed}: 1}},
		"was not limited":   {vegeta.Result{Code: 200}, counts{exempt: 1}},
		"was refused":       {vegeta.Result{Code: 429, Headers: limited, Body: []byte(`{"policy": "FREE *"}`)}, counts{{"FREE *", blocked}: 1}},
		"has a bad token":   {vegeta.Result{Code: 401, Headers: limited}, counts{{"address", allowed}: 1, {"FREE *", allowed}: 1, {"", invalid}: 1}},
		"was not decided":   {vegeta.Result{Code: 503, Headers: limited}, counts{{"", "HTTP 503"}: 1}},
		"was not answered":  {vegeta.Result{Error: "EOF"}, counts{{"", "no answer: EOF"}: 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(counts)
			for _, r := range judge(&tt.result) {
				got[r]++
			}
			if !maps.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestAPhaseSendsEachRequestAsOftenAsItSays(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := make(map[string]int)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen[r.Header.Get("X-Forwarded-For")+" "+r.URL.Path+" "+r.Header.Get("X-API-Key")]++
	}))
	defer server.Close()
	ph := phase{rate: 10_000, requests: []request{
		{times: 70, address: "10.0.0.1", key: "acme"},
		{times: 30, address: "10.0.0.2", path: "/healthz"},
	}}
	got := make(counts)
	if err := attack(context.Background(), ph, []string{server.URL}, map[string]string{"acme": "tg_1"}, got, new(vegeta.Metrics)); err != nil {
		t.Fatal(err)
	}
	if want := map[string]int{"10.0.0.1 / tg_1": 70, "10.0.0.2 /healthz ": 30}; !maps.Equal(seen, want) {
		t.Errorf("sent %v, want %v", seen, want)
	}
	if want := (counts{exempt: 100}); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

func TestMetricsOfSeveralInstancesAndTiersAreSummed(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`# TYPE caddy_rate_limit_requests_total counter
caddy_rate_limit_requests_total{zone="address",tier="FREE",status="allowed"} 3
caddy_rate_limit_requests_total{zone="address",tier="anonymous",status="allowed"} 4
caddy_rate_limit_requests_total{zone="address",tier="anonymous",status="blocked"} 0
# TYPE something_else counter
something_else{zone="address",status="allowed"} 100
`))
	}))
	defer server.Close()
	got := make(counts)
	for range 2 {
		if err := scrape(context.Background(), server.URL, got); err != nil {
			t.Fatal(err)
		}
	}
	if want := (counts{{"address", allowed}: 14}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A pattern that chooses nothing must not look like a success.
func TestChoosingNoProfileIsAnError(t *testing.T) {
	t.Parallel()
	if _, err := choose(profiles, "no such profile"); err == nil {
		t.Error("no error")
	}
	if chosen, err := choose(profiles, ""); err != nil || len(chosen) != 8 {
		t.Errorf("got %d profiles and %v, want all 8", len(chosen), err)
	}
}
