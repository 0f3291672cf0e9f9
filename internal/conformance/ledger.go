package conformance

import (
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// ledger is a test of one bucket.
type ledger struct {
	name string
	rows []row
}

// row is one request to the ledger's bucket and what it must answer.
type row struct {
	at    time.Duration // since the start
	limit string        // empty: the one of the row above
	cost  int64
	want  policy.Decision
}

func (l ledger) play(s *session) {
	limit := ""
	for i, r := range l.rows {
		if r.limit != "" {
			limit = r.limit
		}
		s.at(r.at)
		s.expect([]policy.Bucket{bucket(limit, r.cost)}, r.want)
		if s.Failed() {
			s.Fatalf("row %d is the first that is wrong", i+1)
		}
	}
}

// Units of the ledgers.
const (
	us     = time.Microsecond
	sec    = time.Second
	minute = time.Minute
	hour   = time.Hour
	day    = 24 * time.Hour
)
