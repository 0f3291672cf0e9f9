package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tollgate/ratelimit/admin"
	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/memorybackend"
	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestUsageShowsWhatAKeyHasUsedAndAResetForgetsIt(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		id := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201).text("id")
		s.do("POST", "/policies", `{"tier":"FREE","route":"/closed","limit":0,"window":"1m"}`).want(t, 201)
		s.do("POST", "/policies", fmt.Sprintf(`{"api_key_id":%q,"route":"*","limit":100,"window":"1h"}`, id)).want(t, 201)
		client := policy.Client{Identity: policy.KeyIdentity(id), Tier: "FREE", APIKeyID: id}
		for range 3 { // three requests of the key
			ceiling := s.provider.Snapshot().AppendMatches(nil, client, "GET", "/")[0]
			buckets := []policy.Bucket{{Identity: client.Identity, Scope: ceiling.Scope, Rule: ceiling.Rule, Cost: 1}}
			s.backend.Take(memorybackend.Now(), buckets, make([]policy.Decision, 1))
		}
		path := "/api-keys/" + id + "/usage"
		want := map[string][2]float64{"api_key " + id + " *": {3, 97}, "FREE /closed": {0, 0}} // used, remaining
		for range 2 {                                                                          // looking takes nothing
			items := s.do("GET", path, "").want(t, 200, `"tier":"FREE"`).json["items"].([]any)
			if len(items) != len(want) {
				t.Errorf("got %v", items)
			}
			for _, item := range items {
				u := item.(map[string]any)
				if got := [2]float64{u["used"].(float64), u["remaining"].(float64)}; got != want[u["policy"].(string)] {
					t.Errorf("%s: used and remaining are %v", u["policy"], got)
				}
			}
		}
		s.do("DELETE", path, "").want(t, 204)
		if forgot := []string{policy.KeyIdentity(id) + " global"}; !slices.Equal(s.backend.forgot, forgot) {
			t.Errorf("forgot %q, want %q", s.backend.forgot, forgot)
		}
		audit := s.do("GET", "/audit?limit=1", "").want(t, 200, `"action":"reset_usage"`, `"actor":"alice"`, `"key":"`+id+`"`, `"used":3`)
		if !strings.Contains(audit.body, `"after":null`) {
			t.Errorf("audit: %s", audit.body)
		}
		s.do("GET", "/api-keys/k1/usage", "").want(t, 404)
		s.do("DELETE", "/api-keys/k1/usage", "").want(t, 404)
		s.backend.mu.Lock()
		s.backend.down = true
		s.backend.mu.Unlock()
		a := s.do("GET", path, "").want(t, 503)
		if strings.Contains(a.body, "10.1.2.3") || a.header.Get("Retry-After") == "" {
			t.Errorf("an outage is answered with %s and Retry-After %q", a.body, a.header.Get("Retry-After"))
		}
		health := s.do("GET", "/healthz", "")
		if health.status != 503 || health.text("backend") != "unavailable" || strings.Contains(health.body, "10.1.2.3") {
			t.Errorf("health: %d %s", health.status, health.body)
		}
	})
}

// What an unused key has used is nothing, by whatever algorithm it is counted, and
// what is left is all that can be had at once.
func TestAnUnusedKeyHasUsedNothing(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		id := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201).text("id")
		for i, tt := range []struct {
			limit string
			most  int64
		}{
			{`"limit":36000,"window":"1h","algorithm":"leaky_bucket","max_delay":"2s"`, 21},
			{`"limit":60,"window":"1m","algorithm":"leaky_bucket"`, 1},
			{`"limit":6,"window":"1m","algorithm":"leaky_bucket","max_delay":"30s"`, 4},
			{`"limit":6,"window":"1m","algorithm":"token_bucket","burst":11`, 11},
			{`"limit":6,"window":"1m","algorithm":"sliding_log"`, 6},
			{`"limit":6,"window":"1m","algorithm":"sliding_window"`, 6},
			{`"limit":6,"window":"1m","algorithm":"fixed_window"`, 6},
		} {
			s.do("POST", "/policies", fmt.Sprintf(`{"tier":"FREE","route":"/%d",%s}`, i, tt.limit)).want(t, 201)
			usage := s.do("GET", "/api-keys/"+id+"/usage", "").want(t, 200)
			want := fmt.Sprintf(`"limit":%d,"used":0,"remaining":%d,`, tt.most, tt.most)
			if !strings.Contains(usage.body, want) {
				t.Errorf("%s: usage lacks %s: %s", tt.limit, want, usage.body)
			}
		}
	})
}

