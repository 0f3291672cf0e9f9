package admin

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Ranker knows which clients are allowed and refused most at this instance.
type Ranker interface {
	// Top returns at most n clients each, the most frequent first, of a window of
	// 1m, 5m or 1h that ends now.
	Top(window time.Duration, n int) (allowed, refused []ActiveClient)

	// Since is when counting began.
	Since() time.Time
}

// ActiveClient is a client and how many of its requests were counted. Exactly one of
// APIKeyID, Account and Address says who it is.
type ActiveClient struct {
	// The id of its API key.
	APIKeyID string

	// A hash that stands for the account of its token, or for what a placeholder
	// told apart.
	Account string

	// Its address; of IPv6 the /64. Of clients that nothing else names.
	Address string

	// Its tier.
	Tier string

	// Bounds of the number of requests. They are equal unless there were more
	// clients than are kept.
	AtLeast, AtMost int64
}

// Top is who is allowed and refused most, as the API shows it.
type Top struct {
	Window  string      `json:"window"`
	Since   time.Time   `json:"counting_since" doc:"When this instance began to count; a window that reaches further back is not full."`
	Allowed []TopClient `json:"allowed" nullable:"false" doc:"Whose requests pass most, the most frequent first."`
	Refused []TopClient `json:"refused" nullable:"false" doc:"Whose requests are refused most, the most frequent first."`
}

// TopClient is one of them. It has an API key, an account or an address.
type TopClient struct {
	APIKeyID string `json:"api_key_id,omitempty"`
	Client   string `json:"client,omitempty" doc:"The name of the API key's client. Absent if the key is gone, or if it could not be looked up and never was before."`
	Prefix   string `json:"prefix,omitempty" doc:"The first characters of the API key, as far as client is known."`
	Account  string `json:"account,omitempty" doc:"A hash that stands for the account of a token, or for what a placeholder told apart."`
	Address  string `json:"address,omitempty" doc:"The address of a client that nothing else names; of IPv6 the /64."`
	Tier     string `json:"tier"`
	AtLeast  int64  `json:"at_least" doc:"So many requests for certain."`
	AtMost   int64  `json:"at_most" doc:"And not more than that. Equal to at_least unless more clients called than are kept."`
}

type topAnswer struct{ Body Top }

// topWindows are the windows that may be asked for.
var topWindows = map[string]time.Duration{"1m": time.Minute, "5m": 5 * time.Minute, "1h": time.Hour}

func (a *API) registerTop() {
	register(a, operation{
		id: "get-top", method: http.MethodGet, path: "/top", access: reads, errors: []int{http.StatusNotImplemented},
		summary: "Say which clients are allowed and refused most, at this instance; estimated in bounded memory",
	}, a.top)
}

func (a *API) top(ctx context.Context, in *struct {
	Window string `query:"window" enum:"1m,5m,1h" default:"5m" doc:"The time that ends now."`
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"10" doc:"The most clients in each list."`
},
) (*topAnswer, error) {
	if a.ranker == nil {
		return nil, newProblem(http.StatusNotImplemented, "not_implemented", "nothing counts clients here; use the handler rate_limit_admin")
	}
	allowed, refused := a.ranker.Top(topWindows[in.Window], in.Limit)
	called := a.namesOf(ctx, allowed, refused)
	return &topAnswer{Top{
		Window: in.Window, Since: a.ranker.Since().UTC(),
		Allowed: showTop(allowed, called), Refused: showTop(refused, called),
	}}, nil
}

// Bounds of what the names of clients cost.
const (
	nameTimeout = time.Second // of all look-ups of an answer
	maxNames    = 1000        // that are remembered
)

// keyName is what people know an API key by.
type keyName struct{ client, prefix string }

// names is what API keys were called when the store last answered.
type names struct {
	mu   sync.Mutex
	byID map[string]keyName
}

// namesOf looks up whose the API keys are. As soon as the store does not answer, the
// names are those of before; an answer never fails for want of them.
func (a *API) namesOf(ctx context.Context, lists ...[]ActiveClient) map[string]keyName {
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	found := make(map[string]keyName)
	var failed error
	for _, id := range keyIDs(lists) {
		if failed == nil {
			failed = a.names.learn(ctx, a.reader, id)
		}
		found[id] = a.names.of(id)
	}
	if failed != nil {
		a.log.Warn("the names of clients could not be read; those known from before are shown", zap.Error(failed))
	}
	a.names.keep(found)
	return found
}

// keyIDs lists the API keys, each once.
func keyIDs(lists [][]ActiveClient) (ids []string) {
	for _, list := range lists {
		for _, c := range list {
			if c.APIKeyID != "" && !slices.Contains(ids, c.APIKeyID) {
				ids = append(ids, c.APIKeyID)
			}
		}
	}
	return ids
}

// learn asks a store for a name. A key that is gone has none.
func (n *names) learn(ctx context.Context, r Reader, id string) error {
	k, err := r.GetKey(ctx, id)
	if err != nil && !errors.Is(err, policy.ErrNotFound) {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byID == nil {
		n.byID = make(map[string]keyName)
	}
	n.byID[id] = keyName{k.Client, k.Prefix}
	return nil
}

func (n *names) of(id string) keyName {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byID[id]
}

// keep forgets all but these once there are too many.
func (n *names) keep(these map[string]keyName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.byID) > maxNames {
		n.byID = maps.Clone(these)
	}
}

func showTop(clients []ActiveClient, called map[string]keyName) []TopClient {
	shown := make([]TopClient, len(clients))
	for i, c := range clients {
		shown[i] = TopClient{
			APIKeyID: c.APIKeyID, Client: called[c.APIKeyID].client, Prefix: called[c.APIKeyID].prefix, Account: c.Account, Address: c.Address,
			Tier: c.Tier, AtLeast: c.AtLeast, AtMost: c.AtMost,
		}
	}
	return shown
}
