package storetest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/caddy-tollgate/ratelimit/policy"
)

var sharingTests = []namedTest{
	{"twenty admins change one policy at once and no change is lost", testNoLostUpdate},
	{"a change by one instance reaches another", testPropagation},
	{"an instance that starts later has everything", testColdStart},
	{"a tier is not deleted while a key is put into it", testDeleteAgainstUse},
}

// Each admin reads, raises the limit by one and writes; who comes too late reads
// again. Half of them work on another instance.
func testNoLostUpdate(s *session) {
	const admins = 20
	p := s.newPolicy(limited("FREE", "/counter", 100))
	before := s.audits()
	other := s.open(s.T)
	var wg sync.WaitGroup
	for i := range admins {
		store := []Store{s.Store, other}[i%2]
		wg.Go(func() {
			if err := raise(store, p.ID, fmt.Sprintf("admin-%d", i)); err != nil {
				s.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := other.GetPolicy(background, p.ID)
	s.must(err)
	if got.Limit.Count != 100+admins || got.Version != 1+admins {
		s.Errorf("limit %d at version %d, want %d at %d", got.Limit.Count, got.Version, 100+admins, 1+admins)
	}
	if added := s.audits() - before; added != admins {
		s.Errorf("%d audit records, want %d", added, admins)
	}
	for _, store := range []Store{s.Store, other} {
		s.eventually("the sum of all changes", func() bool {
			return ceiling(store.Snapshot(), policy.Client{Tier: "FREE"}, "/counter") == fmt.Sprintf("%d/1m", 100+admins)
		})
	}
}

func raise(store Store, id, admin string) error {
	for {
		p, err := store.GetPolicy(background, id)
		if err != nil {
			return err
		}
		p.Limit.Count++
		_, err = store.UpdatePolicy(background, policy.Change{Actor: admin, Action: "update"}, p)
		if !errors.Is(err, policy.ErrConflict) {
			return err
		}
	}
}

func testPropagation(s *session) {
	other := &session{T: s.T, Store: s.open(s.T), open: s.open}
	p := s.newPolicy(limited("FREE", "/p", 1))
	for count := int64(2); count < 6; count++ {
		p.Limit.Count = count
		var err error
		p, err = s.UpdatePolicy(background, by, p)
		s.must(err)
		s.eventually("the limit on the other instance", func() bool {
			return ceiling(other.Snapshot(), policy.Client{Tier: "FREE"}, "/p") == fmt.Sprintf("%d/1m", count)
		})
	}
	key := policy.NewKey()
	if other.works(key) {
		s.Fatal("a key works before it exists")
	}
	k, _, err := s.CreateKey(background, by, recordOf(key, "FREE"), "", nil)
	s.must(err)
	s.eventually("the key on the other instance", func() bool { return other.works(key) })
	k.RevokedAt = k.CreatedAt
	_, err = s.UpdateKey(background, by, k)
	s.must(err)
	s.eventually("the revocation on the other instance", func() bool { return !other.works(key) })
}

func testColdStart(s *session) {
	key, _ := s.newKey("PRO")
	s.newPolicy(limited("PRO", "/p", 3))
	late := &session{T: s.T, Store: s.open(s.T), open: s.open}
	if got := ceiling(late.Snapshot(), policy.Client{Tier: "PRO"}, "/p"); got != "3/1m" {
		s.Errorf("right after the start, the limit is %s", got)
	}
	if !late.works(key) {
		s.Error("right after the start, a known key is unknown")
	}
}

// Whoever is first wins, and the other one is refused: never both.
func testDeleteAgainstUse(s *session) {
	other := s.open(s.T)
	for i := range 5 {
		name := fmt.Sprintf("T%d", i)
		_, err := s.CreateTier(background, by, policy.TierRecord{Name: name})
		s.must(err)
		var deleted, created error
		var wg sync.WaitGroup
		wg.Go(func() { deleted = s.DeleteTier(background, by, name, 1) })
		wg.Go(func() { _, _, created = other.CreateKey(background, by, recordOf(policy.NewKey(), name), "", nil) })
		wg.Wait()
		var wrong *policy.FieldError
		switch {
		case deleted == nil && errors.As(created, &wrong):
		case created == nil && errors.Is(deleted, policy.ErrInUse):
		default:
			s.Errorf("deleted: %v; created: %v", deleted, created)
		}
	}
}
