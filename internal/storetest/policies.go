package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

var policyTests = []namedTest{
	{"a policy is created, read, changed and deleted", testPolicyLife},
	{"a policy that cannot be is refused by its field and nothing is changed", testWrongPolicies},
	{"an owner has one policy for a route", testRouteTaken},
	{"the last anonymous policy stays", testLastAnonymous},
	{"a key's own policies go with the key", testKeyPolicies},
	{"what is stored comes back as it was", testPolicyFidelity},
	{"hostile text is refused, not cut or misread", testHostileText},
}

func testPolicyLife(s *session) {
	p := s.newPolicy(limited("FREE", "/Login", 5, "PUT", "POST"))
	if p.ID == "" || p.Version != 1 || p.Route != "/login" || !slices.Equal(p.Methods, []string{"POST", "PUT"}) ||
		p.Algorithm != policy.TokenBucket || p.Mode != policy.Enforce || p.CreatedAt.IsZero() {
		s.Errorf("created %+v", p)
	}
	p.Methods[0] = "CHANGED"
	got, err := s.GetPolicy(background, p.ID)
	s.must(err)
	if got.Methods[0] != "POST" {
		s.Error("the stored policy changed with its reader's slice")
	}
	s.eventually("POST /login to be limited", func() bool {
		applied := s.Snapshot().AppendMatches(nil, policy.Client{Tier: "FREE"}, "POST", "/login")
		return len(applied) == 2 && applied[0].Rule.Limit.Count == 5 && applied[0].ID == p.ID
	})

	old := got
	got.Limit.Count, got.CreatedAt, got.UpdatedAt = 9, time.Time{}, time.Time{}
	changed, err := s.UpdatePolicy(background, by, got)
	s.must(err)
	if changed.Version != 2 || changed.Limit.Count != 9 || !changed.CreatedAt.Equal(old.CreatedAt) || changed.UpdatedAt.Before(old.UpdatedAt) {
		s.Errorf("changed to %+v", changed)
	}
	s.eventually("the changed limit", func() bool {
		return s.Snapshot().AppendMatches(nil, policy.Client{Tier: "FREE"}, "POST", "/login")[0].Rule.Limit.Count == 9
	})
	s.unchanged(func() {
		_, err := s.UpdatePolicy(background, by, old)
		s.refuses("a change of an old version", err, policy.ErrConflict)
		s.refuses("deleting an old version", s.DeletePolicy(background, by, p.ID, 1), policy.ErrConflict)
	})
	s.must(s.DeletePolicy(background, by, p.ID, 2))
	_, err = s.GetPolicy(background, p.ID)
	s.refuses("a deleted policy", err, policy.ErrNotFound)
	s.refuses("deleting twice", s.DeletePolicy(background, by, p.ID, 2), policy.ErrNotFound)
	_, err = s.UpdatePolicy(background, by, changed)
	s.refuses("changing what is deleted", err, policy.ErrNotFound)
	s.eventually("POST /login to be free again", func() bool {
		return len(s.Snapshot().AppendMatches(nil, policy.Client{Tier: "FREE"}, "POST", "/login")) == 1
	})
}

// wrongPolicies are changes of a good policy, by the field that is wrong then.
var wrongPolicies = []struct {
	name, field string
	change      func(*policy.PolicyRecord)
}{
	{"no owner", "tier", func(p *policy.PolicyRecord) { p.Tier = "" }},
	{"two owners", "tier", func(p *policy.PolicyRecord) { p.APIKeyID = "k1" }},
	{"an unknown tier", "tier", func(p *policy.PolicyRecord) { p.Tier = "GOLD" }},
	{"an unknown key", "api_key_id", func(p *policy.PolicyRecord) { p.Tier, p.APIKeyID = "", "knobody" }},
	{"no route", "route", func(p *policy.PolicyRecord) { p.Route = "" }},
	{"a route without a slash", "route", func(p *policy.PolicyRecord) { p.Route = "login" }},
	{"a route without an end", "route", func(p *policy.PolicyRecord) { p.Route = "/" + strings.Repeat("x", 2000) }},
	{"a method in small letters", "methods", func(p *policy.PolicyRecord) { p.Methods = []string{"post"} }},
	{"a negative limit", "limit", func(p *policy.PolicyRecord) { p.Limit.Count = -1 }},
	{"a limit beyond counting", "limit", func(p *policy.PolicyRecord) { p.Limit.Count = policy.MaxCount + 1 }},
	{"a limit that is not exact", "limit", func(p *policy.PolicyRecord) {
		p.Limit = policy.Limit{Count: 1, Window: policy.MaxWindow, Burst: 1000}
	}},
	{"no window", "window", func(p *policy.PolicyRecord) { p.Limit.Window = 0 }},
	{"a window of years", "window", func(p *policy.PolicyRecord) { p.Limit.Window = 2 * policy.MaxWindow }},
	{"a window in nanoseconds", "window", func(p *policy.PolicyRecord) { p.Limit.Window = time.Second + 1 }},
	{"a negative burst", "burst", func(p *policy.PolicyRecord) { p.Limit.Burst = -1 }},
	{"a burst beyond counting", "burst", func(p *policy.PolicyRecord) { p.Limit.Burst = policy.MaxCount + 1 }},
	{"an unknown algorithm", "algorithm", func(p *policy.PolicyRecord) { p.Algorithm = "gcra" }},
	{"a negative cost", "cost", func(p *policy.PolicyRecord) { p.Cost = -1 }},
	{"a cost above the limit", "cost", func(p *policy.PolicyRecord) { p.Cost = 6 }},
	{"an unknown mode", "mode", func(p *policy.PolicyRecord) { p.Mode = "dry" }},
	{"an unknown on_error", "on_error", func(p *policy.PolicyRecord) { p.OnError = "pass" }},
	{"an id with a slash", "id", func(p *policy.PolicyRecord) { p.ID = "a/b" }},
}

