package integration_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// adminSecret signs the tokens of admins.
const adminSecret = "the-secret-of-the-admins-of-these-tests"

// managed is a site whose tiers are managed over the admin API on the second port.
// The environment says where they are kept.
const managed = `
{
	servers {
		trusted_proxies static 127.0.0.1/32 ::1/128
	}
	rate_limit {
		backend {$BACKEND:memory}
		provider {$PROVIDER:embedded}
	}
}
:{$PORT} {
	rate_limit {
		tiers
	}
	respond "{http.rate_limit.tier} {http.rate_limit.identity}"
}
:{$PORT2} {
	rate_limit_admin {
		jwt {
			secret ` + adminSecret + `
		}
	}
}`

// postgresProvider keeps tiers, policies and keys in a database. What changes
// arrives by a notice or not at all while a test runs, and a busy machine does not
// make a key unknown.
func postgresProvider(url string, lines ...string) string {
	if len(lines) == 0 {
		lines = []string{"cache_ttl 1h", "lookup_timeout 10s"}
	}
	return "PROVIDER=postgres " + url + " {\n" + strings.Join(lines, "\n") + "\n}\n"
}

// manager is an admin at the admin API of one process.
type manager struct {
	*caddy
	token option
}

// manage is an admin who may do everything.
func manage(c *caddy) *manager { return manageAs(c, "alice", "ADMIN") }

func manageAs(c *caddy, subject string, roles ...string) *manager {
	claims := jwt.MapClaims{"sub": subject, "roles": roles, "exp": time.Now().Add(time.Hour).Unix()}
	return &manager{c.at("tcp", c.addr2()), bearer(signed(c.t, jwt.SigningMethodHS256, []byte(adminSecret), claims, nil))}
}

func bearer(token string) option { return with("Authorization", "Bearer "+token) }

// sending gives the request a body of JSON.
func sending(body string) option {
	return func(r *http.Request) {
		r.Header.Set("Content-Type", "application/json")
		r.ContentLength = int64(len(body))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
		r.Body, _ = r.GetBody()
	}
}

func ifMatch(etag string) option { return with("If-Match", etag) }

// ask sends a request; an empty body is none.
func (m *manager) ask(verb, path, body string, options ...option) (answer, error) {
	options = append([]option{method(verb), m.token}, options...)
	if body != "" {
		options = append(options, sending(body))
	}
	return m.try(path, options...)
}

// do sends a request whose answer must have the status.
func (m *manager) do(want int, verb, path, body string, options ...option) answer {
	m.t.Helper()
	a, err := m.ask(verb, path, body, options...)
	if err != nil {
		m.t.Fatalf("%s %s: %v", verb, path, err)
	}
	if a.status != want {
		m.t.Fatalf("%s %s %s: got %d, want %d: %s", verb, path, body, a.status, want, a.body)
	}
	return a
}

// stored is what the tests read of a tier, a policy, a key or an audit entry.
type stored struct {
	ID       any        `json:"id"`
	Name     string     `json:"name"`
	Key      string     `json:"key"` // in the audit, the id of what was changed
	Prefix   string     `json:"prefix"`
	Tier     string     `json:"tier"`
	Limit    int64      `json:"limit"`
	Actor    string     `json:"actor"`
	Action   string     `json:"action"`
	Kind     string     `json:"kind"`
	Before   *stored    `json:"before"`
	After    *stored    `json:"after"`
	LastUsed *time.Time `json:"last_used_at"`

	etag string
}

func (s stored) id() string { return fmt.Sprint(s.ID) }

// read reads a record from an answer.
func (a answer) read(t *testing.T) stored {
	t.Helper()
	s := stored{etag: a.header.Get("ETag")}
	if err := json.Unmarshal([]byte(a.body), &s); err != nil {
		t.Fatalf("%v: %.300q", err, a.body)
	}
	return s
}

// create stores something new.
func (m *manager) create(list, format string, args ...any) stored {
	m.t.Helper()
	return m.do(201, "POST", list, fmt.Sprintf(format, args...)).read(m.t)
}

// patch changes the current version of something.
func (m *manager) patch(path, format string, args ...any) stored {
	m.t.Helper()
	current := m.do(200, "GET", path, "").read(m.t)
	return m.do(200, "PATCH", path, fmt.Sprintf(format, args...), ifMatch(current.etag)).read(m.t)
}

