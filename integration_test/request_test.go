package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
)

// answer is one response as a client sees it.
type answer struct {
	status int
	header http.Header
	body   string
}

// option changes a request before it is sent.
type option func(*http.Request)

// from makes the request come from an address, through a proxy that the
// configuration trusts.
func from(address string) option { return with("X-Forwarded-For", address) }

// with adds a header line.
func with(name, value string) option {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

func method(m string) option {
	return func(r *http.Request) { r.Method = m }
}

// host makes the request name a site.
func host(name string) option {
	return func(r *http.Request) { r.Host = name }
}

// get sends a request and returns its answer; without one, the test fails.
func (c *caddy) get(path string, options ...option) answer {
	c.t.Helper()
	a, err := c.try(path, options...)
	if err != nil {
		c.t.Fatalf("GET %s: %v", path, err)
	}
	return a
}

// try is get for tests that send requests at once. When Caddy replaces a
// listener it drops a connection now and then, without having handled its
// request; that is sent again.
func (c *caddy) try(path string, options ...option) (a answer, err error) {
	for range 3 {
		a, err = c.once(path, options...)
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			break
		}
	}
	return a, err
}

func (c *caddy) once(path string, options ...option) (answer, error) {
	r, err := http.NewRequest(http.MethodGet, "http://"+c.addr()+path, nil)
	if err != nil {
		return answer{}, err
	}
	for _, change := range options {
		change(r)
	}
	resp, err := c.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// raw sends bytes as they are and returns all bytes of the answer. The request
// should ask to close the connection.
func (c *caddy) raw(request string) string {
	c.t.Helper()
	return rawTo(c.t, "tcp", c.addr(), request)
}

func rawTo(t *testing.T, network, address, request string) string {
	t.Helper()
	conn, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatalf("sending %d bytes: %v", len(request), err)
	}
	reply, err := io.ReadAll(conn)
	if err != nil && len(reply) == 0 {
		t.Fatalf("reading the answer: %v", err)
	}
	return string(reply)
}

// statusOf reads the status code of a raw answer.
func statusOf(t *testing.T, reply string) int {
	t.Helper()
	var minor, status int
	if _, err := fmt.Sscanf(reply, "HTTP/1.%d %d ", &minor, &status); err != nil {
		t.Fatalf("not an HTTP answer: %.80q", reply)
	}
	return status
}

// tally counts answers by status.
type tally map[int]int

// burst sends n requests at once, spread over the processes in turn, and
// counts their answers.
func burst(t *testing.T, n int, path string, options []option, processes ...*caddy) tally {
	t.Helper()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		count = make(tally)
		start = make(chan struct{})
	)
	for i := range n {
		wg.Go(func() {
			<-start
			a, err := processes[i%len(processes)].try(path, options...)
			if err != nil {
				t.Errorf("GET %s: %v", path, err)
			}
			mu.Lock()
			defer mu.Unlock()
			count[a.status]++
		})
	}
	close(start)
	wg.Wait()
	return count
}

// sequence sends n requests one after the other and counts their answers.
func (c *caddy) sequence(n int, path string, options ...option) tally {
	c.t.Helper()
	count := make(tally)
	for range n {
		count[c.get(path, options...).status]++
	}
	return count
}

// untilRefused sends requests until one is refused, and returns that answer.
func (c *caddy) untilRefused(path string) answer {
	c.t.Helper()
	for range 100 {
		if a := c.get(path); a.status != 200 {
			return a.wantStatus(c.t, 429)
		}
	}
	c.t.Fatalf("GET %s: 100 requests passed, want one refused", path)
	return answer{}
}

func (got tally) want(t *testing.T, want tally) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("answers by status: got %v, want %v", got, want)
	}
}

// wantStatus fails the test unless the answer has the status.
func (a answer) wantStatus(t *testing.T, want int) answer {
	t.Helper()
	if a.status != want {
		t.Errorf("status: got %d, want %d (header %v, body %.300q)", a.status, want, a.header, a.body)
	}
	return a
}