func testWrongPolicies(s *session) {
	stored := s.newPolicy(limited("FREE", "/good", 5))
	s.unchanged(func() {
		for _, wrong := range wrongPolicies {
			p := limited("FREE", "/x", 5)
			wrong.change(&p)
			_, err := s.CreatePolicy(background, by, p)
			s.refusesField("create: "+wrong.name, err, wrong.field)
			if wrong.field == "id" {
				continue
			}
			p = stored.Clone()
			wrong.change(&p)
			_, err = s.UpdatePolicy(background, by, p)
			s.refusesField("update: "+wrong.name, err, wrong.field)
		}
	})
	got, err := s.GetPolicy(background, stored.ID)
	s.must(err)
	if !reflect.DeepEqual(got, stored) {
		s.Errorf("got %+v, want it as it was: %+v", got, stored)
	}
}

func testRouteTaken(s *session) {
	_, key := s.newKey("FREE")
	a := s.newPolicy(limited("FREE", "/a", 1, "GET", "PUT"))
	b := s.newPolicy(limited("FREE", "/a", 2))
	own := limited("", "/a", 3)
	own.APIKeyID = key.ID
	own = s.newPolicy(own)
	s.newPolicy(limited("PRO", "/a", 4))
	s.unchanged(func() {
		for _, p := range []policy.PolicyRecord{limited("FREE", "/A", 9, "PUT", "GET"), limited("FREE", "/a", 9), limited("PRO", "*", 9)} {
			_, err := s.CreatePolicy(background, by, p)
			s.refuses("a second policy for "+p.Route, err, policy.ErrExists)
		}
		again := limited("", "/a", 9)
		again.APIKeyID = key.ID
		_, err := s.CreatePolicy(background, by, again)
		s.refuses("a second policy of a key", err, policy.ErrExists)
		b.Methods = []string{"PUT", "GET"}
		_, err = s.UpdatePolicy(background, by, b)
		s.refuses("a change onto another's route", err, policy.ErrExists)
		a.ID, a.Route = own.ID, "/free"
		_, err = s.CreatePolicy(background, by, a)
		s.refuses("an id that is taken", err, policy.ErrExists)
	})
}

func testLastAnonymous(s *session) {
	var last policy.PolicyRecord
	s.eventually("the ceiling of anonymous", func() bool {
		all, err := s.ListPolicies(background, "anonymous", "", policy.Page{})
		if err == nil && len(all) == 1 {
			last = all[0]
		}
		return last.ID != ""
	})
	s.newPolicy(limited("anonymous", "/x", 1)) // another one is no reason to let it go
	s.unchanged(func() {
		s.refuses("the last policy", s.DeletePolicy(background, by, last.ID, last.Version), policy.ErrInUse)
		for field, change := range map[string]func(p *policy.PolicyRecord){
			"tier":  func(p *policy.PolicyRecord) { p.Tier = "EMPTY-SO-FAR" },
			"route": func(p *policy.PolicyRecord) { p.Route = "/moved" },
		} {
			p := last.Clone()
			change(&p)
			_, err := s.UpdatePolicy(background, by, p)
			s.refusesField("moving it by its "+field, err, field)
		}
		p := last.Clone()
		p.Methods = []string{"GET"}
		_, err := s.UpdatePolicy(background, by, p)
		s.refusesField("making it one for GET", err, "route")
	})
	last.Limit.Count = 7
	_, err := s.UpdatePolicy(background, by, last)
	s.must(err)
	s.eventually("its new limit", func() bool { return ceiling(s.Snapshot(), policy.Client{}, "/") == "7/1m" })
}

