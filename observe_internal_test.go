package ratelimit

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// watched is a request that two zones and a client's policy have decided.
func watched(t testing.TB) (*evaluation, *http.Request) {
	t.Helper()
	s := newSite(t, `
	{
		rate_limit {
			provider static {
				tier anonymous {
					policy * 1000000/1m
				}
			}
		}
	}
	:8080 {
		rate_limit {
			tiers
			zone first {
				limit 1000000/1m
			}
			zone second {
				limit 1000000/1h
			}
		}
	}`)
	r := httptest.NewRequest("GET", "/", nil)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), nil)
	e := newEvaluation(s.h, r)
	if refusal := e.decide(e.observe(r.Context())); refusal != nil {
		t.Fatal(refusal.detail)
	}
	if len(e.report.entries) != 3 {
		t.Fatalf("got %d limits, want 3", len(e.report.entries))
	}
	return e, r
}

// watch does what metrics, the access log, traces and the ranking of clients cost a
// request.
func watch(e *evaluation, r *http.Request) {
	e.observe(r.Context())
	e.first = 0
	e.observed(nil)
	e.report.noted, e.report.logged = false, false
	e.report.noteClient()
}

func TestWatchingARequestAllocatesNothing(t *testing.T) {
	e, r := watched(t)
	watch(e, r) // the first of its kind makes counters
	if n := testing.AllocsPerRun(1000, func() { watch(e, r) }); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkWatch(b *testing.B) {
	e, r := watched(b)
	b.ReportAllocs()
	for b.Loop() {
		watch(e, r)
	}
}
