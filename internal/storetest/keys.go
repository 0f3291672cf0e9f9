package storetest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

var keyTests = []namedTest{
	{"a key works from its creation to its deletion", testKeyLife},
	{"a key that cannot be is refused by its field and nothing is changed", testWrongKeys},
	{"a key is imported by its hash", testImport},
	{"after a rotation both keys work, as one client, until the grace period is over", testRotation},
	{"an expired or revoked key is unknown", testEnds},
	{"a change of tier holds at once", testKeyTier},
	{"a key is created once for one idempotency", testIdempotency},
	{"when a key was last used is kept", testLastUsed},
	{"a key that is not whole is no key", testCheckKey},
	{"audit and records hold no key and no hash", testNoSecrets},
}

func (s *session) works(key string) bool {
	_, ok := s.APIKey(background, policy.HashKey(key))
	return ok
}

func testKeyLife(s *session) {
	key := policy.NewKey()
	if s.works(key) {
		s.Fatal("a key works before it exists") // and is remembered as unknown
	}
	k, _, err := s.CreateKey(background, by, recordOf(key, "PRO"), "", nil)
	s.must(err)
	if k.ID == "" || k.Version != 1 || k.CreatedAt.IsZero() || k.Prefix != key[:8] {
		s.Errorf("created %+v", k)
	}
	s.eventually("the key to work", func() bool {
		got, ok := s.APIKey(background, policy.HashKey(key))
		return ok && got == policy.APIKey{ID: k.ID, Tier: "PRO"}
	})
	got, err := s.GetKey(background, k.ID)
	s.must(err)
	if got.SHA256 != policy.HashKey(key) || got.Client != "acme" {
		s.Errorf("got %+v", got)
	}
	k.Client = "acme & sons"
	changed, err := s.UpdateKey(background, by, k)
	s.must(err)
	if changed.Version != 2 || changed.Client != "acme & sons" || !changed.CreatedAt.Equal(k.CreatedAt) {
		s.Errorf("changed to %+v", changed)
	}
	s.unchanged(func() {
		_, err := s.UpdateKey(background, by, k)
		s.refuses("a change of an old version", err, policy.ErrConflict)
		s.refuses("deleting an old version", s.DeleteKey(background, by, k.ID, 1), policy.ErrConflict)
	})
	s.must(s.DeleteKey(background, by, k.ID, 2))
	s.eventually("the key to be gone", func() bool { return !s.works(key) })
	s.refuses("deleting twice", s.DeleteKey(background, by, k.ID, 2), policy.ErrNotFound)
	_, err = s.UpdateKey(background, by, changed)
	s.refuses("changing what is deleted", err, policy.ErrNotFound)
}

func testWrongKeys(s *session) {
	_, taken := s.newKey("FREE")
	for _, wrong := range []struct {
		name, field string
		change      func(*policy.KeyRecord)
	}{
		{"no tier", "tier", func(k *policy.KeyRecord) { k.Tier = "" }},
		{"an unknown tier", "tier", func(k *policy.KeyRecord) { k.Tier = "GOLD" }},
		{"no hash", "sha256", func(k *policy.KeyRecord) { k.SHA256 = [32]byte{} }},
		{"the hash of nothing", "sha256", func(k *policy.KeyRecord) { k.SHA256 = sha256.Sum256(nil) }},
		{"a client without an end", "client", func(k *policy.KeyRecord) { k.Client = strings.Repeat("x", 257) }},
		{"the whole key as its prefix", "prefix", func(k *policy.KeyRecord) { k.Prefix = policy.NewKey() }},
		{"an id with a slash", "id", func(k *policy.KeyRecord) { k.ID = "k/1" }},
		{"expired already", "expires_at", func(k *policy.KeyRecord) { k.ExpiresAt = time.Now().Add(-time.Second) }},
		{"a grace period of nothing", "previous_until", func(k *policy.KeyRecord) { k.PreviousUntil = time.Now().Add(time.Hour) }},
		{"a rotation to the same key", "sha256", func(k *policy.KeyRecord) {
			k.PreviousSHA256, k.PreviousUntil = k.SHA256, time.Now().Add(time.Hour)
		}},
	} {
		s.unchanged(func() {
			k := recordOf(policy.NewKey(), "FREE")
			wrong.change(&k)
			_, _, err := s.CreateKey(background, by, k, "", nil)
			s.refusesField(wrong.name, err, wrong.field)
		})
	}
	s.unchanged(func() {
		k := recordOf(policy.NewKey(), "FREE")
		k.ID = taken.ID
		_, _, err := s.CreateKey(background, by, k, "", nil)
		s.refuses("an id that is taken", err, policy.ErrExists)
		k = recordOf(policy.NewKey(), "FREE")
		k.SHA256 = taken.SHA256
		_, _, err = s.CreateKey(background, by, k, "", nil)
		s.refuses("a hash that is taken", err, policy.ErrExists)
		k = recordOf(policy.NewKey(), "FREE")
		k.PreviousSHA256, k.PreviousUntil = taken.SHA256, time.Now().Add(time.Hour)
		_, _, err = s.CreateKey(background, by, k, "", nil)
		s.refuses("a hash before that is another's", err, policy.ErrExists)
	})
}

