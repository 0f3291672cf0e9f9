package admin

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Key is an API key, as the API shows it. The key itself is not in it.
type Key struct {
	ID            string     `json:"id" doc:"Names the key here, in logs and in counters."`
	Prefix        string     `json:"prefix" doc:"The first characters of the key, to recognize it by."`
	Client        string     `json:"client" doc:"Who has it."`
	Tier          string     `json:"tier"`
	CreatedAt     *time.Time `json:"created_at"`
	UpdatedAt     *time.Time `json:"updated_at,omitempty"`
	ExpiresAt     *time.Time `json:"expires_at" doc:"Null: never."`
	RevokedAt     *time.Time `json:"revoked_at" doc:"Null: it is not revoked."`
	LastUsedAt    *time.Time `json:"last_used_at" doc:"A few seconds late. Null: never."`
	PreviousUntil *time.Time `json:"previous_until,omitempty" doc:"After a rotation, until when the key before works too."`
	Version       int64      `json:"version" doc:"Grows with every change; the ETag holds it."`
}

// IssuedKey is the answer to a request that made a key: the only one that has it.
type IssuedKey struct {
	Key
	Secret string `json:"key,omitempty" doc:"The API key. It is shown this once, and nobody can find it out later. Absent for one that was imported."`
}

// NewKey is what a key is created with.
type NewKey struct {
	Client    string       `json:"client" minLength:"1" doc:"Who has it: any text, for people."`
	Tier      string       `json:"tier" doc:"The tier that it belongs to."`
	ExpiresAt OptionalTime `json:"expires_at,omitzero" doc:"When it ceases to work. Absent or null: never."`
	SHA256    string       `json:"sha256,omitempty" doc:"To import a key that exists: its SHA-256 in hex. Absent, a new key is made."`
	Prefix    string       `json:"prefix,omitempty" doc:"With sha256: the first characters of the key, to recognize it by."`
}

// KeyChange is what of a key is to change; what is absent stays.
type KeyChange struct {
	Client    *string      `json:"client,omitempty" doc:"Who has it."`
	Tier      *string      `json:"tier,omitempty" doc:"The tier that it belongs to; takes effect at once."`
	ExpiresAt OptionalTime `json:"expires_at,omitzero" doc:"When it ceases to work; null for never."`
}

// OptionalTime is a field that is absent, null (the zero time) or a time, to the
// microsecond.
type OptionalTime struct {
	Set  bool
	Time time.Time
}

// UnmarshalJSON reads a time or null. The zero time is not one that can be
// written: it would be taken for null.
func (o *OptionalTime) UnmarshalJSON(text []byte) error {
	o.Set = true
	if string(text) == "null" {
		return nil
	}
	if err := json.Unmarshal(text, &o.Time); err != nil {
		return err
	}
	o.Time = exactly(o.Time)
	if o.Time.IsZero() {
		o.Time = o.Time.Add(time.Microsecond)
	}
	return nil
}

// exactly is a time in the precision that all stores keep, so that an answer never
// differs from what is read later.
func exactly(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// IsZero reports whether the field is absent.
func (o OptionalTime) IsZero() bool { return !o.Set }

// Schema describes the field in the document.
func (OptionalTime) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "date-time", Nullable: true}
}

func showKey(k policy.KeyRecord) Key {
	return Key{
		ID: k.ID, Prefix: k.Prefix, Client: k.Client, Tier: k.Tier,
		CreatedAt: moment(k.CreatedAt), UpdatedAt: moment(k.UpdatedAt),
		ExpiresAt: moment(k.ExpiresAt), RevokedAt: moment(k.RevokedAt), LastUsedAt: moment(k.LastUsedAt),
		PreviousUntil: moment(k.PreviousUntil), Version: k.Version,
	}
}

// record returns what is stored of a key, and the key, which is not; it is empty
// for an imported one.
func (n NewKey) record() (k policy.KeyRecord, secret string, p *Problem) {
	k = policy.KeyRecord{Client: n.Client, Tier: n.Tier, ExpiresAt: n.ExpiresAt.Time}
	switch {
	case n.SHA256 != "":
		sum, err := hex.DecodeString(n.SHA256)
		if err != nil || len(sum) != len(k.SHA256) {
			return k, "", wrongField("body", "sha256", `it is not a SHA-256 in hex, 64 digits; make it with printf %s "$KEY" | sha256sum, or leave it out for a new key`)
		}
		copy(k.SHA256[:], sum)
		k.Prefix = n.Prefix
	case n.Prefix != "":
		return k, "", wrongField("body", "prefix", "a new key has its own; leave it out, or import a key by its sha256")
	default:
		secret = policy.NewKey()
		k.SHA256, k.Prefix = policy.HashKey(secret), policy.KeyPrefix(secret)
	}
	return k, secret, nil
}

type keyAnswer struct {
	ETag string `header:"ETag" doc:"The version, for If-Match."`
	Body Key
}

func answerKey(k policy.KeyRecord) *keyAnswer {
	return &keyAnswer{ETag: etag(k.Version), Body: showKey(k)}
}

type issuedAnswer struct {
	ETag     string `header:"ETag" doc:"The version, for If-Match."`
	Location string `header:"Location" doc:"Where the new key stands, relative to the request."`
	Replayed string `header:"Idempotency-Replayed" doc:"true, if this answer was given before."`
	Body     IssuedKey
}

func answerIssued(k policy.KeyRecord, secret string) *issuedAnswer {
	return &issuedAnswer{ETag: etag(k.Version), Body: IssuedKey{Key: showKey(k), Secret: secret}}
}