// number reads a header that must stand there once and be a whole number.
func (a answer) number(t *testing.T, name string) int64 {
	t.Helper()
	values := a.header.Values(name)
	if len(values) != 1 {
		t.Fatalf("%s: got %q, want one value (status %d, header %v)", name, values, a.status, a.header)
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != values[0] {
		t.Fatalf("%s: got %q, want a whole number", name, values[0])
	}
	return n
}

func (a answer) wantNumber(t *testing.T, name string, want int64) {
	t.Helper()
	if got := a.number(t, name); got != want {
		t.Errorf("%s: got %d, want %d", name, got, want)
	}
}

func (a answer) wantNoHeader(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if values := a.header.Values(name); len(values) > 0 {
			t.Errorf("%s: got %q, want none", name, values)
		}
	}
}

// limitFields are the headers that describe limits.
var (
	xFields     = []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}
	draftFields = []string{"RateLimit-Policy", "RateLimit"}
	limitFields = slices.Concat(xFields, draftFields)
)

// quota is one member of RateLimit-Policy or RateLimit.
type quota struct {
	name   string
	params map[string]int64
}

// quotas parses RateLimit-Policy or RateLimit by the rules of structured
// fields, in their order.
func (a answer) quotas(t *testing.T, name string) []quota {
	t.Helper()
	list, err := httpsfv.UnmarshalList(a.header.Values(name))
	if err != nil {
		t.Fatalf("%s: %q is not a structured field: %v", name, a.header.Values(name), err)
	}
	var all []quota
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		if !ok {
			t.Fatalf("%s: %v is not an item", name, member)
		}
		text, ok := item.Value.(string)
		if !ok {
			t.Fatalf("%s: %v (%T) is not a string", name, item.Value, item.Value)
		}
		q := quota{text, make(map[string]int64)}
		for _, key := range item.Params.Names() {
			value, _ := item.Params.Get(key)
			if q.params[key], ok = value.(int64); !ok {
				t.Fatalf("%s: parameter %s of %q is %v, want an integer", name, key, text, value)
			}
		}
		all = append(all, q)
	}
	return all
}

// quota returns the one member of a field that has the name.
func (a answer) quota(t *testing.T, field, name string) map[string]int64 {
	t.Helper()
	var found []map[string]int64
	for _, q := range a.quotas(t, field) {
		if q.name == name {
			found = append(found, q.params)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s: got %q, want one member called %q", field, a.header.Values(field), name)
	}
	return found[0]
}

// remaining is what RateLimit says is left of a limit.
func (a answer) remaining(t *testing.T, name string) int64 {
	t.Helper()
	return a.quota(t, "RateLimit", name)["r"]
}

// problem is the body of a refusal.
type problem struct {
	Type          string `json:"type"`
	Status        int    `json:"status"`
	Title         string `json:"title"`
	Detail        string `json:"detail"`
	Error         string `json:"error"`
	Policy        string `json:"policy"`
	RetryAfter    int64  `json:"retry_after"`
	CorrelationID string `json:"correlation_id"`
}

// problem reads the body of a refusal and checks what every one must have.
func (a answer) problem(t *testing.T) problem {
	t.Helper()
	var p problem
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("Content-Type: got %q, want application/problem+json (status %d, body %.300q)", got, a.status, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatalf("the body is no JSON: %v: %q", err, a.body)
	}
	if p.Status != a.status || p.Title != http.StatusText(a.status) || strings.TrimSpace(p.Detail) == "" {
		t.Errorf("problem of a %d: got %+v", a.status, p)
	}
	if id := a.header.Get("X-Correlation-Id"); id == "" || id != p.CorrelationID {
		t.Errorf("correlation id: header %q, body %q", id, p.CorrelationID)
	}
	return p
}

// wantProblem checks the status, error and policy of a refusal.
func (a answer) wantProblem(t *testing.T, status int, kind, policy string) problem {
	t.Helper()
	a.wantStatus(t, status)
	p := a.problem(t)
	if p.Error != kind || p.Policy != policy {
		t.Errorf("problem: got error %q of policy %q, want %q of %q", p.Error, p.Policy, kind, policy)
	}
	return p
}

// at is the same process seen through another address of it.
func (c *caddy) at(network, address string) *caddy {
	other := *c
	other.client = clientOf(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	})
	c.t.Cleanup(other.client.CloseIdleConnections)
	return &other
}