// remove deletes the current version of something.
func (m *manager) remove(path string) {
	m.t.Helper()
	m.do(204, "DELETE", path, "", ifMatch(m.do(200, "GET", path, "").header.Get("ETag")))
}

// list reads a whole list, a few items at a time.
func (m *manager) list(path string) (all []stored) {
	m.t.Helper()
	for cursor := ""; ; {
		query := url.Values{"limit": {"7"}, "cursor": {cursor}}
		if cursor == "" {
			query.Del("cursor")
		}
		var page struct {
			Items []stored `json:"items"`
			Next  string   `json:"next_cursor"`
		}
		a := m.do(200, "GET", path+"?"+query.Encode(), "")
		if err := json.Unmarshal([]byte(a.body), &page); err != nil {
			m.t.Fatal(err)
		}
		all = append(all, page.Items...)
		if cursor = page.Next; cursor == "" {
			return all
		}
	}
}

// explained is what the process decides a client's request to / by: the tier, and
// the limits that apply.
func (m *manager) explained(keyID string) (tier string, limits []string) {
	m.t.Helper()
	var e struct {
		Tier     string `json:"tier"`
		Policies []struct {
			Limit   string `json:"limit"`
			Applies bool   `json:"applies"`
		} `json:"policies"`
	}
	a := m.do(200, "GET", "/explain?path=/&method=GET&api_key_id="+url.QueryEscape(keyID), "")
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		m.t.Fatal(err)
	}
	for _, p := range e.Policies {
		if p.Applies {
			limits = append(limits, p.Limit)
		}
	}
	return e.Tier, limits
}

// awaitLimit waits until the process decides the key's requests by one limit.
func (m *manager) awaitLimit(keyID, limit string) {
	m.t.Helper()
	eventually(m.t, "the limit "+limit+" has arrived", func() bool {
		_, limits := m.explained(keyID)
		return slices.Equal(limits, []string{limit})
	})
}

// onEachStore runs a test with tiers in Postgres, on two instances, and in Caddy's
// storage, on one. The buckets are in Redis.
func onEachStore(t *testing.T, test func(t *testing.T, instances ...*caddy)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		provider, backend := postgresProvider(testserver.NewPostgres(t).NewDatabase(t)), redisBackend(testserver.NewRedis(t))
		test(t, startCaddy(t, managed, provider, backend), startCaddy(t, managed, provider, backend))
	})
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, startCaddy(t, managed, redisBackend(testserver.NewRedis(t))))
	})
}

// increase adds one to the limit of a policy, however often somebody else is
// faster, and returns how often.
func (m *manager) increase(path string) (conflicts int, err error) {
	for {
		a, err := m.ask("GET", path, "")
		if err != nil || a.status != 200 {
			return conflicts, fmt.Errorf("GET %s: %d %v", path, a.status, err)
		}
		var seen stored
		if err := json.Unmarshal([]byte(a.body), &seen); err != nil {
			return conflicts, err
		}
		a, err = m.ask("PATCH", path, fmt.Sprintf(`{"limit": %d}`, seen.Limit+1), ifMatch(a.header.Get("ETag")))
		switch {
		case err != nil:
			return conflicts, err
		case a.status == 200:
			return conflicts, nil
		case a.status != 412:
			return conflicts, fmt.Errorf("PATCH %s: %d %s", path, a.status, a.body)
		}
		conflicts++
	}
}

// Whoever is too late is told so, and no change overwrites another.
func TestTwentyAdminsWhoChangeOnePolicyAtOnceLoseNoUpdate(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, instances ...*caddy) {
		const admins, path = 20, "/policies/default-free"
		var (
			wg        sync.WaitGroup
			mu        sync.Mutex
			conflicts int
			start     = make(chan struct{})
		)
		for i := range admins {
			m := manageAs(instances[i%len(instances)], fmt.Sprintf("admin-%02d", i), "ADMIN")
			wg.Go(func() {
				<-start
				n, err := m.increase(path)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				conflicts += n
			})
		}
		close(start)
		wg.Wait()
		t.Logf("%d conflicts", conflicts)
		last := manage(instances[len(instances)-1])
		if got := last.do(200, "GET", path, "").read(t).Limit; got != 60+admins {
			t.Errorf("limit: got %d, want %d", got, 60+admins)
		}
		wantSteps(t, last.list("/audit"), admins)
	})
}

