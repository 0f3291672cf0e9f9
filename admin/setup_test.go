package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	_ "github.com/caddyserver/caddy/v2/modules/filestorage"

	"github.com/caddy-tollgate/ratelimit/admin"
	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/memorybackend"
	"github.com/caddy-tollgate/ratelimit/policy"

	_ "github.com/caddy-tollgate/ratelimit/policy/embedded"
	_ "github.com/caddy-tollgate/ratelimit/policy/postgres"
	_ "github.com/caddy-tollgate/ratelimit/policy/static"
)

// tokens is an Authenticator for tokens that say who has them and their roles:
// "alice=ADMIN".
type tokens struct{}

func (tokens) Authenticate(r *http.Request) (string, []string, error) {
	header := r.Header.Get("Authorization")
	subject, roles, ok := strings.Cut(strings.TrimPrefix(header, "Bearer "), "=")
	switch {
	case header == "":
		return "", nil, admin.ErrNoToken
	case subject == "later":
		return "", nil, admin.ErrAuthUnavailable
	case !ok:
		return "", nil, errors.New("the token is not valid: it is torn")
	}
	return subject, strings.Split(roles, ","), nil
}

// backend counts in memory, peeks and resets.
type backend struct {
	*memorybackend.Store

	mu     sync.Mutex
	down   bool
	forgot []string
}

func (b *backend) Peek(_ context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return errors.New("no route to 10.1.2.3")
	}
	for _, bucket := range buckets {
		if bucket.Cost != 0 {
			return errors.New("a look that takes something")
		}
	}
	b.Take(memorybackend.Now(), buckets, decisions)
	return nil
}

func (b *backend) Reset(_ context.Context, buckets []policy.Bucket) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, bucket := range buckets {
		b.forgot = append(b.forgot, bucket.Identity+" "+bucket.Scope)
	}
	return nil
}

func (b *backend) Health() (up bool, since time.Time, lastErr error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.down, time.Time{}, errors.New("no route to 10.1.2.3")
}

var provisioning sync.Mutex

// loadProvider loads a provider whose storage is a folder.
func loadProvider(t *testing.T, name, config, folder string) admin.Reader {
	t.Helper()
	storage, err := json.Marshal(map[string]string{"module": "file_system", "root": folder})
	if err != nil {
		t.Fatal(err)
	}
	provisioning.Lock() // Caddy provisions one configuration at a time
	ctx, err := caddy.ProvisionContext(&caddy.Config{StorageRaw: storage})
	provisioning.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	module, err := ctx.LoadModuleByID("rate_limit.providers."+name, json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := module.(interface{ Cleanup() error }); ok {
		t.Cleanup(func() {
			if err := p.Cleanup(); err != nil {
				t.Error(err)
			}
		})
	}
	if p, ok := module.(interface{ Start() error }); ok {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
	}
	return module.(admin.Reader)
}

// service is an API over a new embedded store, as an admin called alice sees it.
type service struct {
	t        *testing.T
	provider admin.Reader
	backend  *backend
	handler  http.Handler
	document *document
	token    string
	folder   string // of the storage
	seen     *seen
}

// database is the server of the tests that need PostgreSQL.
var database *testserver.Postgres

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tollgate-admin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if database, err = testserver.StartPostgres(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer database.Stop()
	return m.Run()
}

// eachStore runs a test on a new store of each kind.
func eachStore(t *testing.T, test func(t *testing.T, s *service)) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, setup(t))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		config, err := json.Marshal(map[string]any{"dsn": database.NewDatabase(t), "max_connections": 4})
		if err != nil {
			t.Fatal(err)
		}
		test(t, start(t, "postgres", string(config)))
	})
}

func setup(t *testing.T) *service {
	t.Helper()
	return start(t, "embedded", `{}`)
}

// start waits until a provider that stores has its first tiers, which it makes in
// the background.
func start(t *testing.T, name, config string) *service {
	t.Helper()
	folder := t.TempDir()
	provider := loadProvider(t, name, config, folder)
	deadline := time.Now().Add(30 * time.Second)
	for {
		tiers, err := provider.ListTiers(context.Background(), policy.Page{Limit: 10})
		if err == nil && len(tiers) == 4 && provider.Snapshot().HasTier("FREE") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the new store has the tiers %v (%v)", tiers, err)
		}
		time.Sleep(time.Millisecond)
	}
	s := serve(t, provider, name)
	s.folder = folder
	return s
}

func serve(t *testing.T, provider admin.Reader, name string) *service {
	t.Helper()
	b := &backend{Store: memorybackend.NewStore(1000)}
	api := admin.New(admin.Settings{
		Provider: provider, ProviderName: name, Peeker: b, Resetter: b, Backend: b, Authenticator: tokens{}, Logger: zap.NewNop(),
	})
	s := &service{t: t, provider: provider, backend: b, handler: api, token: "alice=ADMIN", seen: new(seen)}
	s.document = readDocument(t, s.do("GET", "/openapi.json", "").body)
	return s
}

// as is the service as somebody else sees it.
func (s service) as(token string) *service {
	s.token = token
	return &s
}

type answer struct {
	status int
	header http.Header
	body   string
	json   map[string]any
}

// do sends one request. Headers come as name, value. What comes back must be what
// the document says.
func (s *service) do(method, path, body string, headers ...string) *answer {
	s.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	result := w.Result()
	text, err := io.ReadAll(result.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	a := &answer{status: result.StatusCode, header: result.Header, body: string(text)}
	if method != "HEAD" && len(text) > 0 {
		if err := json.Unmarshal(text, &a.json); err != nil {
			s.t.Errorf("%s %s: not JSON: %q", method, path, text)
		}
	}
	if s.document != nil {
		s.document.check(s.t, s.seen, r, a)
	}
	return a
}

// want checks the status, and that the body holds each text.
func (a *answer) want(t *testing.T, status int, texts ...string) *answer {
	t.Helper()
	if a.status != status {
		t.Errorf("status: got %d, want %d: %s", a.status, status, a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			t.Errorf("%d: the body lacks %q: %s", a.status, text, a.body)
		}
	}
	if status >= 400 && a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d: Content-Type is %q", status, a.header.Get("Content-Type"))
	}
	return a
}

func (a *answer) text(field string) string {
	text, _ := a.json[field].(string)
	return text
}

func (a *answer) etag() string { return a.header.Get("ETag") }

// items are those of a list, by one field.
func (a *answer) items(field string) (values []string) {
	items, _ := a.json["items"].([]any)
	for _, item := range items {
		value, _ := item.(map[string]any)[field].(string)
		values = append(values, value)
	}
	return values
}

// wantField checks that a problem names a field, and only that.
func (a *answer) wantField(t *testing.T, field string) {
	t.Helper()
	problems, _ := a.json["errors"].([]any)
	var fields []string
	for _, p := range problems {
		fields = append(fields, p.(map[string]any)["field"].(string))
	}
	if !slices.Equal(fields, []string{field}) {
		t.Errorf("the problem names the fields %q, want %q: %s", fields, field, a.body)
	}
}
