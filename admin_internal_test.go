package ratelimit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/admin"
	"github.com/caddy-tollgate/ratelimit/memorybackend"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// memory is a backend that can take, and nothing else.
type memory struct{ store *memorybackend.Store }

func (m memory) Take(_ context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	m.store.Take(memorybackend.Now(), buckets, decisions)
	return nil
}

// resettable is a backend that can also forget; it fails if told to.
type resettable struct {
	memory
	err error
}

func (r resettable) Reset(context.Context, []policy.Bucket) error { return r.err }

func oneBucket(t *testing.T, count, cost int64) []policy.Bucket {
	t.Helper()
	rule, err := policy.NewRule(policy.Limit{Count: count, Window: time.Hour}, policy.TokenBucket)
	if err != nil {
		t.Fatal(err)
	}
	return []policy.Bucket{{Identity: "k_1", Scope: "global", Rule: rule, Cost: cost}}
}

func TestLookingTakesNothing(t *testing.T) {
	backend := memory{memorybackend.NewStore(10)}
	buckets, decisions := oneBucket(t, 10, 3), make([]policy.Decision, 1)
	if err := backend.Take(t.Context(), buckets, decisions); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := peeker(backend).Peek(t.Context(), buckets, decisions); err != nil {
			t.Fatal(err)
		}
		if decisions[0].Remaining != 7 {
			t.Errorf("remaining: got %d, want 7", decisions[0].Remaining)
		}
	}
	if buckets[0].Cost != 3 {
		t.Errorf("the caller's bucket costs %d now", buckets[0].Cost)
	}
}

// A reset must not be undone by what this process remembers of refusals.
func TestAResetForgetsWhatIsKnownToRefuse(t *testing.T) {
	for name, failure := range map[string]error{"done": nil, "failed": errors.New("no answer")} {
		t.Run(name, func(t *testing.T) {
			app := &App{backend: resettable{err: failure}, denials: newDenials()}
			buckets := oneBucket(t, 1, 1)
			app.denials.remember(buckets, []policy.Decision{{RetryAfter: time.Hour}}, app.denials.now(), app.denials.now())
			if _, known := app.denials.find(&buckets[0], app.denials.now()); !known {
				t.Fatal("the refusal was not remembered")
			}
			if err := app.resetter().Reset(t.Context(), buckets); !errors.Is(err, failure) {
				t.Errorf("got %v, want %v", err, failure)
			}
			if _, known := app.denials.find(&buckets[0], app.denials.now()); known {
				t.Error("the refusal is still known")
			}
		})
	}
}

func TestABackendThatCannotForgetHasNoResetter(t *testing.T) {
	app := &App{backend: memory{}}
	if r := app.resetter(); r != nil {
		t.Errorf("got %v", r)
	}
}

// Interface guards
var (
	_ Backend        = memory{}
	_ admin.Resetter = resettable{}
)
