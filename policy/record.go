package policy

import (
	"errors"
	"fmt"
	"time"
)

// What a provider that stores keeps, and what the admin API shows of it. A
// record's Version starts at 1 and grows with every change of it; a change names
// the version that it is based on.

// TierRecord is a stored tier.
type TierRecord struct {
	Name      string
	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
}

// PolicyRecord is a stored policy.
type PolicyRecord struct {
	Policy
	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
}

// KeyRecord is a stored API key. The key itself is nowhere in it.
type KeyRecord struct {
	ID     string // public: k followed by random letters and digits
	Prefix string // the first characters of the key, to recognize it by; not secret
	Client string // who has it: any text, for people
	Tier   string
	SHA256 [32]byte // of the key; unique

	// After a rotation, the SHA-256 of the key before and until when it works.
	// Zero if there is none.
	PreviousSHA256 [32]byte
	PreviousUntil  time.Time

	CreatedAt  time.Time
	UpdatedAt  time.Time
	ExpiresAt  time.Time // zero: never
	RevokedAt  time.Time // zero: not revoked
	LastUsedAt time.Time // zero: never; a few seconds late
	Version    int64
}

// AuditRecord is one change, kept with it.
type AuditRecord struct {
	ID     int64 // grows
	At     time.Time
	Change        // who and what
	Kind   string // tier, policy or api_key
	Key    string // the record's name or id
	Before []byte // JSON of the record, without secrets; nil if it was created
	After  []byte // nil if it was deleted
}

// Change says who changes a record, and how it is called in the audit.
type Change struct {
	Actor  string // the subject of the admin's token
	Action string // create, update, delete, rotate, revoke, reset_usage
}

// Page asks for a part of a list: at most Limit records behind the one whose
// name or id is After.
type Page struct {
	After string
	Limit int
}

// Errors of a store. They are wrapped; ask with errors.Is and errors.As.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("already exists")
	ErrConflict = errors.New("was changed by somebody else meanwhile") // the version differs
	ErrInUse    = errors.New("is in use")
)

// FieldError is a value that a record cannot have.
type FieldError struct {
	Field  string // as in the admin API's JSON: limit, tier, ...
	Detail string // what is wrong and what is allowed
}

// Error names the field and what is allowed.
func (e *FieldError) Error() string { return fmt.Sprintf("%s: %s", e.Field, e.Detail) }
