package integration_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// secretSite tells as much as it can: all logs at their lowest level, access logs, spans. Its
// filters are those that the README asks for.
const secretSite = `
{
	log {
		level DEBUG
		` + secretFilter + `
	}
	rate_limit {
		backend redis {env.REDIS_URL} {
			password {env.REDIS_PASSWORD}
			timeout 10s
		}
		provider postgres {env.DATABASE_URL} {
			lookup_timeout 10s
		}
	}
}
:{$PORT} {
	log {
		` + secretFilter + `
	}
	tracing {
		span site
	}
	rate_limit {
		identify {
			jwt {
				secret {env.CLIENT_SECRET}
			}
			api_key header X-API-Key
			api_key query api_key
			api_key cookie session
			placeholder {header.X-Session}
		}
		tiers
		zone sessions {
			key {header.X-Session}{cookie.session}{query.api_key}
			limit 3/1d
		}
	}
	route /private {
		basic_auth {
			bob $2a$04$sGh9vbA.TA2kyoEwXezvLOmNX4PLs1uaNy9iqSSzFBJrfksgwJjTy
		}
		rate_limit {http.auth.user.id}{header.Authorization} 2/1d private
	}
	respond "welcome"
	handle_errors {
		respond "{err.message}" {err.status_code}
	}
}
:{$PORT2} {
	log {
		` + secretFilter + `
	}
	rate_limit_admin {
		jwt {
			secret {env.ADMIN_SECRET}
		}
	}
}`

const secretFilter = `format filter {
			request>headers>X-Api-Key delete
			request>headers>X-Session delete
			request>headers>Idempotency-Key delete
			request>uri query {
				replace api_key REDACTED
			}
		}`

// secrets are what must stand nowhere, by what they are.
type secrets map[string]string

// found lists the secrets that stand in a text, whole or in halves.
func (s secrets) found(text string) (names []string) {
	for name, secret := range s {
		half := len(secret) / 2
		if strings.Contains(text, secret[:half]) || strings.Contains(text, secret[half:]) {
			names = append(names, name)
		}
	}
	return names
}

// One run with every kind of secret in it, refusals, mistakes and an outage; then everything is
// searched that Tollgate writes, answers or stores. Only the answers to making and rotating a key hold it.
func TestNoSecretStandsAnywhere(t *testing.T) {
	t.Parallel()
	server, database, receiver := testserver.NewRedis(t), testserver.NewPostgres(t), newTraces(t)
	s := secrets{
		"Redis password":    "redis-Zr5wKq8nTgVb2LxY",
		"Postgres password": "postgres-Jh7mQd4cRfNs9PuE",
		"client secret":     "clients-Wt6yBz3kMvXa8HjL-Wt6yBz3kMvXa8HjL",
		"admin secret":      "admins-Gn2sCf9pUqEr5DoK-Gn2sCf9pUqEr5DoK",
		"made-up key":       "tg_made-up-Xb4vTn8wLzRy1GkQ",
		"session":           "session-Pc3jHs7dYmKu6FaW",
		"password":          "bob:hiccup-Eq9rVt2xNbJg5ZoM",
		"idempotency key":   "idempotency-Ld8kWy4uSfCi7TpB",
		"key sent as hash":  "tg_misplaced-Vu6gPx2mQeHn9RsA",
	}
	if err := server.Do("CONFIG SET requirepass " + s["Redis password"]); err != nil {
		t.Fatal(err)
	}
	monitor := monitored(t, server, s["Redis password"])
	c := startCaddy(t, secretSite, append(receiver.env(),
		"REDIS_URL="+server.URL(), "REDIS_PASSWORD="+s["Redis password"],
		"DATABASE_URL="+strings.Replace(database.NewDatabase(t), "@", ":"+s["Postgres password"]+"@", 1),
		"CLIENT_SECRET="+s["client secret"], "ADMIN_SECRET="+s["admin secret"])...)

	outputs := c.manageWithSecrets(s)
	outputs["answers to clients"] = c.callWithSecrets(s)
	outputs["rows of Postgres"] = allRows(t, c.getenv("DATABASE_URL"))
	for _, path := range []string{"/config/", "/metrics"} {
		outputs["Caddy's endpoint "+path] = bodyOf(t, c.admin, "http://localhost"+path)
	}
	eventually(t, "Redis has seen the sessions", func() bool { return strings.Contains(monitor.String(), "sessions") })
	server.Kill()
	database.Stop()
	eventually(t, "the outage is told", func() bool {
		outputs["answers in an outage"] += c.callWithSecrets(s)
		return len(c.log.lines(`"name":"rate_limit.backend_down"`)) > 0 && len(c.log.lines(`"level":"error"`, "redis")) > 0
	})
	c.stop()
	outputs["log"], outputs["commands of Redis"], outputs["spans"] = c.log.String(), monitor.String(), receiver.all()

	for _, where := range []string{"log", "commands of Redis", "spans", "rows of Postgres"} {
		if len(outputs[where]) < 1000 {
			t.Errorf("%s: only %q was recorded", where, outputs[where])
		}
	}
	for where, text := range outputs {
		for _, name := range s.found(text) {
			t.Errorf("the %s stands in: %s", name, where)
		}
	}
}

