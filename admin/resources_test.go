package admin_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestATierLivesFromCreationToDeletion(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		s.do("GET", "/tiers/GOLD", "").want(t, 404, "tier GOLD")
		created := s.do("POST", "/tiers", `{"name":"GOLD"}`).want(t, 201, `"name":"GOLD"`, `"version":1`)
		if got := created.header.Get("Location"); got != "tiers/GOLD" {
			t.Errorf("Location: got %q", got)
		}
		s.do("POST", "/tiers", `{"name":"GOLD"}`).want(t, 409, `"error":"exists"`)
		got := s.do("GET", "/tiers/GOLD", "").want(t, 200, `"name":"GOLD"`)
		if got.etag() == "" || got.etag() != created.etag() {
			t.Errorf("ETag: got %q, created as %q", got.etag(), created.etag())
		}
		renamed := s.do("PATCH", "/tiers/GOLD", `{"name":"PLATINUM"}`, "If-Match", got.etag()).want(t, 200, `"name":"PLATINUM"`, `"version":2`)
		s.do("GET", "/tiers/GOLD", "").want(t, 404)
		s.do("DELETE", "/tiers/PLATINUM", "", "If-Match", got.etag()).want(t, 412, `"error":"version_conflict"`)
		s.do("DELETE", "/tiers/PLATINUM", "", "If-Match", renamed.etag()).want(t, 204)
		s.do("GET", "/tiers/PLATINUM", "").want(t, 404)
	})
}

func TestATierWithASlashInItsNameHasAPathOfItsOwn(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		for _, name := range []string{"a/b", "100%", "what?", "..", "a+b"} {
			body := fmt.Sprintf(`{"name":%q}`, name)
			created := s.do("POST", "/tiers", body).want(t, 201)
			path := "/" + created.header.Get("Location")
			s.do("GET", path, "").want(t, 200, `"name":"`+name)
			s.do("DELETE", path, "", "If-Match", created.etag()).want(t, 204)
		}
	})
}

func TestAPolicyChangesAndTheNextDecisionKnows(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		created := s.do("POST", "/policies", `{"tier":"FREE","route":"/Orders/*","methods":["POST","GET"],"limit":10,"window":"m","burst":20,"mode":"shadow","on_error":"open","cost":2}`).
			want(t, 201, `"route":"/orders/*"`, `"methods":["GET","POST"]`, `"limit":10`, `"window":"1m"`, `"burst":20`, `"algorithm":"token_bucket"`, `"cost":2`, `"mode":"shadow"`, `"on_error":"open"`)
		path := "/policies/" + created.text("id")
		if "/"+created.header.Get("Location") != path {
			t.Errorf("Location: got %q, want it for %s", created.header.Get("Location"), path)
		}
		s.do("POST", "/policies", `{"tier":"FREE","route":"/orders/*","methods":["GET","POST"],"limit":1,"window":"1s"}`).want(t, 409, `"error":"exists"`)
		changed := s.do("PATCH", path, `{"limit":0,"burst":0,"methods":[],"mode":"enforce","on_error":""}`, "If-Match", created.etag()).
			want(t, 200, `"limit":0`, `"methods":[]`, `"mode":"enforce"`, `"cost":2`, `"window":"1m"`, `"version":2`)
		if strings.Contains(changed.body, "on_error") || strings.Contains(changed.body, "burst") {
			t.Errorf("an empty on_error and a burst of 0 are absent: %s", changed.body)
		}
		client := policy.Client{Tier: "FREE"}
		applied := s.provider.Snapshot().AppendMatches(nil, client, "PUT", "/orders/1")
		if len(applied) != 2 || !applied[0].Rule.DenyAll() {
			t.Errorf("the snapshot applies %d policies, and does not deny", len(applied))
		}
		s.do("PATCH", path, `{"window":"1h30m"}`, "If-Match", changed.etag()).want(t, 200, `"window":"1h30m"`)
		s.do("GET", path, "").want(t, 200, `"version":3`)
		s.do("DELETE", path, "", "If-Match", "*").want(t, 204)
		if n := len(s.provider.Snapshot().AppendMatches(nil, client, "PUT", "/orders/1")); n != 1 {
			t.Errorf("after its deletion %d policies apply", n)
		}
	})
}

