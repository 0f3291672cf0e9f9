package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// faultyStorage fails to read or to store one key on demand.
type faultyStorage struct {
	certmagic.Storage

	mu      sync.Mutex
	storing string // what is in this key fails to be stored
	away    bool   // nothing can be read
}

var errFault = errors.New("the disk is on fire")

func (f *faultyStorage) fail(storing string, away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.storing, f.away = storing, away
}

func (f *faultyStorage) Store(ctx context.Context, key string, value []byte) error {
	f.mu.Lock()
	fails := f.away || f.storing != "" && strings.HasPrefix(key, f.storing)
	f.mu.Unlock()
	if fails {
		return errFault
	}
	return f.Storage.Store(ctx, key, value)
}

func (f *faultyStorage) Load(ctx context.Context, key string) ([]byte, error) {
	f.mu.Lock()
	away := f.away
	f.mu.Unlock()
	if away {
		return nil, errFault
	}
	return f.Storage.Load(ctx, key)
}

var by = policy.Change{Actor: "alice", Action: "create"}

const patience = 30 * time.Second

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s still not: %s", patience, what)
		}
	}
}

func (p *Provider) ceilingOf(tier string) string {
	return p.Snapshot().AppendMatches(nil, policy.Client{Tier: tier}, "GET", "/")[0].Rule.Limit.String()
}

func setLimit(t *testing.T, p *Provider, count int64) error {
	t.Helper()
	r, err := p.GetPolicy(t.Context(), "default-pro")
	if err != nil {
		t.Fatal(err)
	}
	r.Limit.Count = count
	_, err = p.UpdatePolicy(t.Context(), by, r)
	return err
}

// A crash between two writes looks to the others like a write that failed.
func TestAChangeThatFailsHalfwayChangesNothingAndTheNextOneSucceeds(t *testing.T) {
	t.Parallel()
	storage := &faultyStorage{Storage: &certmagic.FileStorage{Path: t.TempDir()}}
	a, b := instance(t, storage), instance(t, storage)
	if err := setLimit(t, a, 601); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{noticeKey, documentKey} {
		storage.fail(key, false)
		if err := setLimit(t, a, 700); !errors.Is(err, errFault) {
			t.Errorf("%s cannot be stored: got %v", key, err)
		}
		storage.fail("", false)
		for _, p := range []*Provider{a, b} {
			if err := p.refresh(t.Context(), false); err != nil || p.ceilingOf("PRO") != "601/1m" {
				t.Errorf("after a failure to store %s: %s, %v", key, p.ceilingOf("PRO"), err)
			}
		}
	}
	if all, err := a.ListAudit(t.Context(), policy.Page{}); err != nil || len(all) != 1 {
		t.Errorf("the audit has %d changes, %v, want 1", len(all), err)
	}
	if err := setLimit(t, a, 602); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other instance to have it", func() bool { return b.ceilingOf("PRO") == "602/1m" })
}

func TestRequestsGoOnWhileTheStorageIsAway(t *testing.T) {
	t.Parallel()
	storage := &faultyStorage{Storage: &certmagic.FileStorage{Path: t.TempDir()}}
	p := instance(t, storage)
	core, logs := observer.New(zapcore.DebugLevel)
	p.logger = zap.New(core)
	key := policy.NewKey()
	if _, _, err := p.CreateKey(t.Context(), by, policy.KeyRecord{Tier: "PRO", SHA256: policy.HashKey(key)}, "", nil); err != nil {
		t.Fatal(err)
	}
	storage.fail("", true)
	if _, err := p.GetTier(t.Context(), "PRO"); !errors.Is(err, errFault) {
		t.Errorf("a read for the admin API: got %v", err)
	}
	if err := p.DeleteTier(t.Context(), by, "PRO", 1); !errors.Is(err, errFault) {
		t.Errorf("a change: got %v", err)
	}
	if _, ok := p.APIKey(t.Context(), policy.HashKey(key)); !ok || p.ceilingOf("PRO") != "600/1m" {
		t.Error("a known key or the policies are gone")
	}
	if up, _, err := p.Health(); up || !errors.Is(err, errFault) {
		t.Errorf("health is %t, %v", up, err)
	}
	storage.fail("", false)
	eventually(t, "recovery by itself", func() bool { up, _, _ := p.Health(); return up })
	if n := logs.FilterLevelExact(zapcore.ErrorLevel).Len(); n != 1 {
		t.Errorf("one outage is logged %d times", n)
	}
}

