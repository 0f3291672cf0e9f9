package postgres

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/time/rate"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// useGranularity is how exact it is when a key was last used.
const useGranularity = 10 * time.Second

// keys is what is known of API keys, by their hash.
type keys struct {
	client  *client
	known   *otter.Cache[[32]byte, *knownKey]
	unknown *otter.Cache[[32]byte, struct{}]
	lookups lookups
	usage   usage

	// mu is held while answers of the database go into the caches, so that none
	// overtakes a newer one.
	mu    sync.Mutex
	state epochRow  // what the caches are current with
	at    time.Time // when they were
}

// knownKey is a key that exists; it may have ended.
type knownKey struct {
	policy.APIKey
	until time.Time    // when it ceases to work; zero means never
	noted atomic.Int64 // when its use was last noted, in nanoseconds since 1970
}

func newKeys(c *client) (*keys, error) {
	k := &keys{client: c}
	k.lookups.keys = k
	k.lookups.waiting = make(map[[32]byte]*lookup)
	k.lookups.pace = rate.NewLimiter(maxQueryRate, maxQueryBurst)
	k.usage.at = make(map[string]time.Time)
	var err error
	if k.known, err = otter.New(&otter.Options[[32]byte, *knownKey]{MaximumSize: defaultMaxKeys}); err != nil {
		return nil, err
	}
	k.unknown, err = otter.New(&otter.Options[[32]byte, struct{}]{MaximumSize: defaultMaxKeys})
	return k, err
}

func (k *keys) close() {
	k.known.StopAllGoroutines()
	k.unknown.StopAllGoroutines()
}

// resize bounds both caches.
func (k *keys) resize(most int) {
	k.known.SetMaximum(uint64(most))
	k.unknown.SetMaximum(uint64(most))
}

// find answers from memory, or waits for one query.
func (k *keys) find(ctx context.Context, sum [32]byte, timeout time.Duration) (policy.APIKey, bool) {
	if key, ok := k.known.GetIfPresent(sum); ok {
		metrics.CountLookUp(metrics.LookUpHit)
		return k.use(key)
	}
	if _, ok := k.unknown.GetIfPresent(sum); ok {
		metrics.CountLookUp(metrics.LookUpNegative)
		return policy.APIKey{}, false
	}
	l := k.lookups.ask(sum)
	if l == nil {
		metrics.CountLookUp(metrics.LookUpSkipped)
		return policy.APIKey{}, false
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-l.done:
		metrics.CountLookUp(l.result())
		if l.key != nil {
			return k.use(l.key)
		}
	case <-timer.C:
		metrics.CountLookUp(metrics.LookUpTimeout)
	case <-ctx.Done(): // the client has gone
	}
	return policy.APIKey{}, false
}

// use reports whether the key works now, and notes that it was used.
func (k *keys) use(key *knownKey) (policy.APIKey, bool) {
	now := time.Now()
	if !key.until.IsZero() && !now.Before(key.until) {
		return policy.APIKey{}, false
	}
	last := key.noted.Load()
	if now.UnixNano()-last >= int64(useGranularity) && key.noted.CompareAndSwap(last, now.UnixNano()) {
		k.usage.note(key.ID, now)
	}
	return key.APIKey, true
}

// isAt reports whether the caches are current with a state.
func (k *keys) isAt(state epochRow) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != state {
		return false
	}
	k.at = time.Now()
	return true
}

// epochIs is the epoch that the caches are current with.
func (k *keys) epochIs() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Epoch
}

// update makes the caches current with a state that tx sees.
func (k *keys) update(ctx context.Context, tx querier, state epochRow) error {
	k.mu.Lock()
	old, at := k.state, k.at
	k.mu.Unlock()
	changed, all, err := changedKeys(ctx, tx, old.Epoch)
	if err != nil {
		return err
	}
	// What cannot be pieced together from the list of changes is read anew.
	if all || old.Store != state.Store || old.Epoch > state.Epoch || time.Since(at) > horizon {
		return k.updateAll(ctx, tx, state)
	}
	return k.updateSome(ctx, tx, state, changed)
}

