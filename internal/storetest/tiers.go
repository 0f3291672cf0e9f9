package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-tollgate/ratelimit/policy"
)

var tierTests = []namedTest{
	{"a new store starts with four tiers and their ceilings", testSeed},
	{"a tier is created, read, renamed and deleted", testTierLife},
	{"a tier that cannot be is refused and nothing is changed", testWrongTiers},
	{"a tier in use and the tier anonymous are not deleted", testTierInUse},
	{"lists come in pages, each record once", testPages},
	{"every change stands in the audit, the newest first", testAudit},
}

func testSeed(s *session) {
	s.eventually("four tiers", func() bool {
		tiers, err := s.ListTiers(background, policy.Page{})
		return err == nil && len(tiers) == 4
	})
	for tier, want := range map[string]string{"anonymous": "30/1m", "FREE": "60/1m", "PRO": "600/1m", "ENTERPRISE": "6000/1m", "unheard-of": "30/1m"} {
		if got := ceiling(s.Snapshot(), policy.Client{Tier: tier}, "/"); got != want {
			s.Errorf("tier %s has %s, want %s", tier, got, want)
		}
	}
	policies, err := s.ListPolicies(background, "", "", policy.Page{})
	s.must(err)
	if len(policies) != 4 || policies[0].Version != 1 || policies[0].CreatedAt.IsZero() {
		s.Errorf("got policies %+v", policies)
	}
	again := s.open(s.T)
	tiers, err := again.ListTiers(background, policy.Page{})
	s.must(err)
	if len(tiers) != 4 {
		s.Errorf("a second instance sees %d tiers", len(tiers))
	}
}

func testTierLife(s *session) {
	created, err := s.CreateTier(background, by, policy.TierRecord{Name: "GOLD"})
	s.must(err)
	if created.Version != 1 || created.CreatedAt.IsZero() || !created.UpdatedAt.Equal(created.CreatedAt) {
		s.Errorf("created %+v", created)
	}
	s.newPolicy(limited("GOLD", "*", 77))
	key, stored := s.newKey("GOLD")
	s.eventually("the key to work", func() bool { return s.works(key) }) // and to be in a cache, if there is one

	created.Name = "PLATINUM"
	renamed, err := s.UpdateTier(background, by, "GOLD", created)
	s.must(err)
	if renamed.Name != "PLATINUM" || renamed.Version != 2 || !renamed.CreatedAt.Equal(created.CreatedAt) {
		s.Errorf("renamed to %+v", renamed)
	}
	if _, err := s.GetTier(background, "GOLD"); !errors.Is(err, policy.ErrNotFound) {
		s.Errorf("the old name is still there: %v", err)
	}
	s.eventually("the key and the policy to have gone along", func() bool {
		k, ok := s.APIKey(background, policy.HashKey(key))
		return ok && k.Tier == "PLATINUM" && ceiling(s.Snapshot(), policy.Client{Tier: "PLATINUM"}, "/") == "77/1m"
	})
	after, err := s.GetKey(background, stored.ID)
	s.must(err)
	if after.Tier != "PLATINUM" || after.Version != stored.Version+1 {
		s.Errorf("the key's record is %+v; its tier and version must change, or an edit of it would be based on the old", after)
	}

	s.refuses("an old version", s.DeleteTier(background, by, "PLATINUM", 1), policy.ErrConflict)
	empty, err := s.CreateTier(background, by, policy.TierRecord{Name: "EMPTY"})
	s.must(err)
	s.must(s.DeleteTier(background, by, "EMPTY", empty.Version))
	_, err = s.GetTier(background, "EMPTY")
	s.refuses("a deleted tier", err, policy.ErrNotFound)
}

func testWrongTiers(s *session) {
	free, err := s.GetTier(background, "FREE")
	s.must(err)
	s.unchanged(func() {
		for _, name := range []string{"", "a b", "é", strings.Repeat("x", 65)} {
			_, err := s.CreateTier(background, by, policy.TierRecord{Name: name})
			s.refusesField("tier "+name, err, "name")
		}
		_, err := s.CreateTier(background, by, policy.TierRecord{Name: "FREE"})
		s.refuses("a second FREE", err, policy.ErrExists)
		_, err = s.UpdateTier(background, by, "GONE", policy.TierRecord{Name: "X", Version: 1})
		s.refuses("renaming what is not there", err, policy.ErrNotFound)
		s.refuses("deleting what is not there", s.DeleteTier(background, by, "GONE", 1), policy.ErrNotFound)
		_, err = s.UpdateTier(background, by, "FREE", policy.TierRecord{Name: "X", Version: free.Version + 1})
		s.refuses("another version", err, policy.ErrConflict)
		_, err = s.UpdateTier(background, by, "FREE", policy.TierRecord{Name: "PRO", Version: free.Version})
		s.refuses("a name that is taken", err, policy.ErrExists)
		_, err = s.UpdateTier(background, by, "FREE", policy.TierRecord{Name: "a b", Version: free.Version})
		s.refusesField("a bad name", err, "name")
		_, err = s.UpdateTier(background, by, "anonymous", policy.TierRecord{Name: "nobody", Version: 1})
		s.refusesField("anonymous by another name", err, "name")
	})
}

