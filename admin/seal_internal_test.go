package admin

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

func TestASealOpensOnlyForTheSameAdminAndIdempotencyKey(t *testing.T) {
	t.Parallel()
	kept := replay{Request: "r", Secret: "tg_secret"}
	s := newSeal("alice", "one")
	sealed := s.close(kept)
	if bytes.Contains(sealed, []byte("secret")) {
		t.Errorf("the seal shows %q", sealed)
	}
	if bytes.Equal(sealed, s.close(kept)) {
		t.Error("two seals are equal: the nonce was used twice")
	}
	if got, err := newSeal("alice", "one").open(sealed); err != nil || got != kept {
		t.Errorf("opened %v (%v)", got, err)
	}
	for _, other := range []*seal{newSeal("bob", "one"), newSeal("alice", "two")} {
		if other.id == s.id {
			t.Error("two seals are stored under one id")
		}
		if _, err := other.open(sealed); !errors.Is(err, errNotSealed) {
			t.Errorf("somebody else's seal opened: %v", err)
		}
	}
	sealed[len(sealed)-1] ^= 1
	if _, err := s.open(sealed); !errors.Is(err, errNotSealed) {
		t.Errorf("a broken seal opened: %v", err)
	}
}

func TestEachPartOfARequestIsInItsFingerprint(t *testing.T) {
	t.Parallel()
	soon := OptionalTime{Set: true, Time: time.Unix(4e9, 0)}
	requests := []NewKey{
		{}, {Client: "a"}, {Tier: "a"}, {SHA256: "a"}, {Prefix: "a"}, {Client: "a", Tier: "b"}, {Client: "ab"}, {ExpiresAt: soon},
	}
	seen := make(map[string]NewKey)
	for _, r := range requests {
		if other, ok := seen[fingerprint(r)]; ok {
			t.Errorf("%v and %v are one request", r, other)
		}
		seen[fingerprint(r)] = r
	}
	there := OptionalTime{Set: true, Time: soon.Time.In(time.FixedZone("", 3600))}
	if fingerprint(NewKey{ExpiresAt: soon}) != fingerprint(NewKey{ExpiresAt: there}) || fingerprint(NewKey{}) != fingerprint(NewKey{ExpiresAt: OptionalTime{Set: true}}) {
		t.Error("the same request has two fingerprints")
	}
}