func (a *API) registerKeys() {
	const list, one = "/api-keys", "/api-keys/{id}"
	register(a, operation{
		id: "list-api-keys", method: http.MethodGet, path: list, access: reads,
		summary: "List API keys, by id: all, or those of a tier",
	}, a.listKeys)
	register(a, operation{
		id: "create-api-key", method: http.MethodPost, path: list, access: changes, status: http.StatusCreated,
		summary: "Create an API key, or import one by its hash",
	}, a.createKey)
	register(a, operation{
		id: "get-api-key", method: http.MethodGet, path: one, access: reads, errors: []int{http.StatusNotFound},
		summary: "Get an API key; the key itself is not in it",
	}, a.getKey)
	register(a, operation{
		id: "change-api-key", method: http.MethodPatch, path: one, access: changes, errors: changeErrors,
		summary: "Change an API key's client, tier or expiry",
	}, a.changeKey)
	register(a, operation{
		id: "delete-api-key", method: http.MethodDelete, path: one, access: changes, status: http.StatusNoContent, errors: changeErrors,
		summary: "Delete an API key",
	}, a.deleteKey)
}

func (a *API) listKeys(ctx context.Context, in *struct {
	Paged
	Tier string `query:"tier" doc:"Only those of this tier."`
},
) (*listed[Key], error) {
	page, p := in.page("api-keys")
	if p != nil {
		return nil, p
	}
	keys, err := a.reader.ListKeys(ctx, in.Tier, page)
	if err != nil {
		return nil, a.failed("the list of API keys", err)
	}
	return list(in.Paged, "api-keys", keys, func(k policy.KeyRecord) string { return k.ID }, showKey, url.Values{"tier": {in.Tier}}), nil
}

func (a *API) createKey(ctx context.Context, in *struct {
	IdempotencyKey string `header:"Idempotency-Key" maxLength:"255" doc:"A random text, like a UUID. The same request with the same one makes no second key within a day: it is answered with the first one's."`
	Body           NewKey
},
) (*issuedAnswer, error) {
	k, secret, p := in.Body.record()
	if p != nil {
		return nil, p
	}
	answer, err := a.issue(ctx, in.IdempotencyKey, in.Body, k, secret)
	if err != nil {
		return nil, a.failed("the API key", err)
	}
	answer.Location = "api-keys/" + segment(answer.Body.ID)
	return answer, nil
}

// issue stores a key. With an Idempotency-Key, the first answer for it is given.
func (a *API) issue(ctx context.Context, idempotencyKey string, asked NewKey, k policy.KeyRecord, secret string) (*issuedAnswer, error) {
	if idempotencyKey == "" {
		stored, _, err := a.store.CreateKey(ctx, change(ctx, "create"), k, "", nil)
		return answerIssued(stored, secret), err
	}
	s := newSeal(actorOf(ctx), idempotencyKey)
	mine := s.close(replay{Request: fingerprint(asked), Secret: secret})
	stored, kept, err := a.store.CreateKey(ctx, change(ctx, "create"), k, s.id, mine)
	if err != nil {
		return nil, err
	}
	if len(kept) == 0 || string(kept) == string(mine) {
		return answerIssued(stored, secret), nil
	}
	first, err := s.open(kept)
	if err != nil {
		return nil, err
	}
	if first.Request != fingerprint(asked) {
		return nil, wrongField("header", "Idempotency-Key", "it was sent with another request before; send a new one with a new request")
	}
	answer := answerIssued(stored, first.Secret)
	answer.Replayed = "true"
	return answer, nil
}

func (a *API) getKey(ctx context.Context, in *struct{ IDPath }) (*keyAnswer, error) {
	k, err := a.reader.GetKey(ctx, in.ID)
	if err != nil {
		return nil, a.failed("API key "+in.ID, err)
	}
	return answerKey(k), nil
}

func (a *API) changeKey(ctx context.Context, in *struct {
	IDPath
	Versioned
	Body KeyChange
},
) (*keyAnswer, error) {
	k, err := a.currentKey(ctx, in.ID, in.Versioned)
	if err != nil {
		return nil, err
	}
	before := k
	set(&k.Client, in.Body.Client)
	set(&k.Tier, in.Body.Tier)
	if in.Body.ExpiresAt.Set {
		k.ExpiresAt = in.Body.ExpiresAt.Time
	}
	if reflect.DeepEqual(showKey(k), showKey(before)) { // a version that says nothing new would only outdate others
		return answerKey(k), nil
	}
	if k, err = a.store.UpdateKey(ctx, change(ctx, "update"), k); err != nil {
		return nil, a.failed("API key "+in.ID, err)
	}
	return answerKey(k), nil
}

func (a *API) deleteKey(ctx context.Context, in *struct {
	IDPath
	Versioned
},
) (*struct{}, error) {
	k, err := a.currentKey(ctx, in.ID, in.Versioned)
	if err != nil {
		return nil, err
	}
	if err := a.store.DeleteKey(ctx, change(ctx, "delete"), in.ID, k.Version); err != nil {
		return nil, a.failed("API key "+in.ID, err)
	}
	return nil, nil
}

// currentKey is the key that a change is based on.
func (a *API) currentKey(ctx context.Context, id string, v Versioned) (policy.KeyRecord, error) {
	k, err := a.reader.GetKey(ctx, id)
	if err != nil {
		return k, a.failed("API key "+id, err)
	}
	if p := v.check("API key "+id, k.Version); p != nil {
		return k, p
	}
	return k, nil
}

// Interface guards
var (
	_ json.Unmarshaler    = (*OptionalTime)(nil)
	_ huma.SchemaProvider = OptionalTime{}
)