func testKeyPolicies(s *session) {
	key, k := s.newKey("FREE")
	own := limited("", "/own", 3)
	own.APIKeyID = k.ID
	own = s.newPolicy(own)
	s.eventually("the key's own limit", func() bool {
		return ceiling(s.Snapshot(), policy.Client{Tier: "FREE", APIKeyID: k.ID}, "/own") == "3/1m"
	})
	listed, err := s.ListPolicies(background, "", k.ID, policy.Page{})
	if err != nil || len(listed) != 1 || listed[0].ID != own.ID {
		s.Errorf("the key's policies are %v, %v", listed, err)
	}
	before := s.audits()
	s.must(s.DeleteKey(background, by, k.ID, k.Version))
	if added := s.audits() - before; added != 2 {
		s.Errorf("deleting a key and its policy added %d audit records, want 2", added)
	}
	if _, err := s.GetPolicy(background, own.ID); !errors.Is(err, policy.ErrNotFound) {
		s.Errorf("the policy of a deleted key is still there: %v", err)
	}
	s.eventually("the key to be gone", func() bool {
		_, ok := s.APIKey(background, policy.HashKey(key))
		return !ok && ceiling(s.Snapshot(), policy.Client{Tier: "FREE", APIKeyID: k.ID}, "/own") == "60/1m"
	})
}

func testPolicyFidelity(s *session) {
	for i, p := range []policy.Policy{
		{Tier: "FREE", Route: "/a", Limit: policy.Limit{Count: policy.MaxCount, Window: 24 * time.Hour}, Cost: 0},
		{Tier: "FREE", Route: "/b/*/c", Limit: policy.Limit{Count: 3, Window: 1500 * time.Microsecond}, Cost: 2, Mode: policy.Shadow},
		{Tier: "FREE", Route: "/ä ö'\"$1\\\\;--", Limit: policy.Limit{Count: 5, Window: time.Minute, Burst: 50}, Cost: 50, OnError: policy.Closed},
		{Tier: "FREE", Route: "/d", Methods: []string{"DELETE", "M-SEARCH"}, Limit: policy.Limit{Window: time.Second}},
	} {
		stored := s.newPolicy(policy.PolicyRecord{Policy: p})
		got, err := s.open(s.T).GetPolicy(background, stored.ID)
		s.must(err)
		want, err := policy.CheckPolicy(stored.Policy)
		s.must(err)
		if a, b := normal(got.Policy), normal(want); a != b {
			s.Errorf("%d: got %s, want %s", i, a, b)
		}
		if !got.CreatedAt.Equal(stored.CreatedAt) || !got.UpdatedAt.Equal(stored.UpdatedAt) {
			s.Errorf("%d: times %s, %s came back as %s, %s", i, stored.CreatedAt, stored.UpdatedAt, got.CreatedAt, got.UpdatedAt)
		}
	}
}

func normal(p policy.Policy) string {
	b, err := json.Marshal(policy.PolicyRecord{Policy: p})
	return fmt.Sprintf("%s %v", b, err)
}

func testHostileText(s *session) {
	const bad = "a\x00b"
	s.unchanged(func() {
		for _, text := range []string{bad, "a\xffb", "a\nb"} {
			_, err := s.CreatePolicy(background, by, limited("FREE", "/"+text, 5))
			s.refusesField(fmt.Sprintf("route %q", text), err, "route")
			k := recordOf(policy.NewKey(), "FREE")
			k.Client = text
			_, _, err = s.CreateKey(background, by, k, "", nil)
			s.refusesField(fmt.Sprintf("client %q", text), err, "client")
			k.Client, k.Tier = "", text
			_, _, err = s.CreateKey(background, by, k, "", nil)
			s.refusesField(fmt.Sprintf("tier %q", text), err, "tier")
		}
	})
	for _, id := range []string{bad, "\xff", "", "'; drop table x; --", strings.Repeat("x", 5000)} {
		_, err := s.GetPolicy(background, id)
		s.refuses(fmt.Sprintf("policy %.20q", id), err, policy.ErrNotFound)
		_, err = s.GetKey(background, id)
		s.refuses(fmt.Sprintf("key %.20q", id), err, policy.ErrNotFound)
		_, err = s.GetTier(background, id)
		s.refuses(fmt.Sprintf("tier %.20q", id), err, policy.ErrNotFound)
		if _, err := s.ListKeys(background, id, policy.Page{After: id}); err != nil {
			s.Errorf("keys of tier %.20q: %v", id, err)
		}
	}
}