// wantSteps checks that the audit, newest first, holds one change of each admin,
// each from where the one before ended.
func wantSteps(t *testing.T, entries []stored, admins int) {
	t.Helper()
	if len(entries) != admins {
		t.Fatalf("%d entries of the audit, want %d", len(entries), admins)
	}
	slices.Reverse(entries)
	actors := make(map[string]bool)
	for i, e := range entries {
		actors[e.Actor] = true
		from := int64(60 + i)
		if e.Action != "update" || e.Key != "default-free" || e.Before.Limit != from || e.After.Limit != from+1 {
			t.Errorf("entry %d: %s of %s from %d to %d, want from %d", i, e.Action, e.Key, e.Before.Limit, e.After.Limit, from)
		}
	}
	if len(actors) != admins {
		t.Errorf("%d actors, want %d", len(actors), admins)
	}
}

// Each of these is refused for its reason, and changes nothing.
func TestWhatAnAdminMayNotDoIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, instances ...*caddy) {
		c := instances[0]
		admin, viewer, nobody := manage(c), manageAs(c, "vic", "VIEWER"), manageAs(c, "nick", "USER")
		stranger := &manager{admin.caddy, with("X-Nothing", "here")}
		k := admin.create("/api-keys", `{"client": "acme", "tier": "FREE"}`)
		before := admin.whole()
		cases := []struct {
			name             string
			by               *manager
			verb, path, body string
			ifMatch          string
			status           int
			says             string
		}{
			{"no token", stranger, "GET", "/policies", "", "", 401, "missing_token"},
			{"a role that means nothing", nobody, "GET", "/policies", "", "", 403, "forbidden"},
			{"a viewer who writes", viewer, "POST", "/tiers", `{"name": "GOLD"}`, "", 403, "forbidden"},
			{"a viewer who revokes", viewer, "POST", "/api-keys/" + k.id() + "/revoke", "", "", 403, "forbidden"},
			{"no version", admin, "PATCH", "/policies/default-free", `{"limit": 1}`, "", 428, "If-Match"},
			{"an old version", admin, "PATCH", "/policies/default-free", `{"limit": 1}`, `"99"`, 412, ""},
			{"deleting without a version", admin, "DELETE", "/policies/default-free", "", "", 428, "If-Match"},
			{"what does not exist", admin, "PATCH", "/policies/nothing", `{"limit": 1}`, "*", 404, ""},
			{"an unknown field", admin, "PATCH", "/policies/default-free", `{"limt": 1}`, "*", 422, "limt"},
			{"a wrong type", admin, "PATCH", "/policies/default-free", `{"limit": "1"}`, "*", 422, "limit"},
			{"an impossible limit", admin, "PATCH", "/policies/default-free", `{"limit": -1}`, "*", 422, "limit"},
			{"a limit that cannot be counted", admin, "PATCH", "/policies/default-free", `{"limit": 1000000000000, "window": "366d"}`, "*", 422, "2^53"},
			{"an unknown tier", admin, "POST", "/api-keys", `{"client": "x", "tier": "GOLD"}`, "", 422, "tier"},
			{"a route that is taken", admin, "POST", "/policies", `{"tier": "FREE", "route": "*", "limit": 1, "window": "1m"}`, "", 409, ""},
			{"a tier in use", admin, "DELETE", "/tiers/FREE", "", "*", 409, "in use"},
			{"the last policy of anonymous", admin, "DELETE", "/policies/default-anonymous", "", "*", 409, "anonymous"},
			{"a body of 64 KiB and more", admin, "POST", "/tiers", `{"name": "` + strings.Repeat("x", 64<<10) + `"}`, "", 413, ""},
			{"no JSON", admin, "POST", "/tiers", `{"name": `, "", 400, "JSON"},
		}
		for _, tc := range cases {
			options := []option{}
			if tc.ifMatch != "" {
				options = append(options, ifMatch(tc.ifMatch))
			}
			a, err := tc.by.ask(tc.verb, tc.path, tc.body, options...)
			if err != nil || a.status != tc.status || !strings.Contains(a.body, tc.says) || a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s: got %d %s %v, want %d with %q", tc.name, a.status, a.body, err, tc.status, tc.says)
			}
		}
		if after := admin.whole(); after != before {
			t.Errorf("something changed:\n%s\nwas:\n%s", after, before)
		}
		if got := viewer.whole(); got != before {
			t.Errorf("a viewer sees:\n%s\nand an admin:\n%s", got, before)
		}
	})
}

