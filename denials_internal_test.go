package ratelimit

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tollgate/ratelimit/memorybackend"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// row is one request of a ledger.
type row struct {
	address string
	cost    string
	status  int
	calls   int32 // of the backend, so far
}

func (s *site) ledger(rows ...row) {
	s.t.Helper()
	for i, r := range rows {
		got := s.request(r.address, "X-Cost", r.cost)
		if got.Code != r.status || s.calls() != r.calls {
			s.t.Errorf("row %d: got %d after %d calls, want %d after %d", i+1, got.Code, s.calls(), r.status, r.calls)
		}
	}
}

func TestABucketThatIsKnownToRefuseIsNotAskedAgain(t *testing.T) {
	s := newSite(t, `
:80 {
	rate_limit {
		zone address {
			limit 5/1d
			cost {http.request.header.X-Cost}
		}
	}
}`)
	s.ledger(
		row{"203.0.113.1", "3", 200, 1},
		row{"203.0.113.1", "3", 429, 2},
		row{"203.0.113.1", "3", 429, 2}, // known
		row{"203.0.113.2", "3", 200, 3}, // another client
		row{"203.0.113.1", "2", 200, 4}, // a cost that fits
		row{"203.0.113.1", "1", 429, 5},
		row{"203.0.113.1", "1", 429, 5}, // known
		row{"203.0.113.1", "3", 429, 6}, // another cost, another wait
		row{"203.0.113.1", "3", 429, 6},
		row{"203.0.113.1", "0", 200, 7}, // a look is never refused
		row{"203.0.113.1", "9", 400, 7},
	)
}

func TestARefusalIsRepeatedForASecondAndThenAskedAgain(t *testing.T) {
	rule := mustRule(t, "1/1h")
	ds := newDenials()
	b := []policy.Bucket{{Identity: "a", Scope: "z", Rule: rule, Cost: 1}}
	ds.remember(b, []policy.Decision{{RetryAfter: time.Hour, ResetAfter: 2 * time.Hour}}, 1000, 3000)
	for _, c := range []struct {
		now   int64
		known bool
		retry time.Duration
	}{
		{4000, true, time.Hour - time.Microsecond},
		{3001, true, time.Hour}, // rounded up
		{1000 + int64(time.Second) - 1, true, time.Hour - time.Second + 3*time.Microsecond},
		{1000 + int64(time.Second), false, 0},
		{int64(2 * time.Hour), false, 0},
	} {
		d, known := ds.find(&b[0], c.now)
		if known != c.known || d.RetryAfter != c.retry || d.Allowed || known != ds.any(c.now) {
			t.Errorf("at %d: got %v, %+v; want %v, retry after %s", c.now, known, d, c.known, c.retry)
		}
	}
	ds.remember(b, []policy.Decision{{RetryAfter: time.Millisecond}}, 1000, 3000)
	for now, want := range map[int64]bool{1_000_000 - 1: true, 1_000_000: false} { // a microsecond early: it may be rounded
		if _, known := ds.find(&b[0], now); known != want {
			t.Errorf("at %d of a refusal until 1001000: known is %v, want %v", now, known, want)
		}
	}
	ds.forget()
	if _, known := ds.find(&b[0], 4000); known {
		t.Error("it is known after all was forgotten")
	}
}

func TestARefusalIsOfOneIdentityScopeRuleAndCostOnly(t *testing.T) {
	rule := mustRule(t, "10/1h")
	ds := newDenials()
	asked := policy.Bucket{Identity: "a", Scope: "z", Rule: rule, Cost: 2}
	ds.remember([]policy.Bucket{asked}, []policy.Decision{{RetryAfter: time.Hour}}, 0, 0)
	for _, c := range []struct {
		name   string
		change func(*policy.Bucket)
		known  bool
	}{
		{"the same", func(*policy.Bucket) {}, true},
		{"an equal rule, as after a change elsewhere", func(b *policy.Bucket) { b.Rule = mustRule(t, "10/1h") }, true},
		{"a raised limit", func(b *policy.Bucket) { b.Rule = mustRule(t, "11/1h") }, false},
		{"a lowered limit", func(b *policy.Bucket) { b.Rule = mustRule(t, "9/1h") }, false},
		{"the same rate in another window", func(b *policy.Bucket) { b.Rule = mustRule(t, "20/2h") }, false},
		{"another client", func(b *policy.Bucket) { b.Identity = "b" }, false},
		{"another zone", func(b *policy.Bucket) { b.Scope = "y" }, false},
		{"identity and scope exchanged", func(b *policy.Bucket) { b.Identity, b.Scope = b.Scope, b.Identity }, false},
		{"a smaller cost", func(b *policy.Bucket) { b.Cost = 1 }, false},
		{"a shadow", func(b *policy.Bucket) { b.Shadow = true }, false},
	} {
		b := asked
		c.change(&b)
		if _, known := ds.find(&b, 1); known != c.known {
			t.Errorf("%s: known is %v, want %v", c.name, known, c.known)
		}
	}
}

