package ratelimit

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"github.com/spf13/cobra"

	"github.com/caddy-tollgate/ratelimit/internal/jwtauth"
	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// execute runs a subcommand as the command line does.
func execute(t *testing.T, cmd *cobra.Command, in string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetIn(strings.NewReader(in))
	cmd.SetArgs(args)
	cmd.SilenceErrors = true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// configFile writes a configuration to a file.
func configFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const withProvider = "{\n rate_limit {\n provider static {\n tier anonymous {\n policy * 30/1m\n }\n }\n }\n}\n"

// roles verifies a token as rate_limit_admin does.
func roles(t *testing.T, config *jwtauth.Config, token string) (string, []string, error) {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	v, err := jwtauth.New(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return v.Authenticate(r)
}

func TestTheTokenCommandMakesTokensByTheConfiguration(t *testing.T) {
	t.Setenv("JWT_SECRET", jwtSecret)
	file := configFile(t, withProvider+`:8081 {
	handle_path /admin/* {
		rate_limit_admin {
			jwt {
				secret {env.JWT_SECRET}
				issuer me
				audience admin
				role_claim realm_access.roles
			}
		}
	}
}`)
	out, err := execute(t, tokenCommand(), "", "--config", file, "--role", "ADMIN", "--role", "VIEWER", "--subject", "alice", "--ttl", "1h")
	if err != nil {
		t.Fatal(err)
	}
	subject, granted, err := roles(t, &jwtauth.Config{Secret: jwtSecret, Issuer: "me", Audience: []string{"admin"}, RoleClaim: "realm_access.roles"}, strings.TrimSpace(out))
	if err != nil || subject != "alice" || !slices.Equal(granted, []string{"ADMIN", "VIEWER"}) || strings.Count(out, "\n") != 1 {
		t.Errorf("got %q, which is %q, %q, %v", out, subject, granted, err)
	}
}

func TestTheTokenCommandFindsTheGeneratedSecret(t *testing.T) {
	root := t.TempDir()
	secret, err := jwtauth.GeneratedSecret(t.Context(), &certmagic.FileStorage{Path: root})
	if err != nil {
		t.Fatal(err)
	}
	file := configFile(t, strings.Replace(withProvider, "{\n", "{\n storage file_system "+root+"\n", 1)+":8081 {\n rate_limit_admin\n}\n")
	out, err := execute(t, tokenCommand(), "", "--config", file, "--role", "ADMIN")
	if err != nil {
		t.Fatal(err)
	}
	if subject, _, err := roles(t, &jwtauth.Config{Secret: secret}, strings.TrimSpace(out)); err != nil || subject != "command-line" {
		t.Errorf("got %q, %v", subject, err)
	}
}

func TestTheTokenCommandSaysWhyItMakesNone(t *testing.T) {
	admin := func(jwt string) string { return withProvider + ":8081 {\n rate_limit_admin {\n " + jwt + "\n }\n}\n" }
	secret := admin("jwt {\n secret " + jwtSecret + "\n}")
	for _, c := range []struct {
		name, config string
		args         []string
		want         string
	}{
		{"no role", secret, nil, "write --role ADMIN"},
		{"a role of nobody", secret, []string{"--role", "admin"}, "role admin gives access to nothing; write --role ADMIN"},
		{"no time", secret, []string{"--role", "ADMIN", "--ttl", "0s"}, "ttl 0s is out of range"},
		{"too long", secret, []string{"--role", "ADMIN", "--ttl", "10000h"}, "is out of range"},
		{"nobody", secret, []string{"--role", "ADMIN", "--subject", ""}, "subject is empty"},
		{"key set", admin("jwt {\n jwks https://issuer.example.com/keys\n}"), []string{"--role", "ADMIN"}, "tokens can be minted only from a secret"},
		{"secret that is not set", admin("jwt {\n secret {env.NOT_SET_AT_ALL}\n}"), []string{"--role", "ADMIN"}, "{env.NOT_SET_AT_ALL}"},
		{"no admin API", ":80 {\n rate_limit 1/1s\n}\n", []string{"--role", "ADMIN"}, "has no rate_limit_admin"},
		{"two that differ", admin("") + ":8082 {\n rate_limit_admin {\n jwt {\n secret " + jwtSecret + "\n}\n}\n}\n", []string{"--role", "ADMIN"}, "verify tokens differently"},
		{"mistake in the configuration", ":80 {\n rate_limit\n}\n", []string{"--role", "ADMIN"}, "Caddyfile:2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := execute(t, tokenCommand(), "", append(c.args, "--config", configFile(t, c.config))...)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(out, "Usage") {
				t.Errorf("got %q, %v; want an error with %s", out, err, c.want)
			}
		})
	}
}

