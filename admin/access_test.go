package admin_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestWhoMayDoWhat(t *testing.T) {
	t.Parallel()
	s := setup(t)
	id := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201).text("id")
	const missing, torn, none, viewer, adminRole, both = "", "torn", "eve=USER", "eve=VIEWER", "eve=ROLE_ADMIN", "eve=USER,ADMIN"
	tests := []struct {
		method, path, body string
		want               map[string]int // by token
	}{
		{"GET", "/tiers", "", map[string]int{missing: 401, torn: 401, none: 403, viewer: 200, "eve=ROLE_VIEWER": 200, adminRole: 200, both: 200, "later=": 503}},
		{"GET", "/audit", "", map[string]int{missing: 401, none: 403, viewer: 200, adminRole: 200}},
		{"GET", "/explain", "", map[string]int{missing: 401, none: 403, viewer: 200}},
		{"GET", "/api-keys/" + id + "/usage", "", map[string]int{missing: 401, none: 403, viewer: 200}},
		{"DELETE", "/api-keys/" + id + "/usage", "", map[string]int{missing: 401, none: 403, viewer: 403, adminRole: 204}},
		{"POST", "/tiers", `{"name":"SILVER"}`, map[string]int{missing: 401, torn: 401, none: 403, viewer: 403, "eve=admin": 403, "eve=ROLE_VIEWER": 403, adminRole: 201}},
		{"PATCH", "/tiers/FREE", `{"name":"SILVER"}`, map[string]int{missing: 401, viewer: 403}},
		{"DELETE", "/tiers/FREE", "", map[string]int{missing: 401, viewer: 403}},
		{"POST", "/policies", `{}`, map[string]int{missing: 401, viewer: 403}},
		{"POST", "/api-keys", `{}`, map[string]int{missing: 401, viewer: 403}},
		{"POST", "/api-keys/" + id + "/rotate", "", map[string]int{missing: 401, viewer: 403, adminRole: 200}},
		{"POST", "/api-keys/" + id + "/revoke", "", map[string]int{missing: 401, viewer: 403, adminRole: 200}},
		{"GET", "/healthz", "", map[string]int{missing: 200, torn: 200}},
		{"GET", "/openapi.json", "", map[string]int{missing: 200, torn: 200}},
	}
	challenges := map[int]string{
		401: `Bearer realm="rate_limit_admin"`,
		403: `Bearer realm="rate_limit_admin", error="insufficient_scope"`,
	}
	for _, tt := range tests {
		for token, status := range tt.want {
			a := s.as(token).do(tt.method, tt.path, tt.body).want(t, status)
			if got := a.header.Get("WWW-Authenticate"); !strings.HasPrefix(got, challenges[status]) || (got == "") != (challenges[status] == "") {
				t.Errorf("%s %s as %q: WWW-Authenticate is %q", tt.method, tt.path, token, got)
			}
		}
	}
}

func TestWithoutAnIfMatchThatIsCurrentNothingChanges(t *testing.T) {
	t.Parallel()
	s := setup(t)
	key := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201).text("id")
	id := s.do("GET", "/policies?tier=FREE", "").items("id")[0]
	records := map[string]string{"/tiers/FREE": `{"name":"OTHER"}`, "/policies/" + id: `{"limit":1}`, "/api-keys/" + key: `{"client":"other"}`}
	for path, body := range records {
		before := s.do("GET", path, "").want(t, 200)
		for _, method := range []string{"PATCH", "DELETE"} {
			if method == "DELETE" {
				body = ""
			}
			a := s.do(method, path, body).want(t, 428, "If-Match")
			if a.etag() != before.etag() {
				t.Errorf("428 tells the ETag %q, want %q", a.etag(), before.etag())
			}
			for _, wrong := range []string{`"99"`, `"0"`, `W/` + before.etag(), `1`, `"2", "3"`, `"1x"`} {
				if a := s.do(method, path, body, "If-Match", wrong).want(t, 412); a.etag() != before.etag() {
					t.Errorf("412 tells the ETag %q, want %q", a.etag(), before.etag())
				}
			}
		}
		if after := s.do("GET", path, ""); after.body != before.body {
			t.Errorf("%s was %s and is %s", path, before.body, after.body)
		}
	}
	s.do("PATCH", "/policies/"+id, `{"limit":61}`, "If-Match", `"7", "1"`).want(t, 200)
	s.do("PATCH", "/policies/p-nobody", `{"limit":61}`, "If-Match", `"1"`).want(t, 404)
}

