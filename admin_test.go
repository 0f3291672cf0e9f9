package ratelimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"

	"github.com/caddy-tollgate/ratelimit/internal/jwtauth"

	_ "github.com/caddy-tollgate/ratelimit/policy/embedded"
)

// adminSite is a Caddy in this process: a limited site, and its admin API under
// /admin/. It listens on a socket in a folder of its own.
type adminSite struct {
	t      *testing.T
	client *http.Client
	folder string
	token  string
}

func startAdminSite(t *testing.T) *adminSite {
	t.Helper()
	s := &adminSite{t: t, folder: t.TempDir()}
	socket := filepath.Join(s.folder, "s")
	config, err := adapt(fmt.Sprintf(`{
		admin off
		persist_config off
		storage file_system %s
		rate_limit {
			provider embedded
		}
	}
	http:// {
		bind unix/%s
		handle_path /admin/* {
			rate_limit_admin
		}
		handle {
			rate_limit {
				tiers
			}
			respond "tier {http.rate_limit.tier}"
		}
	}`, filepath.Join(s.folder, "storage"), socket))
	if err != nil {
		t.Fatal(err)
	}
	var c caddy.Config
	if err := json.Unmarshal(config, &c); err != nil {
		t.Fatal(err)
	}
	if err := caddy.Run(&c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
	s.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) },
	}}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

// mint signs a token with the secret that the site has made.
func (s *adminSite) mint(roles ...string) string {
	s.t.Helper()
	secret, err := jwtauth.LoadGeneratedSecret(context.Background(), &certmagic.FileStorage{Path: filepath.Join(s.folder, "storage")})
	if err != nil {
		s.t.Fatal(err)
	}
	token, err := jwtauth.Mint(&jwtauth.Config{Secret: secret}, jwtauth.Grant{Subject: "alice", Roles: roles, TTL: time.Minute}, time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

// do sends a request; headers come as name, value.
func (s *adminSite) do(want int, method, path, body string, headers ...string) (answer map[string]any, header http.Header) {
	s.t.Helper()
	r, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if response.StatusCode != want {
		s.t.Errorf("%s %s: got %d, want %d: %s", method, path, response.StatusCode, want, text)
	}
	_ = json.Unmarshal(text, &answer) // the limited site answers plain text
	return answer, response.Header
}

// The walk of the README: a token, a key, a 429, a raised limit, a 200; under a
// path that the site strips.
func TestAnAdminRaisesALimitAndTheNextRequestPasses(t *testing.T) {
	s := startAdminSite(t)
	if problem, _ := s.do(401, "GET", "/admin/tiers", ""); problem["error"] != "missing_token" {
		t.Errorf("without a token: %v", problem)
	}
	s.token = s.mint("VIEWER")
	s.do(403, "POST", "/admin/tiers", `{"name":"GOLD"}`)
	s.token = "x" + s.mint("ADMIN")
	if _, header := s.do(401, "GET", "/admin/tiers", ""); !strings.Contains(header.Get("WWW-Authenticate"), "invalid_token") {
		t.Errorf("WWW-Authenticate: %q", header.Get("WWW-Authenticate"))
	}
	s.token = s.mint("ADMIN")

	created, header := s.do(201, "POST", "/admin/api-keys", `{"client":"acme","tier":"FREE"}`)
	key := created["key"].(string)
	place := "/admin/" + header.Get("Location")
	for range 60 {
		s.do(200, "GET", "/", "", "X-API-Key", key)
	}
	s.do(429, "GET", "/", "", "X-API-Key", key)
	s.do(200, "PATCH", "/admin/policies/default-free", `{"limit":600}`, "If-Match", "*")
	_, header = s.do(200, "GET", "/", "", "X-API-Key", key)
	if got := header.Get("X-RateLimit-Limit"); got != "600" {
		t.Errorf("X-RateLimit-Limit: got %s", got)
	}

	usage, _ := s.do(200, "GET", place+"/usage", "")
	used := usage["items"].([]any)[0].(map[string]any)["used"].(float64)
	if used < 50 || used > 61 { // some have come back meanwhile
		t.Errorf("61 requests used %v", used)
	}
	s.do(200, "POST", place+"/revoke", "")
	_, header = s.do(200, "GET", "/", "", "X-API-Key", key)
	if got := header.Get("X-RateLimit-Limit"); got != "30" {
		t.Errorf("a revoked key has the limit %s, not that of anonymous clients", got)
	}
}