func TestTheHashCommandHashesTheFirstLine(t *testing.T) {
	const hash = "c0629be90c7891ee213abc3bf4641d2fd9d15cc12e4595bc05bde060257e257b\n"
	for _, c := range []struct{ name, in, out, err string }{
		{"with a newline", "tollgate-test-key\n", hash, ""},
		{"without one", "tollgate-test-key", hash, ""},
		{"of Windows", "tollgate-test-key\r\n", hash, ""},
		{"with more behind it", "tollgate-test-key\nmore", hash, ""},
		{"nothing", "", "", "there is no key on standard input"},
		{"empty line", "\n", "", "there is no key on standard input"},
		{"space at its end", "tollgate-test-key \n", "", "ends with a space"},
		{"huge", strings.Repeat("x", 1<<20), "", "more than 4096 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := execute(t, hashCommand(), c.in)
			if out != c.out || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %q, %v; want %q, %q", out, err, c.out, c.err)
			}
		})
	}
}

func TestTheMigrateCommandSetsUpTheDatabaseOnce(t *testing.T) {
	database := testserver.NewPostgres(t).NewDatabase(t)
	t.Setenv("DATABASE_URL", database)
	file := configFile(t, "{\n rate_limit {\n provider postgres {env.DATABASE_URL}\n }\n}\n:80 {\n rate_limit {\n tiers\n }\n}\n")
	first, err := execute(t, migrateCommand(), "", "--config", file)
	if err != nil || !strings.HasPrefix(first, "applied migrations [") {
		t.Fatalf("the first time: %q, %v", first, err)
	}
	for _, args := range [][]string{{"--config", file}, {"--dsn", database}, {"--dsn", "{env.DATABASE_URL}"}} {
		if again, err := execute(t, migrateCommand(), "", args...); err != nil || again != "the schema is up to date\n" {
			t.Errorf("%q: %q, %v", args, again, err)
		}
	}
	if _, err := execute(t, migrateCommand(), "", "--config", configFile(t, ":80 {\n rate_limit 1/1s\n}\n")); err == nil || !strings.Contains(err.Error(), "write --dsn postgres://") {
		t.Errorf("without a database: %v", err)
	}
}

