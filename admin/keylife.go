package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Bounds of the time during which the key before a rotation works too.
const (
	DefaultGrace = 24 * time.Hour
	MaxGrace     = 90 * 24 * time.Hour
)

// Rotation says how a key is rotated.
type Rotation struct {
	Grace *string `json:"grace,omitempty" doc:"How long the key before works too: 0s to 90d; 24h if absent. 0s ends every older key at once; while one from an earlier rotation still works, nothing else is possible."`
}

func (r *Rotation) grace() (time.Duration, *Problem) {
	if r == nil || r.Grace == nil {
		return DefaultGrace, nil
	}
	d, err := policy.ParseWindow(*r.Grace)
	if err != nil || d < 0 || d > MaxGrace {
		return 0, wrongField("body", "grace", "it is not a duration from 0s to 90d; write one like 0s, 1h or 7d, or leave it out for 24h")
	}
	return d, nil
}

func (a *API) registerKeyLife() {
	errs := []int{http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed}
	register(a, operation{
		id: "rotate-api-key", method: http.MethodPost, path: "/api-keys/{id}/rotate", access: changes, errors: errs,
		summary: "Replace an API key; the key before works too for a grace period, and both share their counters",
	}, a.rotateKey)
	register(a, operation{
		id: "revoke-api-key", method: http.MethodPost, path: "/api-keys/{id}/revoke", access: changes, errors: errs,
		summary: "Revoke an API key at once and for ever",
	}, a.revokeKey)
}

func (a *API) rotateKey(ctx context.Context, in *struct {
	IDPath
	Versioned
	Body *Rotation
},
) (*issuedAnswer, error) {
	grace, p := in.Body.grace()
	if p != nil {
		return nil, p
	}
	secret := policy.NewKey()
	k, err := a.updateKey(ctx, in.ID, in.Versioned, "rotate", func(k *policy.KeyRecord) *Problem {
		return rotate(k, secret, grace, time.Now())
	})
	if err != nil {
		return nil, err
	}
	return answerIssued(k, secret), nil
}

// rotate puts a new key in the place of the old one, which works until the grace
// period is over. What was promised of an older one is kept, unless no grace is given.
func rotate(k *policy.KeyRecord, secret string, grace time.Duration, now time.Time) *Problem {
	switch {
	case !k.RevokedAt.IsZero():
		return newProblem(http.StatusConflict, "revoked", "API key "+k.ID+" is revoked, so no rotation makes it work; create another key")
	case !k.ExpiresAt.IsZero() && !k.ExpiresAt.After(now):
		return newProblem(http.StatusConflict, "expired", "API key "+k.ID+" has expired, so no rotation makes it work; change its expires_at first")
	case grace > 0 && k.PreviousUntil.After(now):
		return newProblem(http.StatusConflict, "rotating", "API key "+k.ID+" was rotated before, and the key before that works until "+
			k.PreviousUntil.Format(time.RFC3339)+"; rotate again after that, or with the grace 0s, which ends every older key at once")
	}
	k.PreviousSHA256, k.PreviousUntil = [32]byte{}, time.Time{}
	if grace > 0 {
		k.PreviousSHA256, k.PreviousUntil = k.SHA256, exactly(now.Add(grace))
	}
	k.SHA256, k.Prefix = policy.HashKey(secret), policy.KeyPrefix(secret)
	return nil
}

// errNothingToDo says that a key is already as it should be.
var errNothingToDo = newProblem(http.StatusOK, "", "")

func (a *API) revokeKey(ctx context.Context, in *struct {
	IDPath
	Versioned
},
) (*keyAnswer, error) {
	k, err := a.updateKey(ctx, in.ID, in.Versioned, "revoke", func(k *policy.KeyRecord) *Problem {
		if !k.RevokedAt.IsZero() {
			return errNothingToDo
		}
		k.RevokedAt = exactly(time.Now())
		return nil
	})
	if err != nil && !errors.Is(err, errNothingToDo) {
		return nil, err
	}
	return answerKey(k), nil
}

// updateAttempts bounds how often a change that was sent without a version is
// tried again after somebody else was faster.
const updateAttempts = 10

// updateKey changes a key as it is now. What is done so is right for any version,
// so If-Match is not required here; one that is sent is heeded.
func (a *API) updateKey(ctx context.Context, id string, v Versioned, action string, edit func(*policy.KeyRecord) *Problem) (policy.KeyRecord, error) {
	for attempt := 1; ; attempt++ {
		k, err := a.reader.GetKey(ctx, id)
		if err != nil {
			return k, a.failed("API key "+id, err)
		}
		if p := v.checkOptional("API key "+id, k.Version); p != nil {
			return k, p
		}
		if p := edit(&k); p != nil {
			return k, p
		}
		stored, err := a.store.UpdateKey(ctx, change(ctx, action), k)
		if err == nil {
			return stored, nil
		}
		again := errors.Is(err, policy.ErrConflict) && attempt < updateAttempts && (v.IfMatch == "" || v.any())
		if !again {
			return k, a.failed("API key "+id, err)
		}
	}
}
