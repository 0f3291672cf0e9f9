package embedded

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Of the audit, the main document holds at most auditHeld records; when there
// are more, the oldest segmentSize move to a document of their own.
const (
	auditHeld   = 200
	segmentSize = 100
)

// storedChange is an audit record.
type storedChange struct {
	ID     int64           `json:"id"`
	At     time.Time       `json:"at"`
	Actor  string          `json:"actor"`
	Action string          `json:"action"`
	Kind   string          `json:"kind"`
	Key    string          `json:"key"`
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// segment is a document with older audit records.
type segment struct {
	First int64     `json:"first"`
	Last  int64     `json:"last"`
	Until time.Time `json:"until"` // when its newest change was made
}

func (g segment) key() string { return fmt.Sprintf("%s/%020d.json", auditFolder, g.First) }

// audit records the change of a record; before or after is nil.
func (tx *transaction) audit(c policy.Change, kind, key string, before, after any) (err error) {
	r := storedChange{At: tx.now, Actor: c.Actor, Action: c.Action, Kind: kind, Key: key}
	if r.Before, err = auditJSON(before); err != nil {
		return err
	}
	if r.After, err = auditJSON(after); err != nil {
		return err
	}
	tx.doc.LastAudit++
	r.ID = tx.doc.LastAudit
	tx.doc.Audit = append(tx.doc.Audit, r)
	return nil
}

func auditJSON(record any) (json.RawMessage, error) {
	if record == nil {
		return nil, nil
	}
	return json.Marshal(record)
}

// moveAudit moves old records out of the document. A segment is written before
// the document that names it, so a crash in between loses nothing; the next
// change writes the same segment again.
func (s *store) moveAudit(ctx context.Context, d *document) error {
	for len(d.Audit) > auditHeld {
		old := d.Audit[:segmentSize]
		g := segment{First: old[0].ID, Last: old[segmentSize-1].ID, Until: old[segmentSize-1].At}
		b, err := json.Marshal(old)
		if err != nil {
			return err
		}
		if err := s.storage.Store(ctx, g.key(), b); err != nil {
			return &storageError{fmt.Errorf("store the audit: %w", err)}
		}
		d.Audit, d.Segments = d.Audit[segmentSize:], append(d.Segments, g)
	}
	return nil
}

// expire drops what the document need not keep any longer, and returns the
// segments to delete once it is stored.
func (d *document) expire(now time.Time, retention time.Duration) (dropped []segment) {
	d.Replays = slices.DeleteFunc(d.Replays, func(r storedReplay) bool { return now.Sub(r.At) >= policy.IdempotencyRetention })
	d.Audit = slices.DeleteFunc(d.Audit, func(c storedChange) bool { return now.Sub(c.At) >= retention })
	kept := d.Segments[:0]
	for _, g := range d.Segments {
		if now.Sub(g.Until) >= retention {
			dropped = append(dropped, g)
		} else {
			kept = append(kept, g)
		}
	}
	d.Segments = kept
	return dropped
}

// Record adds a record to the audit of what is no change of what is stored.
func (s *store) Record(ctx context.Context, c policy.Change, kind, key string, before json.RawMessage) error {
	return s.change(ctx, func(tx *transaction) error { return tx.audit(c, kind, key, before, nil) })
}

// ListAudit lists changes, the newest first.
func (s *store) ListAudit(ctx context.Context, p policy.Page) ([]policy.AuditRecord, error) {
	before, err := auditCursor(p.After)
	if err != nil {
		return nil, err
	}
	d, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	records := appendAudit(nil, d.Audit, before, p.PageLimit())
	for _, g := range slices.Backward(d.Segments) {
		if len(records) == p.PageLimit() {
			break
		}
		if g.First >= before {
			continue
		}
		old, err := s.readSegment(ctx, g)
		if err != nil {
			return nil, err
		}
		records = appendAudit(records, old, before, p.PageLimit())
	}
	return records, nil
}

// auditCursor reads the id behind which a page begins; none is the newest.
func auditCursor(after string) (int64, error) {
	if after == "" {
		return 1<<63 - 1, nil
	}
	id, err := strconv.ParseInt(after, 10, 64)
	if err != nil {
		return 0, &policy.FieldError{Field: "after", Detail: fmt.Sprintf("%q is not the id of an audit record; take it from the page before", after)}
	}
	return id, nil
}

func (s *store) readSegment(ctx context.Context, g segment) ([]storedChange, error) {
	b, err := s.storage.Load(ctx, g.key())
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	var old []storedChange
	if err := json.Unmarshal(b, &old); err != nil {
		return nil, fmt.Errorf("read the audit %s: %w", g.key(), err)
	}
	return old, nil
}

func appendAudit(dst []policy.AuditRecord, stored []storedChange, before int64, most int) []policy.AuditRecord {
	for _, c := range slices.Backward(stored) {
		if len(dst) == most {
			break
		}
		if c.ID < before {
			dst = append(dst, policy.AuditRecord{
				ID: c.ID, At: c.At, Change: policy.Change{Actor: c.Actor, Action: c.Action},
				Kind: c.Kind, Key: c.Key, Before: c.Before, After: c.After,
			})
		}
	}
	return dst
}