// explained lists the names of the policies that apply.
func (a *answer) explained() (names []string) {
	policies, _ := a.json["policies"].([]any)
	for _, p := range policies {
		if m := p.(map[string]any); m["applies"] == true {
			names = append(names, m["name"].(string))
		}
	}
	return names
}

func TestExplainSaysWhatRequestsAreDecidedBy(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		id := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201).text("id")
		s.do("POST", "/policies", `{"tier":"FREE","route":"/login","methods":["POST"],"limit":5,"window":"1m"}`).want(t, 201)
		tests := []struct {
			query, says string
			want        []string
		}{
			{"api_key_id=" + id + "&method=POST&path=/login", "counted by its API key", []string{"FREE /login POST", "FREE *"}},
			{"api_key_id=" + id + "&method=POST&path=/x/../LOGIN", `"path":"/login"`, []string{"FREE /login POST", "FREE *"}},
			{"api_key_id=" + id + "&method=GET&path=/login", "is only for POST", []string{"FREE *"}},
			{"api_key_id=" + id, `"method":"GET","path":"/"`, []string{"FREE *"}},
			{"path=/login", "no API key", []string{"anonymous *"}},
		}
		for _, tt := range tests {
			a := s.do("GET", "/explain?"+tt.query, "").want(t, 200, tt.says)
			if got := a.explained(); !slices.Equal(got, tt.want) {
				t.Errorf("%s: %q apply, want %q", tt.query, got, tt.want)
			}
		}
		// a tier may be without a ceiling; whoever asks is told so
		s.do("GET", "/explain?api_key_id="+id, "").want(t, 200, `"limited":true`)
		s.do("DELETE", "/policies/default-free", "", "If-Match", "*").want(t, 204)
		s.do("GET", "/explain?api_key_id="+id+"&method=POST&path=/login", "").want(t, 200, `"limited":true`)
		s.do("GET", "/explain?api_key_id="+id, "").want(t, 200, `"limited":false`)
		s.do("POST", "/api-keys/"+id+"/revoke", "").want(t, 200)
		a := s.do("GET", "/explain?api_key_id="+id, "").want(t, 200, "revoked", `"tier":"anonymous"`)
		if got := a.explained(); !slices.Equal(got, []string{"anonymous *"}) {
			t.Errorf("to a revoked key apply %q", got)
		}
		s.do("GET", "/explain?api_key_id=k1", "").want(t, 404, "k1")
		s.do("GET", "/explain?method=get", "").want(t, 422).wantField(t, "method")
	})
}