func TestTheCheckCommandListsLimitsAndDoubtsNothingGood(t *testing.T) {
	out, err := execute(t, checkCommand(), "", "--strict", "--config", configFile(t, `{
	rate_limit {
		provider static {
			tier anonymous {
				policy * 30/1m
				policy /login POST 5/1m
			}
		}
		zone shared {
			limit 366/366d
		}
	}
}
:80 {
	rate_limit 100/1m
}
:81 {
	rate_limit {
		tiers
		zone shared
		zone key {
			key {header.X-Key}
			limit 10/1s
		}
	}
}`))
	if err != nil || !strings.Contains(out, "Nothing is doubtful.") {
		t.Errorf("it doubts a good configuration: %v\n%s", err, out)
	}
	for _, want := range []string{"backend:  memory\n", "provider: static\n", "anonymous /login POST  5/1m ", "Caddyfile:15", "shared                 366/366d ", "10/1s", "token_bucket", "enforce"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}

func TestTheCheckCommandDoubtsWhatIsOftenAMistake(t *testing.T) {
	zone := func(words string) string { return ":80 {\n rate_limit {\n zone z {\n " + words + "\n }\n }\n}\n" }
	for _, c := range []struct{ name, config, want string }{
		{"no limit at all", ":80 {\n respond hello\n}\n", "no site has rate_limit"},
		{"key of the client's choice", zone("key {header.X-Key}\n limit 5/1s"), "is chosen by the client"},
		{"query of the client's choice", zone("key {query.user}\n limit 5/1s"), "is chosen by the client"},
		{"one bucket for all", zone("key all\n limit 5/1s"), "all clients share one limit"},
		{"key of each request", zone("key {uuid}\n limit 5/1s"), "nobody is limited"},
		{"key of each connection", zone("key {client_ip}{remote_port}\n limit 5/1s"), "nobody is limited"},
		{"placeholder of another module", zone("key {tenant}\n limit 5/1s"), "{tenant} is not Caddy's own"},
		{"placeholder of another module in identify", ":80 {\n rate_limit {\n identify {\n placeholder {geo.asn}\n }\n zone z {\n limit 5/1s\n }\n }\n}\n", "{geo.asn} is not Caddy's own"},
		{"address of a proxy", zone("key {remote_host}\n limit 5/1s"), "{client_ip} is the client's"},
		{"burst above the count", zone("limit 5/1s burst 10"), "as many as 15 can pass within one 1s"},
		{"open", zone("limit 5/1s\n on_error open"), "on_error open lifts the limit"},
		{"open by the handler", ":80 {\n rate_limit 5/1s {\n on_error open\n }\n}\n", "on_error open lifts the limit"},
		{"shadow", zone("limit 5/1s\n mode shadow"), "only counts"},
		{"cost of the client's choice", zone("limit 5/1s\n cost {header.X-Cost}"), "make requests free"},
		{"small memory", "{\n rate_limit {\n backend memory {\n max_keys 100\n }\n }\n}\n" + zone("limit 5/1s"), "max_keys 100 is small"},
		{"provider for nobody", withProvider + zone("limit 5/1s"), "its policies apply nowhere"},
		{"key set without TLS", ":80 {\n rate_limit {\n identify {\n jwt {\n jwks http://192.0.2.1/keys\n}\n}\n zone z {\n limit 5/1s\n }\n }\n}\n", "is read without TLS"},
		{"tokens without a zone by address", ":80 {\n rate_limit {\n identify {\n jwt {\n secret " + jwtSecret + "\n}\n}\n zone z {\n key {http.rate_limit.identity}\n limit 5/1s\n }\n }\n}\n", "bad tokens cost their sender nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := configFile(t, c.config)
			out, err := execute(t, checkCommand(), "", "--config", file)
			if err != nil || strings.Count(out, "\n- ") != 1 || !strings.Contains(out, c.want) {
				t.Errorf("got %v\n%s\nwant one doubt: %s", err, out, c.want)
			}
			if _, err := execute(t, checkCommand(), "", "--strict", "--config", file); !errors.Is(err, errDoubtful) {
				t.Errorf("with --strict: %v", err)
			}
		})
	}
}

func TestTheCheckCommandReportsMistakes(t *testing.T) {
	for _, c := range []struct{ name, config, want string }{
		{"in the Caddyfile", ":80 {\n rate_limit 0.5/1s\n}\n", "Caddyfile:2"},
		{"on loading", ":80 {\n rate_limit {\n identify {\n jwt {\n secret {env.NOT_SET_AT_ALL}\n}\n}\n zone z {\n limit 1/1s\n}\n}\n}\n", "{env.NOT_SET_AT_ALL}"},
	} {
		if out, err := execute(t, checkCommand(), "", "--config", configFile(t, c.config)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
	}
	start := time.Now()
	if _, err := execute(t, checkCommand(), "", "--config", "/nowhere/Caddyfile"); err == nil || time.Since(start) > 10*time.Second {
		t.Errorf("no file: %v", err)
	}
}