func TestTheLimitOfAnonymousClientsCanBeChangedButNotDeleted(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		list := s.do("GET", "/policies?tier=anonymous", "").want(t, 200, `"limit":30`)
		path := "/policies/" + list.items("id")[0]
		s.do("DELETE", path, "", "If-Match", "*").want(t, 409, `"error":"in_use"`, "anonymous")
		s.do("PATCH", path, `{"route":"/only/here"}`, "If-Match", "*").want(t, 422).wantField(t, "route")
		s.do("PATCH", path, `{"limit":7}`, "If-Match", "*").want(t, 200, `"limit":7`)
		s.do("DELETE", "/tiers/anonymous", "", "If-Match", "*").want(t, 409)
	})
}

func TestAKeyIsShownOnceAndLivesUntilItIsRevoked(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		created := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE","expires_at":"2099-01-02T03:04:05Z"}`).
			want(t, 201, `"client":"acme"`, `"expires_at":"2099-01-02T03:04:05Z"`, `"revoked_at":null`, `"last_used_at":null`)
		key, path := created.text("key"), "/api-keys/"+created.text("id")
		if !policy.CheckKey(key) || !strings.HasPrefix(key, "tg_") || created.text("prefix") != policy.KeyPrefix(key) {
			t.Fatalf("the key is %q with the prefix %q", key, created.text("prefix"))
		}
		for _, where := range []string{path, "/api-keys", "/audit", path + "/usage"} {
			if a := s.do("GET", where, "").want(t, 200); strings.Contains(a.body, key) || strings.Contains(a.body, hexHash(key)) {
				t.Errorf("%s shows the key or its hash: %s", where, a.body)
			}
		}
		changed := s.do("PATCH", path, `{"tier":"PRO","expires_at":null}`, "If-Match", created.etag()).want(t, 200, `"tier":"PRO"`, `"expires_at":null`, `"client":"acme"`)
		rotated := s.do("POST", path+"/rotate", `{"grace":"1h"}`, "If-Match", changed.etag()).want(t, 200, `"previous_until":"`)
		if next := rotated.text("key"); next == key || !policy.CheckKey(next) {
			t.Errorf("rotated from %q to %q", key, next)
		}
		s.do("POST", path+"/rotate", "", "If-Match", changed.etag()).want(t, 412)
		// what was promised of the first key is kept
		s.do("POST", path+"/rotate", "").want(t, 409, `"error":"rotating"`, rotated.text("previous_until")[:16], "0s")
		s.do("POST", path+"/rotate", `{"grace":"0s"}`).want(t, 200, `"key":"tg_`)
		revoked := s.do("POST", path+"/revoke", "").want(t, 200, `"revoked_at":"2`)
		again := s.do("POST", path+"/revoke", "").want(t, 200)
		if again.body != revoked.body {
			t.Errorf("revoked twice: %s and then %s", revoked.body, again.body)
		}
		s.do("POST", path+"/rotate", "").want(t, 409, `"error":"revoked"`)
		s.do("DELETE", path, "", "If-Match", revoked.etag()).want(t, 204)
		s.do("GET", path, "").want(t, 404)
		actions := s.do("GET", "/audit", "").items("action")
		if want := []string{"delete", "revoke", "rotate", "rotate", "update", "create"}; !slices.Equal(actions, want) {
			t.Errorf("the audit has %q, want %q", actions, want)
		}
	})
}

func hexHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

func TestARotatedKeyWorksUntilItsGraceIsOver(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		works := s.provider.(interface {
			APIKey(ctx context.Context, sum [32]byte) (policy.APIKey, bool)
		})
		check := func(key string, want bool) {
			t.Helper()
			if _, ok := works.APIKey(t.Context(), policy.HashKey(key)); ok != want {
				t.Errorf("key works: %v, want %v", ok, want)
			}
		}
		created := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201)
		first, path := created.text("key"), "/api-keys/"+created.text("id")
		check(first, true)
		second := s.do("POST", path+"/rotate", `{}`).want(t, 200).text("key")
		check(first, true)
		check(second, true)
		rotated := s.do("POST", path+"/rotate", `{"grace":"0s"}`).want(t, 200)
		if rotated.json["previous_until"] != nil {
			t.Errorf("a rotation without grace leaves a key before: %s", rotated.body)
		}
		third := rotated.text("key")
		check(first, false)
		check(second, false)
		check(third, true)
		s.do("POST", path+"/revoke", "").want(t, 200)
		check(third, false)
	})
}

