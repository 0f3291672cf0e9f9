package admin_test

import (
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-tollgate/ratelimit/admin"
)

// everything is all that the store holds, as the API shows it.
func (s *service) everything() (all string) {
	for _, list := range []string{"/tiers", "/policies", "/api-keys", "/audit"} {
		all += s.do("GET", list+"?limit=200", "").want(s.t, 200).body
	}
	return all
}

// Each of these is refused with the field that is wrong, and changes nothing.
func TestAHostileBodyIsRefusedAndNothingChanges(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		key := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201).text("id")
		id := s.do("GET", "/policies?tier=FREE", "").items("id")[0]
		limits := func(rest string) string { return `{"tier":"FREE","route":"/x",` + rest + `}` }
		policies, onePolicy, keys, oneKey := "POST /policies", "PATCH /policies/"+id, "POST /api-keys", "PATCH /api-keys/"+key
		tests := []struct {
			what, request, body string
			status              int
			field, says         string
		}{
			{"nothing", policies, "", 400, "", "required"},
			{"no JSON", policies, `{"tier":`, 400, "", "byte 8"},
			{"two values", policies, `{} {}`, 400, "", "not JSON"},
			{"no UTF-8", "POST /tiers", "{\"name\":\"\xff\"}", 400, "", "UTF-8"},
			{"no object", policies, `[]`, 422, "body", "object"},
			{"a text for an object", policies, `"x"`, 422, "body", "object"},
			{"deep nesting", policies, strings.Repeat(`[`, 30000) + strings.Repeat(`]`, 30000), 400, "", "not JSON"},
			{"an unknown field", policies, limits(`"limit":1,"window":"1s","color":"red"`), 422, "color", "no such field"},
			{"a field in capitals", policies, limits(`"Limit":1,"limit":1,"window":"1s"`), 422, "Limit", "lower case"},
			{"a look-alike of a field", policies, limits(`"limit":1,"window":"1s","bur\u017ft":1`), 422, "burſt", "lower case"},
			{"a field given twice", policies, limits(`"limit":1,"limit":2,"window":"1s"`), 422, "limit", "twice"},
			{"null", policies, limits(`"limit":null,"window":"1s"`), 422, "limit", "null"},
			{"null in a list", policies, limits(`"limit":1,"window":"1s","methods":[null]`), 422, "methods", "null"},
			{"no limit", policies, limits(`"window":"1s"`), 422, "limit", "required"},
			{"no window", policies, limits(`"limit":1`), 422, "window", "required"},
			{"a text for a number", policies, limits(`"limit":"1","window":"1s"`), 422, "limit", "integer"},
			{"a number for a text", policies, limits(`"limit":1,"window":60`), 422, "window", "string"},
			{"a list for a text", policies, `{"tier":["FREE"],"route":"/x","limit":1,"window":"1s"}`, 422, "tier", "string"},
			{"a text for a list", policies, limits(`"limit":1,"window":"1s","methods":"GET"`), 422, "methods", "array"},
			{"a fraction", policies, limits(`"limit":1.5,"window":"1s"`), 422, "limit", "whole number"},
			{"an exponent", policies, limits(`"limit":1e3,"window":"1s"`), 422, "limit", "whole number"},
			{"beyond 64 bits", policies, limits(`"limit":99999999999999999999,"window":"1s"`), 422, "limit", "out of range"},
			{"a negative limit", policies, limits(`"limit":-1,"window":"1s"`), 422, "limit", "negative"},
			{"a limit too large", policies, limits(`"limit":1000000000001,"window":"1s"`), 422, "limit", "1000000000000"},
			{"a limit that cannot be exact", policies, limits(`"limit":999999999989,"window":"366d"`), 422, "limit", "2^53"},
			{"a negative burst", policies, limits(`"limit":1,"window":"1s","burst":-1`), 422, "burst", "negative"},
			{"no duration", policies, limits(`"limit":1,"window":"soon"`), 422, "window", "1h30m"},
			{"a window of nothing", policies, limits(`"limit":1,"window":"0s"`), 422, "window", "positive"},
			{"a window too long", policies, limits(`"limit":1,"window":"367d"`), 422, "window", "366d"},
			{"a cost above the limit", policies, limits(`"limit":1,"window":"1s","cost":2`), 422, "cost", "never be granted"},
			{"an unknown algorithm", policies, limits(`"limit":1,"window":"1s","algorithm":"magic"`), 422, "algorithm", "token_bucket"},
			{"an unknown mode", policies, limits(`"limit":1,"window":"1s","mode":"maybe"`), 422, "mode", "enforce"},
			{"an unknown on_error", policies, limits(`"limit":1,"window":"1s","on_error":"panic"`), 422, "on_error", "open"},
			{"a route without a slash", policies, `{"tier":"FREE","route":"x","limit":1,"window":"1s"}`, 422, "route", "slash"},
			{"an empty route", policies, `{"tier":"FREE","route":"","limit":1,"window":"1s"}`, 422, "route", "empty"},
			{"an unknown method", policies, limits(`"limit":1,"window":"1s","methods":["get"]`), 422, "methods", "capitals"},
			{"an unknown tier", policies, `{"tier":"GOLD","route":"/x","limit":1,"window":"1s"}`, 422, "tier", "FREE"},
			{"an unknown key", policies, `{"api_key_id":"k1","route":"/x","limit":1,"window":"1s"}`, 422, "api_key_id", "k1"},
			{"two owners", policies, fmt.Sprintf(`{"tier":"FREE","api_key_id":%q,"route":"/x","limit":1,"window":"1s"}`, key), 422, "tier", "either"},
			{"no owner", policies, `{"route":"/x","limit":1,"window":"1s"}`, 422, "tier", "either"},
			{"a change of the id", onePolicy, `{"id":"other"}`, 422, "id", "no such field"},
			{"a change of the owner", onePolicy, `{"tier":"PRO"}`, 422, "tier", "no such field"},
			{"an impossible change", onePolicy, `{"limit":5,"cost":6}`, 422, "cost", "never be granted"},
			{"a tier without a name", "POST /tiers", `{"name":""}`, 422, "name", "1 to 64"},
			{"a tier with a space", "POST /tiers", `{"name":"A B"}`, 422, "name", "spaces"},
			{"a tier in use", "DELETE /tiers/FREE", "", 409, "", "in use"},
			{"anonymous renamed", "PATCH /tiers/anonymous", `{"name":"x"}`, 422, "name", "anonymous"},
			{"a key of an unknown tier", keys, `{"client":"x","tier":"GOLD"}`, 422, "tier", "FREE"},
			{"a key without a tier", keys, `{"client":"x"}`, 422, "tier", "required"},
			{"a key that has expired", keys, `{"client":"x","tier":"FREE","expires_at":"2001-01-01T00:00:00Z"}`, 422, "expires_at", "future"},
			{"a day for a time", keys, `{"client":"x","tier":"FREE","expires_at":"2099-01-01"}`, 422, "expires_at", "date-time"},
			{"a number for a time", keys, `{"client":"x","tier":"FREE","expires_at":4070908800}`, 422, "expires_at", "string"},
			{"a hash that is none", keys, `{"client":"x","tier":"FREE","sha256":"abc"}`, 422, "sha256", "64 digits"},
			{"the hash of nothing", keys, `{"client":"x","tier":"FREE","sha256":"` + hexHash("") + `"}`, 422, "sha256", "empty"},
			{"a prefix of a new key", keys, `{"client":"x","tier":"FREE","prefix":"tg_"}`, 422, "prefix", "leave it out"},
			{"a client too long", keys, `{"client":"` + strings.Repeat("x", 300) + `","tier":"FREE"}`, 422, "client", "256"},
			{"a client with a control character", keys, `{"client":"a\u0000b","tier":"FREE"}`, 422, "client", "control"},
			{"half a character", keys, `{"client":"a\ud800b","tier":"FREE"}`, 422, "client", "half"},
			{"the other half", "POST /tiers", `{"name":"\udc00"}`, 422, "name", "half"},
			{"two first halves", keys, `{"client":"\ud83d\ud83d\ude00","tier":"FREE"}`, 422, "client", "half"},
			{"half a character in a list", policies, limits(`"limit":1,"window":"1s","methods":["G\udfff"]`), 422, "methods", "half"},
			{"a delay of another bucket", policies, limits(`"limit":1,"window":"1s","max_delay":"1s"`), 422, "max_delay", "leaky_bucket"},
			{"a delay too long", policies, limits(`"limit":1,"window":"1s","algorithm":"leaky_bucket","max_delay":"11m"`), 422, "max_delay", "10m"},
			{"no delay", policies, limits(`"limit":1,"window":"1s","algorithm":"leaky_bucket","max_delay":"soon"`), 422, "max_delay", "500ms"},
			{"a changed delay of another bucket", onePolicy, `{"max_delay":"1s"}`, 422, "max_delay", "leaky_bucket"},
			{"a key of nobody", keys, `{"client":"","tier":"FREE"}`, 422, "client", "1"},
			{"a key of one's own", keys, `{"client":"x","tier":"FREE","key":"tg_mine"}`, 422, "key", "no such field"},
			{"a key moved to an unknown tier", oneKey, `{"tier":"GOLD"}`, 422, "tier", "FREE"},
			{"a key brought back", oneKey, `{"revoked_at":null}`, 422, "revoked_at", "null"},
			{"a grace too long", "POST /api-keys/" + key + "/rotate", `{"grace":"91d"}`, 422, "grace", "90d"},
			{"a negative grace", "POST /api-keys/" + key + "/rotate", `{"grace":"-1s"}`, 422, "grace", "90d"},
			{"an unknown field of a rotation", "POST /api-keys/" + key + "/rotate", `{"grade":"1s"}`, 422, "grade", "no such field"},
			{"a key that nobody knows", "POST /api-keys/k1/revoke", "", 404, "", "k1"},
		}
		before := s.everything()
		for _, tt := range tests {
			t.Run(tt.what, func(t *testing.T) {
				method, path, _ := strings.Cut(tt.request, " ")
				headers := []string{"Content-Type", "application/json"}
				if method == "PATCH" || method == "DELETE" {
					headers = append(headers, "If-Match", "*")
				}
				a := s.do(method, path, tt.body, headers...).want(t, tt.status, tt.says)
				if tt.field != "" {
					a.wantField(t, tt.field)
				}
			})
		}
		if after := s.everything(); after != before {
			t.Errorf("the store held\n%s\nand holds\n%s", before, after)
		}
	})
}