// manageWithSecrets lets an admin do everything, and adds the keys that are made to the secrets.
// It returns what was answered, without the two answers that show a key.
func (c *caddy) manageWithSecrets(s secrets) map[string]string {
	claims := jwt.MapClaims{"sub": "alice", "roles": []string{"ADMIN"}, "exp": time.Now().Add(time.Hour).Unix()}
	token := signed(c.t, jwt.SigningMethodHS256, []byte(s["admin secret"]), claims, nil)
	m := &manager{c.at("tcp", c.addr2()), bearer(token)}
	s["admin's token"] = token
	m.do(201, "POST", "/tiers", `{"name": "SECRET"}`)
	m.do(201, "POST", "/policies", `{"tier": "SECRET", "route": "*", "limit": 5, "window": "1d"}`)
	made := shownKey(c.t, m.do(201, "POST", "/api-keys", `{"client": "acme", "tier": "SECRET"}`, with("Idempotency-Key", s["idempotency key"])))
	rotated := shownKey(c.t, m.do(200, "POST", "/api-keys/"+made.ID+"/rotate", `{"grace": "24h"}`))
	s["API key"], s["API key before"] = rotated.Key[3:], made.Key[3:]
	answers := map[string]string{}
	for _, ask := range []struct{ verb, path, body string }{
		{"GET", "/api-keys", ""},
		{"GET", "/api-keys/" + made.ID, ""},
		{"GET", "/api-keys/" + made.ID + "/usage", ""},
		{"GET", "/explain?path=/&method=GET&api_key_id=" + made.ID, ""},
		{"GET", "/policies", ""},
		{"GET", "/tiers", ""},
		{"GET", "/audit", ""},
		{"GET", "/top", ""},
		{"GET", "/healthz", ""},
		{"GET", "/openapi.json", ""},
		{"POST", "/api-keys", `{"client": "acme", "tier": "SECRET", "sha256": "` + s["key sent as hash"] + `"}`},
		{"POST", "/api-keys", `{"client": "acme", "tier": "SECRET", "key": "` + s["key sent as hash"] + `"}`},
	} {
		a, err := m.ask(ask.verb, ask.path, ask.body)
		if err != nil {
			c.t.Fatal(err)
		}
		answers[ask.verb+" "+ask.path] += fmt.Sprint(a.header, a.body)
	}
	forged, err := m.try("/tiers", bearer(token[:len(token)-4]+"AAAA"))
	if err != nil || forged.status != 401 {
		c.t.Errorf("a forged token: got %d, %v", forged.status, err)
	}
	answers["a forged token"] = fmt.Sprint(forged.header, forged.body)
	return answers
}

type shown struct{ ID, Key string }

func shownKey(t *testing.T, a answer) (k shown) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), &k); err != nil || len(k.Key) < 20 {
		t.Fatalf("no key in %q: %v", a.body, err)
	}
	return k
}

// callWithSecrets has clients tell every secret of theirs, past their limits, and returns what
// they are answered.
func (c *caddy) callWithSecrets(s secrets) string {
	if s["client's token"] == "" {
		claims := jwt.MapClaims{"sub": "acme", "tier": "FREE", "exp": time.Now().Add(time.Hour).Unix()}
		s["client's token"] = signed(c.t, jwt.SigningMethodHS256, []byte(s["client secret"]), claims, nil)
	}
	token := s["client's token"]
	key, old := "tg_"+s["API key"], "tg_"+s["API key before"]
	basic := base64.StdEncoding.EncodeToString([]byte(s["password"]))
	s["password in its code"] = basic
	var answers strings.Builder
	for _, call := range []struct {
		path    string
		options []option
	}{
		{"/", []option{with("X-API-Key", key)}},
		{"/", []option{with("X-API-Key", old)}},
		{"/?api_key=" + key, nil},
		{"/", []option{with("Cookie", "session="+key)}},
		{"/", []option{with("X-API-Key", s["made-up key"])}},
		{"/?api_key=" + s["made-up key"], nil},
		{"/", []option{with("Cookie", "session="+s["made-up key"])}},
		{"/", []option{bearer(token)}},
		{"/", []option{bearer(token[:len(token)-4] + "AAAA")}},
		{"/", []option{bearer(key)}},
		{"/", []option{with("X-Session", s["session"])}},
		{"/private", []option{with("Authorization", "Basic "+basic)}},
	} {
		for range 7 {
			a := c.get(call.path, call.options...)
			fmt.Fprintln(&answers, a.status, a.header, a.body)
		}
	}
	return answers.String()
}

// all is every span that was sent, as text.
func (tr *traces) all() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return fmt.Sprint(tr.spans)
}

// monitored records every command that a server is sent from now on.
func monitored(t *testing.T, server *testserver.Redis, password string) *logBuffer {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "AUTH %s\r\nMONITOR\r\n", password)
	lines, record := bufio.NewReader(conn), new(logBuffer)
	for range 2 {
		if line, err := lines.ReadString('\n'); err != nil || line != "+OK\r\n" {
			t.Fatalf("MONITOR: got %q, %v", line, err)
		}
	}
	go io.Copy(record, lines)
	return record
}

func bodyOf(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %d, %v", url, resp.StatusCode, err)
	}
	return string(body)
}

// allRows is everything that stands in the tables of a database, bytes as they are.
func allRows(t *testing.T, url string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "SET bytea_output = escape"); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	tables, err := conn.Query(t.Context(), "SELECT tablename FROM pg_tables WHERE tablename LIKE 'rate_limit%'")
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(tables, pgx.RowTo[string])
	if err != nil || len(names) < 8 {
		t.Fatalf("tables: %q, %v", names, err)
	}
	for _, name := range names {
		rows, err := conn.Query(t.Context(), "SELECT t::text FROM "+name+" t")
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&text, name, strings.Join(lines, "\n"))
	}
	return text.String()
}