// Times are answered as they are kept, and the earliest time is no null.
func TestAnExpiryIsAnsweredAsItIsKept(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		created := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE","expires_at":"2099-01-02T03:04:05.123456789+01:00"}`).
			want(t, 201, `"expires_at":"2099-01-02T02:04:05.123456Z"`)
		path := "/api-keys/" + created.text("id")
		if got := s.do("GET", path, ""); got.text("expires_at") != created.text("expires_at") {
			t.Errorf("expires_at is %q", got.text("expires_at"))
		}
		early := s.do("PATCH", path, `{"expires_at":"0001-01-01T00:00:00Z"}`, "If-Match", "*").want(t, 200)
		if early.json["expires_at"] == nil {
			t.Errorf("a key that expired long ago never does: %s", early.body)
		}
		s.do("GET", "/explain?api_key_id="+created.text("id"), "").want(t, 200, "has expired")
		s.do("POST", path+"/rotate", "").want(t, 409, `"error":"expired"`)
	})
}

func TestAKeyIsImportedByItsHash(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		body := fmt.Sprintf(`{"client":"old","tier":"FREE","sha256":%q,"prefix":"legacy"}`, hexHash("legacy-key-of-another-system"))
		created := s.do("POST", "/api-keys", body).want(t, 201, `"prefix":"legacy"`)
		if _, ok := created.json["key"]; ok {
			t.Errorf("an imported key is answered: %s", created.body)
		}
		s.do("POST", "/api-keys", body).want(t, 409, `"error":"exists"`)
	})
}

func TestARequestWithTheSameIdempotencyKeyMakesOneKey(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		const body, header, value = `{"client":"acme","tier":"FREE"}`, "Idempotency-Key", "6f1c3c1e-4f6f-4f0e-9d5a-4b1f4b8f7a10"
		first := s.do("POST", "/api-keys", body, header, value).want(t, 201, `"key":"tg_`)
		again := s.do("POST", "/api-keys", body, header, value).want(t, 201)
		if again.body != first.body {
			t.Errorf("answered %s and then %s", first.body, again.body)
		}
		if got := again.header.Get("Idempotency-Replayed"); got != "true" || first.header.Get("Idempotency-Replayed") != "" {
			t.Errorf("Idempotency-Replayed: got %q", got)
		}
		s.do("POST", "/api-keys", `{"client":"other","tier":"FREE"}`, header, value).want(t, 422).wantField(t, "Idempotency-Key")
		if n := len(s.do("GET", "/api-keys", "").items("id")); n != 1 {
			t.Errorf("%d keys were made", n)
		}
		// another admin's Idempotency-Key is another one, and reveals nothing
		other := s.as("bob=ADMIN").do("POST", "/api-keys", body, header, value).want(t, 201)
		if other.text("key") == first.text("key") {
			t.Error("bob got the key that alice made")
		}
	})
}

