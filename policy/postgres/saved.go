package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const (
	savedFormat = 1

	// saveInterval is how old the time in the saved policies may become while
	// nothing changes.
	saveInterval = time.Hour

	storageTimeout = 5 * time.Second
)

// saved is the policies as they are kept in Caddy's storage, for a start without
// the database.
type saved struct {
	Format   int                   `json:"format"`
	At       time.Time             `json:"at"` // when the policies were last found to be current
	Tiers    []policy.TierRecord   `json:"tiers"`
	Policies []policy.PolicyRecord `json:"policies"`
}

func (c *client) savedKey() string { return "rate_limit/postgres/" + c.place + ".json" }

// save keeps the policies in the storage of the running configuration, if they
// changed or were saved too long ago.
func (c *client) save() {
	c.saving.Lock()
	defer c.saving.Unlock()
	p, k := c.inCharge(), c.known.Load()
	if p == nil || k == nil || k.state.Store == "" {
		return
	}
	if c.last.state.PoliciesEpoch == k.state.PoliciesEpoch && c.last.state.Store == k.state.Store &&
		c.last.storage == p.storage && k.at.Sub(c.last.at) < saveInterval {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, storageTimeout)
	defer cancel()
	b, err := json.Marshal(saved{Format: savedFormat, At: k.at.UTC(), Tiers: k.tiers, Policies: k.policies})
	if err == nil {
		err = p.storage.Store(ctx, c.savedKey(), b)
	}
	if err != nil && c.ctx.Err() == nil {
		p.logger.Warn("the policies could not be kept in Caddy's storage; a start without the database would not have them", zap.Error(err))
	}
	if err == nil {
		c.last = lastSave{state: k.state, storage: p.storage, at: k.at}
	}
}

// lastSave is what was saved last, and where.
type lastSave struct {
	state   epochRow
	storage certmagic.Storage
	at      time.Time
}

// recall uses the saved policies, since the database could not be read.
func (c *client) recall(p *Provider, cause error) {
	ctx, cancel := context.WithTimeout(c.ctx, storageTimeout)
	defer cancel()
	k, err := c.readSaved(ctx, p.storage)
	if err != nil {
		lacking := "the saved policies cannot be read either"
		if errors.Is(err, fs.ErrNotExist) {
			lacking = "there are no saved policies"
		}
		p.logger.Error("postgres cannot be read, and "+lacking+": every client has the strictest built-in limit until it can",
			zap.String("database", c.address()), zap.Error(cause), zap.String("in_storage", c.savedKey()), zap.NamedError("saved", err))
		return
	}
	if c.known.CompareAndSwap(nil, k) {
		p.logger.Warn("postgres cannot be read; the policies are the ones that were saved last",
			zap.String("database", c.address()), zap.Time("saved_at", k.at), zap.Duration("age", time.Since(k.at).Round(time.Second)), zap.Error(cause))
	}
}

func (c *client) readSaved(ctx context.Context, storage certmagic.Storage) (*knowledge, error) {
	b, err := storage.Load(ctx, c.savedKey())
	if err != nil {
		return nil, err
	}
	var s saved
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	if s.Format != savedFormat {
		return nil, fmt.Errorf("the saved policies have the format %d, and this version reads %d", s.Format, savedFormat)
	}
	snapshot, err := policy.Compile(s.Tiers, s.Policies)
	if err != nil {
		return nil, err
	}
	return &knowledge{snapshot: snapshot, tiers: s.Tiers, policies: s.Policies, at: s.At}, nil
}