func TestAProviderThatOnlyReadsIsShownAndNotChanged(t *testing.T) {
	t.Parallel()
	config, err := json.Marshal(map[string]any{
		"tiers": []any{
			map[string]any{"name": "anonymous", "policies": []any{map[string]any{"route": "*", "limit": 5, "window": "1m"}}},
			map[string]any{"name": "FREE", "policies": []any{
				map[string]any{"route": "*", "limit": 20, "window": "1m"},
				map[string]any{"route": "/login", "methods": []string{"POST"}, "limit": 3, "window": "1m"},
			}},
		},
		"api_keys": []any{map[string]any{"name": "acme", "sha256": hexHash("a key"), "tier": "FREE"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, loadProvider(t, "static", string(config), t.TempDir()), "static")
	if got := s.do("GET", "/tiers", "").want(t, 200).items("name"); !slices.Equal(got, []string{"FREE", "anonymous"}) {
		t.Errorf("tiers: %q", got)
	}
	ids := s.do("GET", "/policies?tier=FREE", "").want(t, 200).items("id")
	if len(ids) != 2 || len(s.do("GET", "/policies", "").items("id")) != 3 {
		t.Fatalf("policies of FREE: %q", ids)
	}
	one := s.do("GET", "/policies/"+ids[0], "").want(t, 200, `"tier":"FREE"`)
	s.do("GET", "/api-keys/acme", "").want(t, 200, `"client":"acme"`)
	s.do("GET", "/api-keys/acme/usage", "").want(t, 200, "FREE *")
	s.do("GET", "/explain?api_key_id=acme&method=POST&path=/login", "").want(t, 200, "FREE /login POST")
	s.do("GET", "/audit", "").want(t, 200, `"items":[]`)
	for _, path := range []string{"/tiers/NONE", "/policies/none", "/api-keys/none"} {
		s.do("GET", path, "").want(t, 404)
	}
	for _, request := range []string{"POST /tiers", "POST /policies", "POST /api-keys", "PATCH /tiers/FREE", "DELETE /policies/" + ids[0], "POST /api-keys/acme/rotate"} {
		method, path, _ := strings.Cut(request, " ")
		s.do(method, path, "", "If-Match", one.etag()).want(t, 409, `"error":"read_only"`, "provider static only reads")
		s.as("eve=VIEWER").do(method, path, "").want(t, 403)
	}
	s.do("DELETE", "/api-keys/acme/usage", "").want(t, 204)
	if got := pages(s, "/tiers?limit=1"); !slices.Equal(got, []string{"FREE", "anonymous"}) {
		t.Errorf("tiers one by one: %q", got)
	}
}

// pages reads a list of names part by part.
func pages(s *service, path string) (names []string) {
	for next := path; next != ""; {
		a := s.do("GET", next, "").want(s.t, 200)
		names = append(names, a.items("name")...)
		next = ""
		if cursor := a.text("next_cursor"); cursor != "" && len(names) < 100 {
			next = path + "&cursor=" + cursor
		}
	}
	return names
}

// Optimistic locking: each of 20 admins raises the limit by one, reading again
// when somebody else was faster.
func TestTwentyAdminsAtOnceLoseNoChange(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		path := "/policies/" + s.do("GET", "/policies?tier=FREE", "").items("id")[0]
		var admins sync.WaitGroup
		for i := range 20 {
			admins.Go(func() {
				mine := s.as(fmt.Sprintf("admin%d=ADMIN", i))
				for {
					now := mine.do("GET", path, "")
					body := fmt.Sprintf(`{"limit":%d}`, int(now.json["limit"].(float64))+1)
					a := mine.do("PATCH", path, body, "If-Match", now.etag())
					if a.status == 200 {
						return
					}
					if a.status != 412 {
						t.Errorf("status %d: %s", a.status, a.body)
						return
					}
				}
			})
		}
		admins.Wait()
		s.do("GET", path, "").want(t, 200, `"limit":80`, `"version":21`)
		actors := make(map[string]int)
		for _, actor := range s.do("GET", "/audit?limit=200", "").items("actor") {
			actors[actor]++
		}
		if len(actors) != 20 {
			t.Errorf("the audit has the changes of %v", actors)
		}
	})
}

func TestTheSameIdempotencyKeyAtOnceMakesOneKey(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		var mu sync.Mutex
		keys := make(map[string]int)
		var requests sync.WaitGroup
		for range 10 {
			requests.Go(func() {
				a := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`, "Idempotency-Key", "the same")
				mu.Lock()
				defer mu.Unlock()
				keys[a.text("key")]++
			})
		}
		requests.Wait()
		if len(keys) != 1 || keys[""] > 0 {
			t.Errorf("got the keys %v", keys)
		}
	})
}

func TestRevokingAtOnceWithOtherChangesSucceeds(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		path := "/api-keys/" + s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201).text("id")
		var requests sync.WaitGroup
		for range 5 {
			requests.Go(func() { s.do("POST", path+"/revoke", "").want(t, 200) })
		}
		requests.Wait()
		if n := strings.Count(strings.Join(s.do("GET", "/audit", "").items("action"), " "), "revoke"); n != 1 {
			t.Errorf("the audit has %d revocations", n)
		}
	})
}

// hasty is a store where somebody else is faster for the next so many changes of a
// key.
type hasty struct {
	admin.Store
	times int
}

func (h *hasty) UpdateKey(ctx context.Context, c policy.Change, k policy.KeyRecord) (policy.KeyRecord, error) {
	if h.times--; h.times >= 0 {
		return k, policy.ErrConflict
	}
	return h.Store.UpdateKey(ctx, c, k)
}

func TestARevocationIsTriedAgainUnlessItNamesAVersion(t *testing.T) {
	t.Parallel()
	s := setup(t)
	store := &hasty{Store: s.provider.(admin.Store)}
	s.handler = admin.New(admin.Settings{Provider: store, ProviderName: "embedded", Authenticator: tokens{}, Logger: zap.NewNop()})
	tests := []struct {
		times   int
		ifMatch string
		want    int
	}{
		{3, "", 200}, {3, "*", 200}, {1, `"1"`, 412}, {1000, "", 412},
	}
	for _, tt := range tests {
		store.times = 0
		path := "/api-keys/" + s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201).text("id")
		store.times = tt.times
		s.do("POST", path+"/revoke", "", "If-Match", tt.ifMatch).want(t, tt.want)
	}
}

// A backend that can only take is managed all the same, without usage.
func TestABackendThatCannotShowOrForgetSaysSo(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		id := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201).text("id")
		s.handler = admin.New(admin.Settings{Provider: s.provider, ProviderName: "embedded", Authenticator: tokens{}, Logger: zap.NewNop()})
		s.do("GET", "/api-keys/"+id+"/usage", "").want(t, 501, `"error":"not_implemented"`)
		s.do("DELETE", "/api-keys/"+id+"/usage", "").want(t, 501, `"error":"not_implemented"`)
		s.do("GET", "/top", "").want(t, 501, `"error":"not_implemented"`)
		s.do("GET", "/healthz", "").want(t, 200, `"backend":"ok"`)
	})
}

// What cannot be reached is said to be unavailable, without its address, and the
// log says more.
func TestAStoreThatIsDownIsAnsweredWithoutDetails(t *testing.T) {
	t.Parallel()
	server := testserver.NewPostgres(t)
	config, err := json.Marshal(map[string]any{"dsn": server.NewDatabase(t), "max_connections": 4})
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, "postgres", string(config))
	core, logs := observer.New(zap.ErrorLevel)
	s.handler = admin.New(admin.Settings{Provider: s.provider, ProviderName: "postgres", Authenticator: tokens{}, Logger: zap.New(core)})
	server.Kill()
	_, port, _ := strings.Cut(server.Addr(), ":")
	for _, request := range []string{"GET /tiers", "GET /tiers/FREE", "GET /policies", "GET /api-keys", "GET /audit", "POST /tiers"} {
		method, path, _ := strings.Cut(request, " ")
		body := ""
		if method == "POST" {
			body = `{"name":"GOLD"}`
		}
		before := logs.Len()
		a := s.do(method, path, body)
		a.want(t, 503, `"error":"unavailable"`)
		if strings.Contains(a.body, "127.0.0.1") || strings.Contains(a.body, port) || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %s with Retry-After %q", request, a.body, a.header.Get("Retry-After"))
		}
		if logs.Len() == before {
			t.Errorf("%s: nothing was logged", request)
		}
	}
	s.do("GET", "/explain?method=GET&path=/", "").want(t, 200, "anonymous *") // decided by what is known
}