func TestTheStoreAloneRevealsNoKey(t *testing.T) {
	t.Parallel()
	s := setup(t)
	const idempotencyKey = "an-idempotency-key"
	secrets := []string{idempotencyKey, s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`, "Idempotency-Key", idempotencyKey).want(t, 201).text("key")}
	path := "/api-keys/" + s.do("GET", "/api-keys", "").items("id")[0]
	secrets = append(secrets, s.do("POST", path+"/rotate", "").want(t, 200).text("key"))
	size := 0
	err := filepath.WalkDir(s.folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		size += len(content)
		for _, secret := range secrets {
			plain := []byte(secret)
			for _, form := range []string{secret, base64.StdEncoding.EncodeToString(plain), base64.RawURLEncoding.EncodeToString(plain), hex.EncodeToString(plain)} {
				if bytes.Contains(content, []byte(form)) {
					t.Errorf("%s holds %q: %s", name, form, content)
				}
			}
		}
		return err
	})
	if err != nil || size < 1000 {
		t.Errorf("looked through %d bytes (%v)", size, err)
	}
}

func TestAListIsReadInPartsThatMissAndRepeatNothing(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		var want []string
		for i := range 23 {
			created := s.do("POST", "/policies", fmt.Sprintf(`{"tier":"PRO","route":"/r%d","limit":1,"window":"1s"}`, i)).want(t, 201)
			want = append(want, created.text("id"))
		}
		want = append(want, s.do("GET", "/policies?tier=PRO&limit=200", "").items("id")...)
		slices.Sort(want)
		want = slices.Compact(want)
		var got []string
		query := "?limit=5&tier=PRO"
		for pages := 0; query != ""; pages++ {
			if pages > 10 {
				t.Fatal("the list does not end")
			}
			a := s.do("GET", "/policies"+query, "").want(t, 200)
			got = append(got, a.items("id")...)
			link := a.header.Get("Link")
			query, _, _ = strings.Cut(strings.TrimPrefix(link, "<"), ">")
			if (a.text("next_cursor") == "") != (link == "") || link != "" && !strings.Contains(link, url.QueryEscape(a.text("next_cursor"))) {
				t.Errorf("next_cursor is %q, Link %q", a.text("next_cursor"), link)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %d policies\n%q\nwant %d\n%q", len(got), got, len(want), want)
		}
		if n := len(s.do("GET", "/audit?limit=3", "").items("action")); n != 3 {
			t.Errorf("a page of 3 has %d items", n)
		}
	})
}

func TestACursorOfAnotherListIsRefused(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		cursor := s.do("GET", "/tiers?limit=1", "").want(t, 200).text("next_cursor")
		s.do("GET", "/tiers?limit=1&cursor="+cursor, "").want(t, 200)
		for _, wrong := range []string{"/policies?cursor=" + cursor, "/tiers?cursor=!", "/audit?cursor=" + cursor} {
			s.do("GET", wrong, "").want(t, 422).wantField(t, "cursor")
		}
		s.do("GET", "/tiers?limit=0", "").want(t, 422).wantField(t, "limit")
		s.do("GET", "/tiers?limit=201", "").want(t, 422).wantField(t, "limit")
		s.do("GET", "/tiers?size=3", "").want(t, 422).wantField(t, "size")
		s.do("GET", "/policies?tier=FREE&api_key_id=k1", "").want(t, 422).wantField(t, "api_key_id")
	})
}

func TestTheAuditSaysWhoWhenBeforeAndAfter(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		start := time.Now().Add(-time.Second)
		path := "/policies/" + s.do("GET", "/policies?tier=FREE", "").items("id")[0]
		s.as("bob=ROLE_ADMIN").do("PATCH", path, `{"limit":61}`, "If-Match", "*").want(t, 200)
		a := s.do("GET", "/audit?limit=1", "").want(t, 200)
		entry := a.json["items"].([]any)[0].(map[string]any)
		before, after := entry["before"].(map[string]any), entry["after"].(map[string]any)
		if entry["actor"] != "bob" || entry["action"] != "update" || entry["kind"] != "policy" || "/policies/"+entry["key"].(string) != path {
			t.Errorf("the entry is %v", entry)
		}
		if before["limit"] != 60.0 || after["limit"] != 61.0 {
			t.Errorf("limit: before %v, after %v", before["limit"], after["limit"])
		}
		at, err := time.Parse(time.RFC3339, entry["at"].(string))
		if err != nil || at.Before(start) || at.After(time.Now().Add(time.Second)) {
			t.Errorf("at: %v (%v)", entry["at"], err)
		}
	})
}

func TestALongestDelayIsKeptShownAndTakenBack(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		p := s.do("POST", "/policies", `{"tier":"FREE","route":"/queue","limit":10,"window":"1s","algorithm":"leaky_bucket","max_delay":"1500ms"}`).want(t, 201, `"max_delay":"1.5s"`)
		path := "/policies/" + p.text("id")
		s.do("GET", path, "").want(t, 200, `"max_delay":"1.5s"`)
		applied := s.provider.Snapshot().AppendMatches(nil, policy.Client{Tier: "FREE"}, "GET", "/queue")
		if got := applied[0].Rule.MaxDelay; got != 1_500_000 {
			t.Errorf("requests wait up to %d microseconds", got)
		}
		s.do("PATCH", path, `{"max_delay":""}`, "If-Match", p.etag()).want(t, 200)
		if a := s.do("GET", path, ""); strings.Contains(a.body, "max_delay") {
			t.Errorf("taken back, and still shown: %s", a.body)
		}
	})
}

// A change that changes nothing is no new version: it would only make those fail who
// have read the present one.
func TestAChangeThatChangesNothingIsNoVersion(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		key := "/api-keys/" + s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201).text("id")
		for path, bodies := range map[string][]string{
			key:                      {`{}`, `{"client":"acme"}`, `{"tier":"FREE"}`, `{"expires_at":null}`},
			"/policies/default-free": {`{}`, `{"limit":60}`, `{"window":"60s","mode":"enforce"}`, `{"methods":[]}`},
			"/tiers/FREE":            {`{"name":"FREE"}`},
		} {
			before := s.do("GET", path, "").want(t, 200)
			for _, body := range bodies {
				if after := s.do("PATCH", path, body, "If-Match", before.etag()).want(t, 200); after.body != before.body || after.etag() != before.etag() {
					t.Errorf("PATCH %s %s made %s of %s", path, body, after.body, before.body)
				}
			}
		}
		if audit := s.do("GET", "/audit", "").want(t, 200); strings.Contains(audit.body, `"update"`) {
			t.Errorf("the audit knows of a change: %s", audit.body)
		}
	})
}
