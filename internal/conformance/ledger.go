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

// ledgers are the ledgers of the algorithms. Those of aligned windows start where
// windows start.
var ledgers = []struct {
	algorithm string
	start     int64 // in microseconds since 1970
	ledgers   []ledger
}{
	{"token bucket", epoch, tokenBucketLedgers},
	{"leaky bucket", epoch, leakyBucketLedgers},
	{"fixed window", midnight, fixedWindowLedgers},
	{"sliding window", midnight, slidingWindowLedgers},
	{"sliding log", epoch, slidingLogLedgers},
	{"changed algorithm", midnight, changedAlgorithmLedgers},
}

// midnight starts a window of every length that a day is a multiple of.
var midnight = time.Date(2026, time.March, 15, 0, 0, 0, 0, time.UTC).UnixMicro()

// row is one request to the ledger's bucket and what it must answer.
type row struct {
	at    time.Duration // since the ledger's start
	limit string        // empty: the one of the row above
	cost  int64
	want  policy.Decision
}

func (l ledger) play(s *session, start int64) {
	s.start = start
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
