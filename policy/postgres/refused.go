package postgres

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// complain logs an error of every row that cannot be used, once for each version
// of it.
func (c *client) complain(logger *zap.Logger, refused []policy.Refused) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := make(map[string]string, len(refused))
	for _, r := range refused {
		blame := fmt.Sprintf("%d %v", r.Version, r.Err)
		if now[r.ID] = blame; c.blamed[r.ID] == blame {
			continue
		}
		logger.Error("a stored policy cannot be used; change or delete it with the admin API",
			zap.String("id", r.ID), zap.Int64("version", r.Version), zap.Error(r.Err), zap.String("applies_instead", r.Instead))
	}
	c.blamed = now
}

// Refused lists what is stored and cannot be used.
func (c *client) Refused() []policy.Refused {
	if k := c.known.Load(); k != nil {
		return k.refused
	}
	return nil
}