// unreadable is a body that must not be read.
type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

func TestABodyOver64KiBIsRefusedUnread(t *testing.T) {
	t.Parallel()
	s := setup(t)
	body := func(size int) string {
		const head, tail = `{"client":"x","tier":"FREE"`, `}`
		return head + strings.Repeat(" ", size-len(head)-len(tail)) + tail
	}
	s.do("POST", "/api-keys", body(admin.MaxBody)).want(t, 201)
	s.do("POST", "/api-keys", body(admin.MaxBody+1)).want(t, 413, `"error":"body_too_large"`, "65536")
	// with a length that is too large, before anything has come
	unread := httptest.NewRequest("POST", "/api-keys", unreadable{t})
	unread.ContentLength = admin.MaxBody + 1
	unread.Header.Set("Authorization", "Bearer alice=ADMIN")
	early := httptest.NewRecorder()
	s.handler.ServeHTTP(early, unread)
	if early.Code != 413 {
		t.Errorf("a long body that never comes: %d", early.Code)
	}
	// without a length, as a chunked body comes; whatever the method makes of bodies
	for _, method := range []string{"POST", "PATCH", "DELETE", "GET"} {
		path := "/policies/default-free"
		if method == "POST" {
			path = "/api-keys"
		}
		r := httptest.NewRequest(method, path, strings.NewReader(body(10*admin.MaxBody)))
		r.ContentLength = -1
		r.Header.Set("Authorization", "Bearer alice=ADMIN")
		r.Header.Set("If-Match", "*")
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		if w.Code != 413 {
			t.Errorf("a long body of a %s without a length: %d", method, w.Code)
		}
	}
	s.do("DELETE", "/tiers/PRO", body(admin.MaxBody), "If-Match", "*").want(t, 409) // in use
}

func TestABodyThatIsNotJSONIsRefusedByItsType(t *testing.T) {
	t.Parallel()
	s := setup(t)
	tests := map[string]int{
		"application/json": 201, "application/json; charset=utf-8": 201, "APPLICATION/JSON": 201,
		"application/merge-patch+json": 201, "": 201,
		"text/plain": 415, "application/x-www-form-urlencoded": 415, "multipart/form-data; boundary=x": 415, "application/xml": 415, "nonsense": 415,
	}
	n := 0
	for media, status := range tests {
		n++
		s.do("POST", "/tiers", fmt.Sprintf(`{"name":"T%d"}`, n), "Content-Type", media).want(t, status)
	}
}