func testImport(s *session) {
	const old = "sk_live_from-elsewhere"
	_, _, err := s.CreateKey(background, by, policy.KeyRecord{Client: "old", Tier: "PRO", SHA256: sha256.Sum256([]byte(old))}, "", nil)
	s.must(err)
	s.eventually("the imported key to work", func() bool { return s.works(old) })
	if !s.CheckAPIKey(old) {
		s.Error("a key of another make is taken for a broken one")
	}
}

func testRotation(s *session) {
	first, k := s.newKey("PRO")
	second := policy.NewKey()
	k.PreviousSHA256, k.PreviousUntil = k.SHA256, time.Now().Add(time.Hour)
	k.SHA256, k.Prefix = policy.HashKey(second), policy.KeyPrefix(second)
	k, err := s.UpdateKey(background, policy.Change{Actor: "alice", Action: "rotate"}, k)
	s.must(err)
	s.eventually("both keys to work as one client", func() bool {
		a, okA := s.APIKey(background, policy.HashKey(first))
		b, okB := s.APIKey(background, policy.HashKey(second))
		return okA && okB && a == b && a.ID == k.ID
	})
	s.unchanged(func() {
		other := recordOf(policy.NewKey(), "FREE")
		other.SHA256 = policy.HashKey(first)
		_, _, err := s.CreateKey(background, by, other, "", nil)
		s.refuses("a hash that is another's before", err, policy.ErrExists)
	})

	k.PreviousUntil = time.Now().Add(-time.Second)
	k, err = s.UpdateKey(background, by, k)
	s.must(err)
	s.eventually("only the new key to work", func() bool { return !s.works(first) && s.works(second) })

	third := policy.NewKey() // the hash of the first is forgotten
	k.PreviousSHA256, k.PreviousUntil, k.SHA256 = k.SHA256, time.Now().Add(200*time.Millisecond), policy.HashKey(third)
	_, err = s.UpdateKey(background, by, k)
	s.must(err)
	s.eventually("the third key to work", func() bool { return s.works(third) })
	s.eventually("the grace period to end by itself", func() bool { return !s.works(second) })
	if s.works(first) || !s.works(third) {
		s.Error("of three keys, not the last one works")
	}
}

func testEnds(s *session) {
	key := policy.NewKey()
	k := recordOf(key, "FREE")
	k.ExpiresAt = time.Now().Add(time.Hour)
	k, _, err := s.CreateKey(background, by, k, "", nil)
	s.must(err)
	s.eventually("the key to work", func() bool { return s.works(key) })
	k.ExpiresAt = time.Now().Add(300 * time.Millisecond)
	k, err = s.UpdateKey(background, by, k)
	s.must(err)
	s.eventually("the key to expire by itself", func() bool { return !s.works(key) })
	k.ExpiresAt = time.Time{}
	k, err = s.UpdateKey(background, by, k)
	s.must(err)
	s.eventually("the key to work again", func() bool { return s.works(key) })
	k.RevokedAt = time.Now().UTC().Truncate(time.Microsecond)
	k, err = s.UpdateKey(background, policy.Change{Actor: "alice", Action: "revoke"}, k)
	s.must(err)
	s.eventually("the key to be revoked", func() bool { return !s.works(key) })
	got, err := s.GetKey(background, k.ID)
	s.must(err)
	if !got.RevokedAt.Equal(k.RevokedAt) || !got.ExpiresAt.IsZero() {
		s.Errorf("got %+v", got)
	}
}

