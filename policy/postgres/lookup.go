package postgres

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"
)

// Bounds of what made-up keys can cost.
const (
	maxQueries  = 2    // in flight
	maxTogether = 1024 // keys in one query
	maxWaiting  = 4096 // keys that wait for their answer

	// Beyond a burst, this many queries a second: a key waits a moment longer
	// then, and takes others that came meanwhile along.
	maxQueryRate  = 200
	maxQueryBurst = 100
)

// queryTimeout bounds a query for keys. One that takes longer counts as an
// outage: no request waits that long.
const queryTimeout = time.Second

// lookup is one key that is looked up, by whoever asks for it meanwhile.
type lookup struct {
	sum  [32]byte
	done chan struct{} // closed when key is set
	key  *knownKey     // nil: unknown, or no answer
	err  error         // why there is none
}

// lookups brings those that ask at the same time together.
type lookups struct {
	keys    *keys
	queries atomic.Int64 // so far
	pace    *rate.Limiter

	mu      sync.Mutex
	waiting map[[32]byte]*lookup // without an answer
	queue   []*lookup            // not asked for yet
	running int
	ended   bool
}

// end lets no further look-up begin.
func (l *lookups) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// ask joins the look-up of a key or begins one. It is nil if there is no point
// in waiting.
func (l *lookups) ask(sum [32]byte) *lookup {
	if !l.keys.client.up() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.waiting[sum]; one != nil {
		return one
	}
	if len(l.waiting) >= maxWaiting || l.ended {
		return nil
	}
	one := &lookup{sum: sum, done: make(chan struct{})}
	l.waiting[sum] = one
	l.queue = append(l.queue, one)
	if l.running < maxQueries {
		l.running++
		l.keys.client.wg.Go(l.run)
	}
	return one
}

// run asks for queued keys until there are none.
func (l *lookups) run() {
	for {
		_ = l.pace.Wait(l.keys.client.ctx) // at the client's end, the query fails
		batch := l.next()
		if batch == nil {
			return
		}
		began := time.Now()
		err := l.query(batch)
		l.finish(batch, err)
		if c := l.keys.client; err != nil && c.ctx.Err() == nil {
			c.note(began, err)
			c.kick()
		}
	}
}

// next takes keys from the queue; nil ends the goroutine that asks.
func (l *lookups) next() []*lookup {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.queue), maxTogether)
	if n == 0 {
		l.running--
		return nil
	}
	batch := l.queue[:n:n]
	if l.queue = l.queue[n:]; len(l.queue) == 0 {
		l.queue = nil
	}
	return batch
}

func (l *lookups) finish(batch []*lookup, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range batch {
		delete(l.waiting, one.sum)
		one.err = err
		close(one.done)
	}
}

// query fills the answers in and keeps them.
func (l *lookups) query(batch []*lookup) error {
	l.queries.Add(1)
	ctx, cancel := context.WithTimeout(l.keys.client.ctx, queryTimeout)
	defer cancel()
	sums := make([][32]byte, len(batch))
	for i, one := range batch {
		sums[i] = one.sum
	}
	state, found, err := l.read(ctx, sums)
	if err != nil {
		return err
	}
	for _, one := range batch {
		one.key = found[one.sum]
		l.keys.keep(one.sum, one.key, state)
	}
	return nil
}

// read reads the epoch before the keys: an answer may be newer than the epoch
// says, never older.
func (l *lookups) read(ctx context.Context, sums [][32]byte) (state epochRow, found map[[32]byte]*knownKey, err error) {
	b := new(pgx.Batch)
	b.Queue(selectEpoch).Query(func(rows pgx.Rows) (err error) {
		state, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[epochRow])
		return err
	})
	found = make(map[[32]byte]*knownKey, len(sums))
	b.Queue(selectKeys, slicesOf(sums)).Query(func(rows pgx.Rows) error {
		all, err := pgx.CollectRows(rows, pgx.RowToStructByName[foundRow])
		for _, r := range all {
			found[[32]byte(r.SHA256)] = r.key()
		}
		return err
	})
	return state, found, l.keys.client.pool.SendBatch(ctx, b).Close()
}