func TestWhatIsNotThereIsAProblemToo(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for _, path := range []string{"/", "/nothing", "/tiers/", "//tiers", "/tiers/../policies", "/./tiers", "/tiers/FREE/x", "/docs", "/schemas/Tier"} {
		s.do("GET", path, "").want(t, 404, `"error":"not_found"`)
		s.do("OPTIONS", path, "").want(t, 404)
	}
	tests := []struct{ method, path, allow string }{
		{"PUT", "/tiers", "GET, HEAD, POST, OPTIONS"},
		{"DELETE", "/tiers", "GET, HEAD, POST, OPTIONS"},
		{"POST", "/tiers/FREE", "GET, HEAD, PATCH, DELETE, OPTIONS"},
		{"GET", "/api-keys/k1/rotate", "POST, OPTIONS"},
		{"TRACE", "/audit", "GET, HEAD, OPTIONS"},
		{"get", "/healthz", "GET, HEAD, OPTIONS"},
	}
	for _, tt := range tests {
		a := s.as("").do(tt.method, tt.path, "").want(t, 405, tt.method)
		if got := a.header.Get("Allow"); got != tt.allow {
			t.Errorf("%s %s: Allow is %q, want %q", tt.method, tt.path, got, tt.allow)
		}
		if a := s.as("").do("OPTIONS", tt.path, "").want(t, 204); a.header.Get("Allow") != tt.allow || a.body != "" {
			t.Errorf("OPTIONS %s: Allow is %q, the body %q", tt.path, a.header.Get("Allow"), a.body)
		}
	}
}

func TestHeadAnswersAsGetWithoutABody(t *testing.T) {
	t.Parallel()
	s := setup(t)
	server := httptest.NewServer(s.handler)
	defer server.Close()
	for _, path := range []string{"/tiers", "/tiers/FREE", "/openapi.json", "/healthz", "/tiers/NONE"} {
		var answers [2]*http.Response
		for i, method := range []string{"GET", "HEAD"} {
			r, err := http.NewRequest(method, server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer alice=VIEWER")
			if answers[i], err = http.DefaultClient.Do(r); err != nil {
				t.Fatal(err)
			}
			answers[i].Body.Close()
		}
		if answers[0].StatusCode != answers[1].StatusCode || answers[0].Header.Get("ETag") != answers[1].Header.Get("ETag") ||
			answers[0].Header.Get("Content-Type") != answers[1].Header.Get("Content-Type") {
			t.Errorf("%s: GET %v, HEAD %v", path, answers[0], answers[1])
		}
	}
}

func TestTheAPIWorksUnderAnyPath(t *testing.T) {
	t.Parallel()
	s := setup(t)
	if got := s.document.Servers; len(got) != 1 || got[0].URL != "." {
		t.Errorf("the document names the servers %v, want the place where it stands", got)
	}
	server := httptest.NewServer(http.StripPrefix("/deep/admin", s.handler))
	defer server.Close()
	r, err := http.NewRequest("POST", server.URL+"/deep/admin/tiers", strings.NewReader(`{"name":"GOLD"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer alice=ADMIN")
	created, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer created.Body.Close()
	where, err := created.Location()
	if err != nil || where.Path != "/deep/admin/tiers/GOLD" {
		t.Errorf("the new tier stands at %v (%v)", where, err)
	}
}

func TestNoAnswerMayBeKept(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for _, a := range []*answer{
		s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`), s.do("GET", "/tiers", ""), s.do("GET", "/nothing", ""),
	} {
		if a.header.Get("Cache-Control") != "no-store" || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("the headers are %v", a.header)
		}
	}
}