// The fixed table holds any number of clients by forgetting some.
func TestTheMemoryOfRefusalsIsBounded(t *testing.T) {
	ds := newDenials()
	rule := mustRule(t, "1/1h")
	for i := range 4 * maxDenials {
		b := []policy.Bucket{{Identity: string(rune('a'+i%26)) + time.Duration(i).String(), Scope: "z", Rule: rule, Cost: 1}}
		ds.remember(b, []policy.Decision{{RetryAfter: time.Hour}}, 0, 0)
		if _, known := ds.find(&b[0], 1); !known {
			t.Fatalf("client %d: the newest refusal is not known", i)
		}
	}
	used := 0
	for i := range ds.table {
		if ds.table[i].Load() != nil {
			used++
		}
	}
	if used < maxDenials*9/10 {
		t.Errorf("only %d of %d slots are used: the hash does not spread", used, maxDenials)
	}
}

func mustRule(t rapid.TB, text string) *policy.Rule {
	l, err := policy.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	rule, err := policy.NewRule(l, policy.TokenBucket)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

// Random histories of clients, costs and latencies are decided twice: by the
// backend alone, and by the backend behind the memory of refusals. The decisions
// are the same, and who is told to wait is not told too little.
func TestKnownRefusalsNeverChangeADecision(t *testing.T) {
	rules := []*policy.Rule{mustRule(t, "3/1s"), mustRule(t, "5/10ms"), mustRule(t, "7/3s"), mustRule(t, "1/1h")}
	rapid.Check(t, func(t *rapid.T) {
		alone, behind := memorybackend.NewStore(100), memorybackend.NewStore(100)
		ds := newDenials()
		now := int64(1_000_000_000)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += rapid.Int64Range(0, 5_000_000).Draw(t, "wait") * rapid.SampledFrom([]int64{0, 1, 100}).Draw(t, "scale")
			client := rapid.IntRange(0, len(rules)-1).Draw(t, "client")
			buckets := []policy.Bucket{
				{Identity: string(rune('a' + client)), Scope: "own", Rule: rules[client], Cost: rapid.Int64Range(0, 1).Draw(t, "cost")},
				{Identity: "*", Scope: "all", Rule: rules[1], Cost: rapid.Int64Range(1, 5).Draw(t, "shared cost")},
			}
			sent := now
			decided := sent + rapid.Int64Range(0, 2_000_000).Draw(t, "way there")
			want, got := make([]policy.Decision, 2), make([]policy.Decision, 2)
			var found [2]bool
			for i := range buckets {
				got[i], found[i] = ds.find(&buckets[i], sent)
			}
			if found[0] || found[1] { // decided here, as the backend would at this time
				decided = sent
			}
			alone.Take(decided/1000, buckets, want)
			for i := range buckets {
				if found[i] && (want[i].Allowed || got[i].RetryAfter < want[i].RetryAfter) {
					t.Fatalf("bucket %d is said to refuse for %s; the backend says %+v", i, got[i].RetryAfter, want[i])
				}
			}
			if found[0] || found[1] {
				continue
			}
			behind.Take(decided/1000, buckets, got)
			now = decided + rapid.Int64Range(0, 2_000_000).Draw(t, "way back")
			if got[0] != want[0] || got[1] != want[1] {
				t.Fatalf("the backend decided %+v alone and %+v behind the memory", want, got)
			}
			if policy.Allowed(buckets, got) {
				ds.outdate(buckets)
			} else {
				ds.remember(buckets, got, sent, now)
			}
		}
	})
}

func TestAReloadWithARaisedLimitTakesEffectAtOnce(t *testing.T) {
	text := `:80 {
	rate_limit {
		zone raised {
			limit 2/1d
		}
	}
}`
	before := newSite(t, text)
	for i, want := range []int{200, 200, 429, 429} {
		if got := before.request("203.0.113.77").Code; got != want {
			t.Fatalf("request %d: %d, want %d", i+1, got, want)
		}
	}
	after := newSite(t, strings.Replace(text, "2/1d", "3/1d", 1))
	after.h.app.backend = before.h.app.backend // as the pool of backends has it
	for i, want := range []int{200, 429} {
		if got := after.request("203.0.113.77").Code; got != want {
			t.Errorf("after the reload, request %d: %d, want %d", i+1, got, want)
		}
	}
}

func TestAKnownRefusalHasTheHeadersOfTheOneThatWasDecided(t *testing.T) {
	s := newSite(t, `
:80 {
	rate_limit {
		zone wide {
			limit 100/1d
		}
		zone tight {
			limit 1/1h
		}
	}
}`)
	s.request("203.0.113.1")
	decided, known := s.request("203.0.113.1"), s.request("203.0.113.1")
	if s.calls() != 2 {
		t.Fatalf("%d calls, want 2", s.calls())
	}
	for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "Retry-After", "RateLimit-Policy"} {
		if d, k := decided.Header().Get(name), known.Header().Get(name); d != k || d == "" {
			t.Errorf("%s is %q when decided and %q when known", name, d, k)
		}
	}
	if got, want := known.Header().Get("RateLimit"), `"tight";r=0;t=3600`; got != want {
		t.Errorf("RateLimit is %q, want %q: what was not asked is not told", got, want)
	}
	if !strings.Contains(known.Body.String(), `"policy":"tight"`) {
		t.Errorf("the body is %s", known.Body)
	}
}