// A folder that is not mounted is no reason to begin a new store in its place.
func TestAStoreThatVanishedIsNotReplaced(t *testing.T) {
	t.Parallel()
	storage := &certmagic.FileStorage{Path: t.TempDir()}
	p := instance(t, storage)
	if err := setLimit(t, p, 601); err != nil {
		t.Fatal(err)
	}
	kept, err := storage.Load(t.Context(), documentKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := storage.Delete(t.Context(), folder); err != nil {
		t.Fatal(err)
	}
	if _, err := p.CreateTier(t.Context(), by, policy.TierRecord{Name: "GOLD"}); !errors.Is(err, errVanished) {
		t.Errorf("a change: got %v", err)
	}
	if p.ceilingOf("PRO") != "601/1m" || storage.Exists(t.Context(), documentKey) {
		t.Error("the policies are gone, or another store was begun")
	}
	if err := storage.Store(t.Context(), documentKey, kept); err != nil {
		t.Fatal(err)
	}
	if err := setLimit(t, p, 602); err != nil {
		t.Errorf("after it came back: %v", err)
	}
}

func TestADocumentThatCannotBeReadIsNeitherUsedNorOverwritten(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"cut off":              `{"format":1,"tiers":[`,
		"of a later version":   `{"format":2}`,
		"contradicts itself":   `{"format":1,"store":"s","epoch":5,"tiers":[{"name":"A"}],"policies":[{"id":"1","tier":"A","route":"*","limit":1,"window":"1s"},{"id":"2","tier":"A","route":"*","limit":1,"window":"1s"}]}`,
		"has a hash cut short": `{"format":1,"store":"s","epoch":5,"keys":[{"record":{"id":"k"},"sha256":"00"}]}`,
	} {
		storage := &certmagic.FileStorage{Path: t.TempDir()}
		p := instance(t, storage)
		if err := setLimit(t, p, 601); err != nil {
			t.Fatal(err)
		}
		if err := storage.Store(t.Context(), documentKey, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := p.refresh(t.Context(), true); err == nil || p.ceilingOf("PRO") != "601/1m" {
			t.Errorf("%s: read without an error (%v), or used", name, err)
		}
		if _, err := p.CreateTier(t.Context(), by, policy.TierRecord{Name: "GOLD"}); err == nil {
			t.Errorf("%s: overwritten", name)
		}
	}
}

func TestTheAuditMovesOutOfTheDocumentAndIsListedWhole(t *testing.T) {
	t.Parallel()
	storage := &certmagic.FileStorage{Path: t.TempDir()}
	p := instance(t, storage)
	const changes = 2*auditHeld + 7
	for i := range int64(changes) {
		if err := setLimit(t, p, 1000+i); err != nil {
			t.Fatal(err)
		}
	}
	d, err := p.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Audit) > auditHeld || len(d.Segments) < 2 {
		t.Errorf("the document holds %d changes and %d segments", len(d.Audit), len(d.Segments))
	}
	var ids []int64
	for page := (policy.Page{Limit: 30}); ; page.After = fmt.Sprint(ids[len(ids)-1]) {
		part, err := p.ListAudit(t.Context(), page)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range part {
			ids = append(ids, a.ID)
		}
		if len(part) < 30 {
			break
		}
	}
	for i, id := range ids {
		if id != int64(changes-i) {
			t.Fatalf("change %d of the list has the id %d", i, id)
		}
	}
	if len(ids) != changes {
		t.Errorf("%d changes are listed, want %d", len(ids), changes)
	}

	// when all of it is too old, the next change deletes it
	p.retention = time.Nanosecond
	if err := setLimit(t, p, 5000); err != nil {
		t.Fatal(err)
	}
	if all, err := p.ListAudit(t.Context(), policy.Page{}); err != nil || len(all) > 1 {
		t.Errorf("%d changes are still listed, %v", len(all), err)
	}
	if left, _ := storage.List(t.Context(), auditFolder, true); len(left) > 0 {
		t.Errorf("segments are left: %q", left)
	}
}

