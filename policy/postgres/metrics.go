package postgres

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/internal/metrics"
)

// age is for how many seconds it has not been known that policies and keys are
// current; infinite if they never were.
func (c *client) age() float64 {
	k := c.known.Load()
	if k == nil || k.at.IsZero() {
		return math.Inf(1)
	}
	return time.Since(k.at).Seconds()
}

// result is how the look-up went, for those that waited until it was done.
func (l *lookup) result() metrics.LookUp {
	if l.err != nil {
		return metrics.LookUpTimeout
	}
	return metrics.LookUpMiss
}

// maxMeasured is the most changes that one look measures.
const maxMeasured = 1000

// measured is up to where changes were measured.
type measured struct {
	state epochRow
	audit int64 // the id of the newest change
}

// measure finds out how long changes took until they were in force here, all on the
// clock of the database. What happened before the first look is not measured, nor is
// what was changed by hand. Nothing depends on it, so a failure is only logged.
func (c *client) measure(ctx context.Context, q querier) {
	state := c.known.Load().state
	if state == c.measured.state {
		return
	}
	var err error
	if c.measured.state.Store == state.Store {
		err = c.measureChanges(ctx, q)
	} else {
		err = c.skipChanges(ctx, q)
	}
	if err != nil {
		c.logger().Debug("how long changes took to get here could not be measured", zap.Error(err))
		return
	}
	c.measured.state = state
}

func (c *client) measureChanges(ctx context.Context, q querier) error {
	delays, err := collect[delayRow](ctx, q, `SELECT max(id) AS id, extract(epoch FROM clock_timestamp() - at)::float8 AS delay
		FROM rate_limit_audit WHERE id > $1 GROUP BY at ORDER BY id LIMIT $2`, c.measured.audit, maxMeasured)
	if err != nil {
		return err
	}
	for _, d := range delays {
		metrics.ObservePropagation(time.Duration(d.Delay * float64(time.Second)))
		c.measured.audit = d.ID
	}
	if len(delays) == maxMeasured {
		return c.skipChanges(ctx, q)
	}
	return nil
}

// skipChanges begins with the next change.
func (c *client) skipChanges(ctx context.Context, q querier) error {
	rows, err := q.Query(ctx, "SELECT coalesce(max(id), 0) FROM rate_limit_audit")
	if err != nil {
		return err
	}
	c.measured.audit, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	return err
}

// delayRow is how many seconds ago a change was made. A change of several records
// has one.
type delayRow struct {
	ID    int64   `db:"id"`
	Delay float64 `db:"delay"`
}