// whole is everything that is stored, as text.
func (m *manager) whole() string {
	m.t.Helper()
	var text strings.Builder
	for _, list := range []string{"/tiers", "/policies", "/api-keys", "/audit"} {
		text.WriteString(m.do(200, "GET", list, "").body)
	}
	return text.String()
}

// A request that is sent again makes no second key.
func TestAKeyThatIsAskedForTwiceIsOneKey(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, instances ...*caddy) {
		const body = `{"client": "acme", "tier": "FREE"}`
		once := with("Idempotency-Key", "4f1c-of-this-test")
		first := manage(instances[0]).do(201, "POST", "/api-keys", body, once).read(t)
		again := manage(instances[len(instances)-1]).do(201, "POST", "/api-keys", body, once)
		if s := again.read(t); s.Key != first.Key || s.id() != first.id() || again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("got %s, want %s again", s.id(), first.id())
		}
		if keys := manage(instances[0]).list("/api-keys"); len(keys) != 1 {
			t.Errorf("%d keys, want one", len(keys))
		}
	})
}

// Several at once make the schema once.
func TestTheCommandMigrateSetsTheSchemaUpOnce(t *testing.T) {
	t.Parallel()
	pg := testserver.NewPostgres(t)
	url := pg.NewDatabase(t)
	site := strings.Replace(managed, "{$PROVIDER:embedded}", "postgres {env.DATABASE_URL} {\nmigrate off\n}", 1)
	c := newCaddy(t, "DATABASE_URL="+url)
	c.write("Caddyfile", site)
	var (
		wg   sync.WaitGroup
		outs = make([]string, 5)
	)
	for i := range outs {
		wg.Go(func() {
			args := []string{"migrate", "--config", "Caddyfile"}
			if i == 0 {
				args = []string{"migrate", "--dsn", url}
			}
			out, err := c.command("", args...)
			if err != nil {
				t.Errorf("%q: %v %s", args, err, out)
			}
			outs[i] = lastLine(out)
		})
	}
	wg.Wait()
	slices.Sort(outs)
	if !strings.HasPrefix(outs[0], "applied migrations [1") || outs[1] != "the schema is up to date" || outs[4] != outs[1] {
		t.Errorf("got %q", outs)
	}
	c.start("run", "--adapter", "caddyfile", "--config", "Caddyfile")
	k := manage(c).create("/api-keys", `{"client": "acme", "tier": "PRO"}`)
	(&stage{t: t, there: c}).awaitTier(k.Key, "PRO")
	pg.Kill()
	if out, err := c.command("", "migrate", "--dsn", url); err == nil {
		t.Errorf("without a server: %s", out)
	}
	if out, err := c.command("", "migrate", "--dsn", "{env.NOT_SET}"); err == nil || !strings.Contains(out, "NOT_SET") {
		t.Errorf("without a URL: %v %s", err, out)
	}
}

func TestTheCommandCheckTellsWhatIsLimitedAndWhatIsDoubtful(t *testing.T) {
	t.Parallel()
	c := newCaddy(t)
	c.write("Caddyfile", `
:{$PORT} {
	rate_limit {
		zone device {
			key {http.request.header.X-Device}
			limit 10/1m
			algorithm sliding_log
		}
	}
}`)
	out, err := c.command("", "check", "--config", "Caddyfile")
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	wantAll(t, out, "The configuration is valid.", "backend:  memory", "device", "10/1m", "sliding_log", "Doubtful:", "chosen by the client")
	if out, err := c.command("", "check", "--config", "Caddyfile", "--strict"); err == nil {
		t.Errorf("strict: a doubtful setting is no error: %s", out)
	}
	c.write("Caddyfile", ":{$PORT} {\n rate_limit 10\n }\n")
	out, err = c.command("", "check", "--config", "Caddyfile")
	if err == nil {
		t.Errorf("a mistake is no error: %s", out)
	}
	wantAll(t, out, "Caddyfile:2", "10/1m")
}
