package redisbackend_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

func provisionError(t *testing.T, b *redisbackend.Backend) string {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	err := b.Provision(ctx)
	defer func() { _ = b.Cleanup() }()
	if err == nil {
		t.Errorf("%+v was accepted", b)
		return ""
	}
	return err.Error()
}

// What a Caddyfile refuses, JSON is refused, too, and so is what comes out of
// placeholders.
func TestAWrongSettingFailsTheLoad(t *testing.T) {
	t.Setenv("TOLLGATE_EMPTY", "")
	t.Setenv("TOLLGATE_URL", "http://s3cret@localhost")
	t.Setenv("TOLLGATE_BRACES", "a{b}")
	for _, tt := range []struct {
		b    redisbackend.Backend
		want string
	}{
		{redisbackend.Backend{Timeout: -1}, "timeout -1ns is out of range; write a duration from 1ms to 10s, like 50ms"},
		{redisbackend.Backend{Timeout: caddy.Duration(time.Minute)}, "timeout 1m0s is out of range"},
		{redisbackend.Backend{DB: -1}, "db -1 is negative; write the number of a database, like 0"},
		{redisbackend.Backend{MaxConnections: -1}, "max_connections -1 is out of range; write a number from 1 to 10000, like 8"},
		{redisbackend.Backend{URLs: []string{""}}, "url \"\" has no scheme"},
		{redisbackend.Backend{URLs: []string{"{env.TOLLGATE_EMPTY}"}}, "url: evaluated placeholder {env.TOLLGATE_EMPTY} is empty; set it, or write the value itself"},
		{redisbackend.Backend{Password: "{env.TOLLGATE_EMPTY}"}, "password: evaluated placeholder {env.TOLLGATE_EMPTY} is empty"},
		{redisbackend.Backend{Password: "{file./no/such/file}"}, "password: evaluated placeholder {file./no/such/file} is empty"},
		{redisbackend.Backend{Username: "{no.such.placeholder}"}, "username: unrecognized placeholder {no.such.placeholder}"},
		{redisbackend.Backend{KeyPrefix: "{env.TOLLGATE_BRACES}"}, "key_prefix \"a{b}\": spaces and braces have a meaning in keys"},
		{redisbackend.Backend{URLs: []string{"{env.TOLLGATE_URL}"}}, "url \"http://***@localhost\": unknown scheme;"},
		{redisbackend.Backend{URLs: []string{"redis://a:b@localhost"}, Password: "c"}, "url \"redis://***@localhost\" names other credentials"},
		{
			redisbackend.Backend{URLs: []string{"redis://:s3cret@a", "rediss://:s3cret@b"}},
			"url \"rediss://***@b\" beside \"redis://***@a\": one is encrypted and the other is not; write all with rediss://, or all with redis://",
		},
		{redisbackend.Backend{URLs: []string{"rediss://a", "rediss://b", "redis://c"}}, "url \"redis://c\" beside \"rediss://a\": one is encrypted"},
		{redisbackend.Backend{Sentinel: "m", URLs: []string{"rediss://a", "redis://b"}}, "url \"redis://b\" beside \"rediss://a\": one is encrypted"},
		{redisbackend.Backend{TLS: &redisbackend.TLS{CA: "/no/such/ca.pem"}}, "tls ca: open /no/such/ca.pem: no such file or directory; write the path of a PEM file"},
		{redisbackend.Backend{TLS: &redisbackend.TLS{CA: "settings_test.go"}}, "tls ca: the file holds no certificate; write the path of a PEM file"},
		{redisbackend.Backend{TLS: &redisbackend.TLS{Cert: "settings_test.go", Key: "settings_test.go"}}, "tls cert and key: tls: failed to find any PEM data"},
	} {
		got := provisionError(t, &tt.b)
		if !strings.HasPrefix(got, "backend redis: "+tt.want) {
			t.Errorf("%+v:\n got %s\nwant backend redis: %s", tt.b, got, tt.want)
		}
		if strings.Contains(got, "s3cret") {
			t.Errorf("a secret is in %s", got)
		}
	}
}

func TestPlaceholdersAreReplacedFromTheEnvironmentAndFromFiles(t *testing.T) {
	s := testserver.NewRedis(t, "--requirepass", "open/sesame")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("open/sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TOLLGATE_URL", s.URL())
	b := provision(t, &redisbackend.Backend{URLs: []string{"{env.TOLLGATE_URL}"}, Timeout: patient, Password: "{file." + secret + "}"})
	mustTake(t, b, bucket(t, "ip", "10/1m"))
	if b.URLs[0] != "{env.TOLLGATE_URL}" {
		t.Errorf("the configuration itself was changed to %s", b.URLs[0])
	}
}

func TestSecretsInURLsAreMasked(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"redis://localhost":          "redis://localhost",
		"redis://u:p@localhost/1":    "redis://***@localhost/1",
		"redis://:p@ss@localhost":    "redis://***@localhost",
		"redis://:a/b?c#d@localhost": "redis://***@localhost",
		"u:p@localhost":              "***@localhost",
		"redis://:s3cret":            "redis://***", // an address is missing
		"redis://u:s3cret/0":         "redis://***",
		"redis://u@h:6379?x=s3cret":  "redis://***@h:6379?***",
		"u:s3://cret@localhost":      "***://***@localhost",
		"localhost,password=s3cret":  "***",
		"s3@cret":                    "***@***",
		"unix:///run/redis.sock":     "unix:///run/redis.sock",
		"rediss://[::1]:6379/2":      "rediss://[::1]:6379/2",
		"":                           "",
	} {
		if got := redisbackend.MaskURL(raw); got != want {
			t.Errorf("%q is masked as %q, not %q", raw, got, want)
		}
	}
}