// changedKeys reads which hashes changed since an epoch, or that all may have.
func changedKeys(ctx context.Context, q querier, since int64) (sums [][32]byte, all bool, err error) {
	rows, err := q.Query(ctx, "SELECT DISTINCT sha256 FROM rate_limit_key_changes WHERE epoch > $1", since)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var sum []byte
		if err := rows.Scan(&sum); err != nil {
			return nil, false, err
		}
		if len(sum) != 32 {
			all = true
			continue
		}
		sums = append(sums, [32]byte(sum))
	}
	return sums, all, rows.Err()
}

// updateAll reads every known key anew, and forgets the unknown ones.
func (k *keys) updateAll(ctx context.Context, tx querier, state epochRow) error {
	var cached [][32]byte
	for sum := range k.known.Keys() {
		cached = append(cached, sum)
	}
	found, err := readKeys(ctx, tx, cached)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unknown.InvalidateAll()
	for sum := range k.known.Keys() { // those that came in meanwhile as well
		k.replaceLocked(sum, found[sum])
	}
	k.state, k.at = state, time.Now()
	return nil
}

// updateSome reads changed keys anew, if they are known.
func (k *keys) updateSome(ctx context.Context, tx querier, state epochRow, changed [][32]byte) error {
	found, err := readKeys(ctx, tx, changed)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, sum := range changed {
		k.unknown.Invalidate(sum)
		k.replaceLocked(sum, found[sum])
	}
	k.state, k.at = state, time.Now()
	return nil
}

// replaceLocked puts an answer in the place of the one before, if there is one.
func (k *keys) replaceLocked(sum [32]byte, key *knownKey) {
	old, ok := k.known.GetEntryQuietly(sum)
	switch {
	case !ok:
	case key == nil:
		k.known.Invalidate(sum)
	default:
		key.noted.Store(old.Value.noted.Load())
		k.known.Set(sum, key)
	}
}

// keep takes the answer of a look-up that saw an epoch. If the caches are
// already newer, the answer may be outdated and is not kept.
func (k *keys) keep(sum [32]byte, key *knownKey, state epochRow) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if state.Store != k.state.Store && k.state.Store != "" || state.Epoch < k.state.Epoch {
		return
	}
	if key == nil {
		k.unknown.Set(sum, struct{}{})
		return
	}
	k.known.Set(sum, key)
}

// chunk bounds how many keys one query asks for.
const chunk = 5000

// readKeys reads the keys that have these hashes.
func readKeys(ctx context.Context, q querier, sums [][32]byte) (map[[32]byte]*knownKey, error) {
	found := make(map[[32]byte]*knownKey, len(sums))
	for len(sums) > 0 {
		part := sums[:min(chunk, len(sums))]
		sums = sums[len(part):]
		if err := readChunk(ctx, q, part, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

const selectKeys = `SELECT h.sha256, h.until, k.id, k.tier, k.expires_at, k.revoked_at
	FROM rate_limit_api_key_hashes h JOIN rate_limit_api_keys k ON k.id = h.key_id WHERE h.sha256 = ANY ($1)`

func readChunk(ctx context.Context, q querier, sums [][32]byte, found map[[32]byte]*knownKey) error {
	rows, err := collect[foundRow](ctx, q, selectKeys, slicesOf(sums))
	if err != nil {
		return err
	}
	for _, r := range rows {
		found[[32]byte(r.SHA256)] = r.key()
	}
	return nil
}

// foundRow is what requests need of a key.
type foundRow struct {
	SHA256    []byte     `db:"sha256"`
	Until     *time.Time `db:"until"`
	ID        string     `db:"id"`
	Tier      string     `db:"tier"`
	ExpiresAt *time.Time `db:"expires_at"`
	RevokedAt *time.Time `db:"revoked_at"`
}

func (r foundRow) key() *knownKey {
	record := policy.KeyRecord{SHA256: [32]byte(r.SHA256), ExpiresAt: instant(r.ExpiresAt), RevokedAt: instant(r.RevokedAt)}
	if r.Until != nil {
		record = policy.KeyRecord{PreviousSHA256: record.SHA256, PreviousUntil: *r.Until, ExpiresAt: record.ExpiresAt, RevokedAt: record.RevokedAt}
	}
	until, _ := record.WorksUntil([32]byte(r.SHA256))
	return &knownKey{APIKey: policy.APIKey{ID: r.ID, Tier: r.Tier}, until: until}
}