func testKeyTier(s *session) {
	key, k := s.newKey("FREE")
	s.eventually("the key to work", func() bool { return s.works(key) })
	k.Tier = "PRO"
	k, err := s.UpdateKey(background, by, k)
	s.must(err)
	s.eventually("the tier to change", func() bool {
		got, ok := s.APIKey(background, policy.HashKey(key))
		return ok && got.Tier == "PRO"
	})
	s.unchanged(func() {
		k.Tier = "GOLD"
		_, err := s.UpdateKey(background, by, k)
		s.refusesField("an unknown tier", err, "tier")
	})
}

func testIdempotency(s *session) {
	const tries = 8
	other := s.open(s.T)
	stored, kept := make([]policy.KeyRecord, tries), make([][]byte, tries)
	var wg sync.WaitGroup
	for i := range tries {
		store := []Store{s.Store, other}[i%2]
		wg.Go(func() {
			k, answer, err := store.CreateKey(background, by, recordOf(policy.NewKey(), "FREE"), "same", fmt.Appendf(nil, "answer %d", i))
			if err != nil {
				s.Errorf("try %d: %v", i, err)
			}
			stored[i], kept[i] = k, answer
		})
	}
	wg.Wait()
	for i := range tries {
		if stored[i].ID != stored[0].ID || stored[i].SHA256 != stored[0].SHA256 || string(kept[i]) != string(kept[0]) {
			s.Errorf("try %d got %+v and %s, the first %+v and %s", i, stored[i], kept[i], stored[0], kept[0])
		}
	}
	keys, err := s.ListKeys(background, "", policy.Page{})
	s.must(err)
	if len(keys) != 1 || s.audits() != 1 {
		s.Errorf("%d keys and %d audit records, want 1 of each", len(keys), s.audits())
	}
	_, answer, err := s.CreateKey(background, by, recordOf(policy.NewKey(), "FREE"), "another", []byte("b"))
	if err != nil || string(answer) != "b" {
		s.Errorf("another idempotency got %s, %v", answer, err)
	}
	s.newKey("FREE")
	s.newKey("FREE") // none is not an idempotency of its own
}

func testLastUsed(s *session) {
	key, k := s.newKey("FREE")
	if !k.LastUsedAt.IsZero() {
		s.Errorf("a new key was used at %s", k.LastUsedAt)
	}
	began := time.Now().Truncate(time.Second)
	s.eventually("the key to work", func() bool { return s.works(key) })
	other := s.open(s.T)
	s.eventually("another instance to see when the key was used", func() bool {
		got, err := other.GetKey(background, k.ID)
		s.must(err)
		return !got.LastUsedAt.Before(began) && !got.LastUsedAt.After(time.Now())
	})
	got, err := s.GetKey(background, k.ID)
	s.must(err)
	if got.Version != k.Version || s.audits() != 1 {
		s.Errorf("use of a key is taken for a change: version %d, %d audit records", got.Version, s.audits())
	}
	got.Client = "renamed"
	if got, err = s.UpdateKey(background, by, got); err != nil || got.LastUsedAt.IsZero() {
		s.Errorf("a change forgets when the key was used: %+v, %v", got, err)
	}
}

func testCheckKey(s *session) {
	key := policy.NewKey()
	for presented, want := range map[string]bool{
		key: true, key[:len(key)-1]: false, key + "x": false, "tg_": false, "tg_" + strings.ToUpper(key[3:]): false, "other": true, "": true,
	} {
		if got := s.CheckAPIKey(presented); got != want {
			s.Errorf("%q: got %t", presented, got)
		}
	}
}

func testNoSecrets(s *session) {
	key, k := s.newKey("FREE")
	k.Tier = "PRO"
	k, err := s.UpdateKey(background, by, k)
	s.must(err)
	s.must(s.DeleteKey(background, by, k.ID, k.Version))
	all, err := s.ListAudit(background, policy.Page{})
	s.must(err)
	hash := fmt.Sprintf("%x", policy.HashKey(key))
	for _, a := range all {
		text := string(a.Before) + string(a.After)
		if strings.Contains(text, key) || strings.Contains(text, hash) || !strings.Contains(text, k.ID) {
			s.Errorf("the audit holds %s", text)
		}
	}
	if len(all) != 3 {
		s.Errorf("%d changes, want 3", len(all))
	}
	if _, err := s.GetKey(background, k.ID); !errors.Is(err, policy.ErrNotFound) || strings.Contains(err.Error(), hash) {
		s.Errorf("got %v", err)
	}
}
