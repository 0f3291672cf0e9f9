// Package storetest is the contract of a store of tiers, policies and API keys
// as one suite that every provider that stores passes.
//
// Each test has a store of its own and opens as many handles onto it as it
// needs; a handle stands for one Caddy instance. Nothing in the suite sleeps for
// a fixed time: what takes time is waited for, with a bound.
package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Store is what the suite tests: what the admin API and the handler ask of a
// provider that stores.
type Store interface {
	CreateTier(ctx context.Context, c policy.Change, t policy.TierRecord) (policy.TierRecord, error)
	DeleteTier(ctx context.Context, c policy.Change, name string, version int64) error
	UpdateTier(ctx context.Context, c policy.Change, name string, t policy.TierRecord) (policy.TierRecord, error)
	ListTiers(ctx context.Context, p policy.Page) ([]policy.TierRecord, error)
	GetTier(ctx context.Context, name string) (policy.TierRecord, error)

	CreatePolicy(ctx context.Context, c policy.Change, p policy.PolicyRecord) (policy.PolicyRecord, error)
	UpdatePolicy(ctx context.Context, c policy.Change, p policy.PolicyRecord) (policy.PolicyRecord, error)
	DeletePolicy(ctx context.Context, c policy.Change, id string, version int64) error
	ListPolicies(ctx context.Context, tier, apiKeyID string, p policy.Page) ([]policy.PolicyRecord, error)
	GetPolicy(ctx context.Context, id string) (policy.PolicyRecord, error)

	CreateKey(ctx context.Context, c policy.Change, k policy.KeyRecord, idempotency string, replay []byte) (stored policy.KeyRecord, kept []byte, err error)
	UpdateKey(ctx context.Context, c policy.Change, k policy.KeyRecord) (policy.KeyRecord, error)
	DeleteKey(ctx context.Context, c policy.Change, id string, version int64) error
	ListKeys(ctx context.Context, tier string, p policy.Page) ([]policy.KeyRecord, error)
	GetKey(ctx context.Context, id string) (policy.KeyRecord, error)

	Record(ctx context.Context, c policy.Change, kind, key string, before json.RawMessage) error
	ListAudit(ctx context.Context, p policy.Page) ([]policy.AuditRecord, error)

	Snapshot() *policy.Snapshot
	APIKey(ctx context.Context, sum [32]byte) (policy.APIKey, bool)
	CheckAPIKey(presented string) bool
}

// Open opens a handle onto the store of one test, as an instance that has
// started. It closes it at the test's end.
type Open func(t *testing.T) Store

// Run tests a store. fresh makes a new one, without any state, for one test.
func Run(t *testing.T, fresh func(t *testing.T) Open) {
	for _, group := range [][]namedTest{tierTests, policyTests, keyTests, sharingTests} {
		for _, test := range group {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				open := fresh(t)
				test.run(&session{T: t, open: open, Store: open(t)})
			})
		}
	}
}

type namedTest struct {
	name string
	run  func(s *session)
}

// session is one test with one handle, and the means to open more.
type session struct {
	*testing.T
	Store
	open Open
}

var (
	background = context.Background()
	by         = policy.Change{Actor: "alice", Action: "create"}
)

// patience bounds every wait. It is far beyond what any store needs, because the
// machine may be busy.
const patience = 30 * time.Second

// eventually waits until a condition holds.
func (s *session) eventually(what string, holds func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("after %s still not: %s", patience, what)
		}
	}
}

func (s *session) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// refuses checks that err is of a kind.
func (s *session) refuses(what string, err, kind error) {
	s.Helper()
	if !errors.Is(err, kind) {
		s.Errorf("%s: got error %v, want one that %q is in", what, err, kind)
	}
}

// refusesField checks that err names a field and says something about it.
func (s *session) refusesField(what string, err error, field string) {
	s.Helper()
	var wrong *policy.FieldError
	if !errors.As(err, &wrong) || wrong.Field != field || wrong.Detail == "" {
		s.Errorf("%s: got error %v, want a field error of %s", what, err, field)
	}
}

// limited is a policy of a tier.
func limited(tier, route string, count int64, methods ...string) policy.PolicyRecord {
	return policy.PolicyRecord{Policy: policy.Policy{
		Tier: tier, Route: route, Methods: methods, Cost: 1, Limit: policy.Limit{Count: count, Window: time.Minute},
	}}
}

func (s *session) newPolicy(p policy.PolicyRecord) policy.PolicyRecord {
	s.Helper()
	stored, err := s.CreatePolicy(background, by, p)
	s.must(err)
	return stored
}

// newKey makes and stores a key of a tier.
func (s *session) newKey(tier string) (key string, stored policy.KeyRecord) {
	s.Helper()
	key = policy.NewKey()
	stored, _, err := s.CreateKey(background, by, recordOf(key, tier), "", nil)
	s.must(err)
	return key, stored
}

func recordOf(key, tier string) policy.KeyRecord {
	return policy.KeyRecord{Prefix: policy.KeyPrefix(key), Client: "acme", Tier: tier, SHA256: policy.HashKey(key)}
}

// audits is how many changes the audit holds.
func (s *session) audits() int {
	s.Helper()
	all, err := s.ListAudit(background, policy.Page{Limit: policy.MaxPage})
	s.must(err)
	return len(all)
}

// unchanged checks that f adds nothing to the audit.
func (s *session) unchanged(f func()) {
	s.Helper()
	before := s.audits()
	f()
	if after := s.audits(); after != before {
		s.Errorf("the audit grew from %d to %d changes by what was refused", before, after)
	}
}

// ceiling is the limit that a snapshot has for a client on a path.
func ceiling(snapshot *policy.Snapshot, c policy.Client, path string) string {
	applied := snapshot.AppendMatches(nil, c, "GET", path)
	if len(applied) == 0 {
		return "none"
	}
	return applied[0].Rule.Limit.String()
}
