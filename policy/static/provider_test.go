package static_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/policy/static"
)

// loadJSON loads a provider as Caddy loads a guest module: strictly decoded,
// then provisioned.
func loadJSON(t *testing.T, config string) (*static.Provider, error) {
	t.Helper()
	host := struct {
		Raw json.RawMessage `caddy:"namespace=rate_limit.providers inline_key=provider"`
	}{Raw: json.RawMessage(`{"provider":"static",` + strings.TrimPrefix(strings.TrimSpace(config), "{"))}
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	t.Cleanup(cancel)
	module, err := ctx.LoadModule(&host, "Raw")
	if err != nil {
		return nil, err
	}
	return module.(*static.Provider), nil
}

func load(t *testing.T, config string) *static.Provider {
	t.Helper()
	p, err := loadJSON(t, config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func sumOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

func TestJSONGivesAPolicyItsDefaults(t *testing.T) {
	t.Parallel()
	p := load(t, `{"tiers":[{"name":"FREE","policies":[
		{"route":"*","limit":600,"window":"1m"},
		{"route":"/login","methods":["POST"],"limit":5,"window":"1m","burst":0,"algorithm":"","cost":1,"mode":"","on_error":""},
		{"route":"/status","limit":10,"window":1000000000,"burst":50,"cost":0,"mode":"shadow","on_error":"closed"},
		{"route":"/admin","limit":0,"window":"1d"}]}]}`)

	for _, tt := range []struct {
		method, path string
		want         policy.Policy
	}{
		{"GET", "/", policy.Policy{Tier: "FREE", Route: "*", Limit: policy.Limit{Count: 600, Window: time.Minute}, Algorithm: policy.TokenBucket, Cost: 1, Mode: policy.Enforce}},
		{"POST", "/login", policy.Policy{Tier: "FREE", Route: "/login", Methods: []string{"POST"}, Limit: policy.Limit{Count: 5, Window: time.Minute}, Algorithm: policy.TokenBucket, Cost: 1, Mode: policy.Enforce}},
		{"GET", "/status", policy.Policy{Tier: "FREE", Route: "/status", Limit: policy.Limit{Count: 10, Window: time.Second, Burst: 50}, Algorithm: policy.TokenBucket, Cost: 0, Mode: policy.Shadow, OnError: policy.Closed}},
		{"GET", "/admin", policy.Policy{Tier: "FREE", Route: "/admin", Limit: policy.Limit{Count: 0, Window: 24 * time.Hour}, Algorithm: policy.TokenBucket, Cost: 1, Mode: policy.Enforce}},
	} {
		got := p.Snapshot().AppendMatches(nil, policy.Client{Tier: "FREE"}, tt.method, tt.path)
		if len(got) > 0 {
			tt.want.ID = got[0].ID
			if r, err := p.GetPolicy(t.Context(), got[0].ID); err != nil || r.Route != tt.want.Route {
				t.Errorf("the policy that decides has the id %q, which is that of %+v, %v", got[0].ID, r, err)
			}
		}
		if len(got) == 0 || !reflect.DeepEqual(got[0].Policy, tt.want) {
			t.Errorf("%s %s: got %+v, want first %+v", tt.method, tt.path, got, tt.want)
		}
	}
}

func TestAnonymousClientsHaveTheBuiltInCeilingUnlessTheTierIsDefined(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, tiers, want string }{
		{"not defined", `{"name":"FREE","policies":[{"route":"*","limit":600,"window":"1m"}]}`, "30/1m"},
		{"defined", `{"name":"anonymous","policies":[{"route":"*","limit":7,"window":"1m"}]}`, "7/1m"},
	} {
		p := load(t, `{"tiers":[`+tt.tiers+`]}`)
		got := p.Snapshot().AppendMatches(nil, policy.Client{}, "GET", "/")
		if len(got) != 1 || got[0].Rule.Limit.String() != tt.want {
			t.Errorf("%s: got %+v, want one policy of %s", tt.name, got, tt.want)
		}
	}
}

func TestAKeyIsFoundByTheHashOfWhatTheClientPresents(t *testing.T) {
	t.Parallel()
	p := load(t, `{"tiers":[{"name":"PRO","policies":[{"route":"*","limit":600,"window":"1m"}]}],"api_keys":[
		{"name":"acme","sha256":"`+sumOf("acme-key")+`","tier":"PRO"},
		{"name":"globex","sha256":"`+strings.ToUpper(sumOf("globex-key"))+`","tier":"anonymous"}]}`)

	for _, tt := range []struct {
		presented string
		want      policy.APIKey
		known     bool
	}{
		{"acme-key", policy.APIKey{ID: "acme", Tier: "PRO"}, true},
		{"globex-key", policy.APIKey{ID: "globex", Tier: "anonymous"}, true},
		{"ACME-KEY", policy.APIKey{}, false},
		{"acme-key ", policy.APIKey{}, false},
		{"acme", policy.APIKey{}, false},
		{"", policy.APIKey{}, false},
		{sumOf("acme-key"), policy.APIKey{}, false}, // the hash is not the key
	} {
		got, known := p.APIKey(t.Context(), sha256.Sum256([]byte(tt.presented)))
		if got != tt.want || known != tt.known {
			t.Errorf("%q: got %+v, %t, want %+v, %t", tt.presented, got, known, tt.want, tt.known)
		}
	}
}

func TestAProviderWithoutKeysKnowsNone(t *testing.T) {
	t.Parallel()
	p := load(t, `{"tiers":[{"name":"A","policies":[{"route":"*","limit":1,"window":"1s"}]}]}`)
	if k, known := p.APIKey(t.Context(), sha256.Sum256(nil)); known {
		t.Errorf("got %+v, want no key", k)
	}
}

func TestWrongJSONIsRefusedWholeWithItsReason(t *testing.T) {
	t.Parallel()
	const (
		a     = `{"name":"A","policies":[{"route":"*","limit":1,"window":"1s"}]}`
		inA   = `{"tiers":[{"name":"A","policies":[%s]}]}`
		withA = `{"tiers":[` + a + `],"api_keys":[%s]}`
	)
	sum := sumOf("acme-key")
	for _, tt := range []struct{ name, config, want string }{
		{"nothing", `{"tiers":[]}`, `the static provider has no tiers; write at least one, like tier anonymous { policy * 30/1m }`},
		{"an unknown field", `{"tiers":[` + a + `],"cache_ttl":"5s"}`, `json: unknown field "cache_ttl"`},
		{"a tier without a name", `{"tiers":[{"policies":[{"route":"*","limit":1,"window":"1s"}]}]}`, `tier "": a name has 1 to 64 characters, like FREE`},
		{"a tier without policies", `{"tiers":[` + a + `,{"name":"B"}]}`, `tier B has no policies; write at least one, like policy * 600/1m`},
		{"a tier twice", `{"tiers":[` + a + `,` + a + `]}`, `tier A is defined twice; write all its policies in one place`},
		{"no limit", fmt.Sprintf(inA, `{"route":"/x","window":"1s"}`), `tier A: policy /x: limit is missing; write "limit": 100, or "limit": 0 to deny everything`},
		{"no window", fmt.Sprintf(inA, `{"route":"/x","limit":1}`), `tier A: policy /x: limit: window 0s must be positive, like 1s or 1m`},
		{"no route", fmt.Sprintf(inA, `{"limit":1,"window":"1s"}`), `tier A: policy : route is empty; write a path like /orders/*, or * for every route`},
		{"a negative burst", fmt.Sprintf(inA, `{"route":"/x","limit":1,"window":"1s","burst":-1}`), `tier A: policy /x: limit: burst -1 is negative; write a whole number from 1, or leave it out for 1`},
		{"a negative cost", fmt.Sprintf(inA, `{"route":"/x","methods":["GET"],"limit":1,"window":"1s","cost":-1}`), `tier A: policy /x GET: cost -1 is negative; write a whole number from 0`},
		{"an unknown algorithm", fmt.Sprintf(inA, `{"route":"/x","limit":1,"window":"1s","algorithm":"gcra"}`), `tier A: policy /x: unknown algorithm "gcra"; write token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log`},
		{"a route twice", fmt.Sprintf(inA, `{"route":"/x","limit":1,"window":"1s"},{"route":"/X","limit":2,"window":"1s"}`), `tier A: two policies for /x; a route takes one, so merge them or make one route more specific`},
		{"a key without a name", fmt.Sprintf(withA, `{"sha256":"`+sum+`","tier":"A"}`), `api_key "": a name is 1 to 64 printable ASCII characters without spaces, like acme`},
		{"a key without a hash", fmt.Sprintf(withA, `{"name":"acme","tier":"A"}`), `api_key acme: what should be its SHA-256 is not one; write a hash, never the key: hash the key with printf %s "$KEY" | sha256sum and write the 64 hexadecimal digits it prints`},
		{"a key without a tier", fmt.Sprintf(withA, `{"name":"acme","sha256":"`+sum+`"}`), `api_key acme: there is no tier ""; define it, or write one of: A`},
		{"a key's name twice", fmt.Sprintf(withA, `{"name":"acme","sha256":"`+sum+`","tier":"A"},{"name":"acme","sha256":"`+sumOf("other")+`","tier":"A"}`), `api_key acme is defined twice; a second key of one client takes a name of its own, like acme-2`},
		{"a key's hash twice, in other letters", fmt.Sprintf(withA, `{"name":"acme","sha256":"`+sum+`","tier":"A"},{"name":"globex","sha256":"`+strings.ToUpper(sum)+`","tier":"A"}`), `api_key globex has the same hash as api_key acme; give each a key of its own, or delete one`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := loadJSON(t, tt.config)
			if err == nil || !strings.HasSuffix(err.Error(), ": "+tt.want) {
				t.Errorf("got error  %v\nwant, behind Caddy's own words, %s", err, tt.want)
			}
		})
	}
}

func TestManyRequestsMayAskAtOnce(t *testing.T) {
	t.Parallel()
	p := load(t, `{"tiers":[{"name":"A","policies":[{"route":"*","limit":1,"window":"1s"}]}],"api_keys":[{"name":"acme","sha256":"`+sumOf("acme-key")+`","tier":"A"}]}`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			k, known := p.APIKey(t.Context(), sha256.Sum256([]byte("acme-key")))
			if matched := p.Snapshot().AppendMatches(nil, policy.Client{Tier: k.Tier}, "GET", "/"); !known || len(matched) != 1 {
				t.Errorf("got %+v, %t and %d policies, want acme and one policy", k, known, len(matched))
			}
		})
	}
	wg.Wait()
}