func TestAnAnswerIsKeptForADay(t *testing.T) {
	t.Parallel()
	d := newDocument(now())
	d.Replays = []storedReplay{{Idempotency: "same", At: now()}}
	if d.replay("same", now().Add(policy.IdempotencyRetention-time.Minute)) == nil || d.replay("other", now()) != nil || d.replay("", now()) != nil {
		t.Error("an answer is not found within a day, or one of another idempotency is")
	}
	if d.replay("same", now().Add(policy.IdempotencyRetention)) != nil {
		t.Error("an answer is found after a day")
	}
	d.expire(now().Add(policy.IdempotencyRetention), policy.DefaultAuditRetention)
	if len(d.Replays) != 0 {
		t.Error("an answer is kept for more than a day")
	}
}

func TestAnEndedProviderLeavesNothingBehind(t *testing.T) {
	// the storage's lock is kept fresh by a goroutine that ends some seconds
	// after the lock
	lock := goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh")
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent(), lock)
	p := &Provider{}
	p.setDefaults()
	p.open(&certmagic.FileStorage{Path: t.TempDir()}, zap.NewNop())
	if err := p.refresh(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	key := p.poolKey
	if err := p.Cleanup(); err != nil {
		t.Error(err)
	}
	if n, ok := stores.References(key); ok {
		t.Errorf("the shared state has %d users", n)
	}
	if err := p.Cleanup(); err != nil {
		t.Error("a second Cleanup:", err)
	}
	if err := new(Provider).Cleanup(); err != nil {
		t.Error("Cleanup without Provision:", err)
	}
}

func TestADifferentStorageIsADifferentStore(t *testing.T) {
	t.Parallel()
	type remote struct {
		certmagic.Storage
		Password string
	}
	a, b := storageName(&certmagic.FileStorage{Path: "/a"}), storageName(&certmagic.FileStorage{Path: "/b"})
	if a == b || a != storageName(&certmagic.FileStorage{Path: "/a"}) {
		t.Errorf("got %s and %s", a, b)
	}
	if name := storageName(&remote{Password: "s3cret"}); strings.Contains(name, "s3cret") || name == storageName(&remote{Password: "other"}) {
		t.Errorf("got %s", name)
	}
}

// What a process leaves that is killed while it makes a change.
func TestTheLockOfSomebodyWhoWasKilledKeepsNobodyOutForEver(t *testing.T) {
	t.Parallel()
	storage := &certmagic.FileStorage{Path: t.TempDir()}
	p := opened(t, storage)
	if err := setLimit(t, p, 601); err != nil {
		t.Fatal(err)
	}
	turn, err := p.readTurn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now, err := json.Marshal(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	lock := fmt.Appendf(nil, `{"created":%s,"updated":%s}`, now, now)
	if err := storage.Store(t.Context(), "locks/"+certmagic.StorageKeys.Safe(lockPrefix+turn)+".lock", lock); err != nil {
		t.Fatal(err)
	}
	if err := setLimit(t, p, 602); err != nil {
		t.Error(err)
	}
	if got := p.ceilingOf("PRO"); got != "602/1m" {
		t.Errorf("PRO has %s", got)
	}
}

func TestHealthTellsThatTheStoreCannotBeChanged(t *testing.T) {
	t.Parallel()
	for _, key := range []string{noticeKey, documentKey, turnKey} {
		storage := &faultyStorage{Storage: &certmagic.FileStorage{Path: t.TempDir()}}
		p := instance(t, storage)
		if err := setLimit(t, p, 601); err != nil {
			t.Fatal(err)
		}
		storage.fail(key, false)
		if err := setLimit(t, p, 602); (err == nil) != (key == turnKey) {
			t.Errorf("%s cannot be stored: got %v", key, err)
		}
		if up, _, err := p.Health(); up || !errors.Is(err, errFault) {
			t.Errorf("%s cannot be stored: health is %t, %v", key, up, err)
		}
		storage.fail("", false)
		eventually(t, "recovery by itself", func() bool { up, _, _ := p.Health(); return up })
	}
}