func testTierInUse(s *session) {
	_, err := s.CreateTier(background, by, policy.TierRecord{Name: "KEYS"})
	s.must(err)
	s.newKey("KEYS")
	s.unchanged(func() {
		for _, name := range []string{"KEYS", "FREE", "anonymous"} {
			s.refuses("tier "+name, s.DeleteTier(background, by, name, 1), policy.ErrInUse)
		}
	})
}

func testPages(s *session) {
	for i := range 7 {
		_, err := s.CreateTier(background, by, policy.TierRecord{Name: fmt.Sprintf("T%d", i)})
		s.must(err)
		s.newPolicy(limited("PRO", fmt.Sprintf("/%d", i), 5))
		s.newKey("PRO")
	}
	lists := map[string]func(p policy.Page) ([]string, error){
		"tiers": func(p policy.Page) ([]string, error) {
			all, err := s.ListTiers(background, p)
			return names(all, func(t policy.TierRecord) string { return t.Name }), err
		},
		"policies": func(p policy.Page) ([]string, error) {
			all, err := s.ListPolicies(background, "PRO", "", p)
			return names(all, func(r policy.PolicyRecord) string { return r.ID }), err
		},
		"keys": func(p policy.Page) ([]string, error) {
			all, err := s.ListKeys(background, "PRO", p)
			return names(all, func(k policy.KeyRecord) string { return k.ID }), err
		},
		"audit": func(p policy.Page) ([]string, error) {
			all, err := s.ListAudit(background, p)
			return names(all, func(a policy.AuditRecord) string { return fmt.Sprint(a.ID) }), err
		},
	}
	for name, want := range map[string]int{"tiers": 11, "policies": 8, "keys": 7, "audit": 21} {
		var all []string
		for page := (policy.Page{Limit: 3}); ; page.After = all[len(all)-1] {
			part, err := lists[name](page)
			s.must(err)
			if len(part) > 3 {
				s.Fatalf("%s: a page of 3 has %d", name, len(part))
			}
			if all = append(all, part...); len(part) < 3 {
				break
			}
		}
		if name != "audit" && !slices.IsSorted(all) {
			s.Errorf("%s are not in order: %q", name, all)
		}
		unique := slices.Compact(slices.Sorted(slices.Values(all)))
		if len(all) != want || len(unique) != want {
			s.Errorf("%s: %d in pages, %d of them different, want %d", name, len(all), len(unique), want)
		}
		whole, err := lists[name](policy.Page{})
		s.must(err)
		if !slices.Equal(whole, all) {
			s.Errorf("%s: the whole list %q differs from its pages %q", name, whole, all)
		}
	}
	none, err := s.ListKeys(background, "FREE", policy.Page{})
	if err != nil || len(none) != 0 {
		s.Errorf("keys of another tier: %v, %v", none, err)
	}
	_, err = s.ListAudit(background, policy.Page{After: "yesterday"})
	s.refusesField("a cursor that is none", err, "after")
}

func names[T any](records []T, name func(T) string) []string {
	all := make([]string, len(records))
	for i, r := range records {
		all[i] = name(r)
	}
	return all
}

func testAudit(s *session) {
	p := s.newPolicy(limited("FREE", "/a", 5))
	p.Limit.Count = 6
	p, err := s.UpdatePolicy(background, policy.Change{Actor: "bob", Action: "update"}, p)
	s.must(err)
	s.must(s.DeletePolicy(background, policy.Change{Actor: "carol", Action: "delete"}, p.ID, p.Version))

	all, err := s.ListAudit(background, policy.Page{})
	s.must(err)
	if len(all) != 3 {
		s.Fatalf("got %d changes, want 3", len(all))
	}
	for i, want := range []struct{ actor, action, before, after string }{
		{"carol", "delete", `"limit":6`, ""},
		{"bob", "update", `"limit":5`, `"limit":6`},
		{"alice", "create", "", `"limit":5`},
	} {
		got := all[i]
		if got.Actor != want.actor || got.Action != want.action || got.Kind != policy.KindPolicy || got.Key != p.ID || got.At.IsZero() {
			s.Errorf("change %d is %+v", i, got)
		}
		s.checkAudited(got.Before, want.before)
		s.checkAudited(got.After, want.after)
	}
	if all[0].ID <= all[1].ID || all[1].ID <= all[2].ID {
		s.Error("the ids do not grow")
	}
}

// checkAudited checks the JSON of a record: none, or valid and with a part.
func (s *session) checkAudited(got []byte, want string) {
	s.Helper()
	var compact json.RawMessage
	if want == "" {
		if len(got) != 0 {
			s.Errorf("got %s, want nothing", got)
		}
		return
	}
	if err := json.Unmarshal(got, &compact); err != nil || !strings.Contains(strings.ReplaceAll(string(got), " ", ""), want) {
		s.Errorf("got %s (%v), want JSON with %s", got, err, want)
	}
}
