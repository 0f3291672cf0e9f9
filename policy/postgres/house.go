package postgres

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

const (
	usageInterval = 5 * time.Second // between writes of when keys were last used
	pruneInterval = time.Hour
	maxUses       = 10_000 // keys in one write
)

// usage is which keys were used and not written yet, and when.
type usage struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (u *usage) note(id string, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.at[id] = at
}

// take returns at most maxUses of the uses and forgets them.
func (u *usage) take() (ids []string, times []time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, at := range u.at {
		if len(ids) == maxUses {
			break
		}
		ids, times = append(ids, id), append(times, at)
		delete(u.at, id)
	}
	return ids, times
}

// keepHouse writes what need not be written on requests, until the client ends.
func (c *client) keepHouse() {
	ticks := time.NewTicker(usageInterval)
	defer ticks.Stop()
	var pruned time.Time
	for {
		select {
		case <-c.saves:
			c.save()
		case <-ticks.C:
			if !c.up() {
				continue
			}
			c.writeUsage()
			if time.Since(pruned) > pruneInterval && c.prune() {
				pruned = time.Now()
			}
		case <-c.ctx.Done():
			if c.up() {
				c.writeUsage()
			}
			return
		}
	}
}

// writeUsage writes when keys were last used. Rows are locked in order, so that
// instances that write at once do not lock each other out. What fails is lost:
// the next use of the key is written.
func (c *client) writeUsage() {
	ids, times := c.keys.usage.take()
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_, err := c.pool.Exec(ctx, `WITH used AS (SELECT * FROM unnest($1::text[], $2::timestamptz[]) AS u (id, at)),
		locked AS (SELECT k.id FROM rate_limit_api_keys k JOIN used USING (id) ORDER BY k.id FOR UPDATE OF k)
		UPDATE rate_limit_api_keys k SET last_used_at = greatest(k.last_used_at, used.at)
		FROM used JOIN locked USING (id) WHERE k.id = used.id`, ids, times)
	if err != nil {
		c.logger().Debug("when API keys were last used could not be written", zap.Error(err))
	}
}

// prune deletes what is older than anybody needs.
func (c *client) prune() bool {
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
	defer cancel()
	retention := policy.DefaultAuditRetention
	if p := c.inCharge(); p != nil {
		retention = time.Duration(p.AuditRetention)
	}
	for table, age := range map[string]time.Duration{
		"rate_limit_audit": retention, "rate_limit_idempotency": policy.IdempotencyRetention, "rate_limit_key_changes": keyChangeRetention,
	} {
		if _, err := c.pool.Exec(ctx, "DELETE FROM "+table+" WHERE at < now() - make_interval(secs => $1)", age.Seconds()); err != nil {
			c.logger().Warn("old records could not be deleted", zap.String("table", table), zap.Error(err))
			return false
		}
	}
	return true
}
