package ratelimit

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/caddy-tollgate/ratelimit/admin"
	"github.com/caddy-tollgate/ratelimit/internal/topk"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// who is a client as far as an admin may know it: by one of its first three fields.
type who struct {
	apiKeyID string
	account  string // a hash
	address  netip.Addr
	tier     string
}

// activity is who was allowed and refused lately.
type activity struct {
	start            time.Time
	seed             maphash.Seed
	allowed, refused *topk.Recent[who]
}

// processActivity is the activity of this process. It outlives configurations.
var processActivity = sync.OnceValue(newActivity)

func newActivity() *activity {
	return &activity{
		start: time.Now(), seed: maphash.MakeSeed(),
		allowed: topk.NewRecent[who](), refused: topk.NewRecent[who](),
	}
}

// noteClient counts the request for its client. Every rate_limit handler of the request
// does so when all is over; only the first of them counts, which knows what all have
// decided.
func (rep *report) noteClient() {
	if rep.noted || rep.outcome == "" {
		return
	}
	rep.noted = true
	processActivity().add(rep.who(), rep.refused(), rep.at)
}

// refused reports whether any handler refused the request.
func (rep *report) refused() bool {
	return rep.outcome != outcomeAllowed && rep.outcome != outcomeShadowBlocked
}

// who is the client: what vouches for it, else its address.
func (rep *report) who() who {
	w := who{tier: cmp.Or(rep.client.Tier, policy.Anonymous)}
	switch c := &rep.client; {
	case c.APIKeyID != "":
		w.apiKeyID = c.APIKeyID
	case strings.HasPrefix(c.Identity, hashPrefix):
		w.account = c.Identity
	default:
		w.address = networkOf(rep.from)
	}
	return w
}

// hashPrefix begins the identities that policy.HashIdentity makes.
const hashPrefix = "h_"

// networkOf is the address that counts as one client: of IPv6 the /64.
func networkOf(addr netip.Addr) netip.Addr {
	if addr = addr.Unmap(); addr.Is4() || !addr.IsValid() {
		return addr
	}
	network, _ := addr.WithZone("").Prefix(policy.DefaultIPv6Prefix) // an address always has one
	return network.Addr()
}

// add counts a request that was decided at a time; the zero time is now.
func (a *activity) add(w who, refused bool, at time.Time) {
	if at.IsZero() {
		at = time.Now()
	}
	list := a.allowed
	if refused {
		list = a.refused
	}
	list.Add(w, a.hash(&w), max(0, at.Sub(a.start)))
}

func (a *activity) hash(w *who) uint64 {
	if w.address.IsValid() {
		bytes := w.address.As16()
		return maphash.Bytes(a.seed, bytes[:])
	}
	return maphash.String(a.seed, cmp.Or(w.apiKeyID, w.account))
}

// Since is when counting began.
func (a *activity) Since() time.Time { return a.start }

// Top returns the clients that were allowed and refused most in a window.
func (a *activity) Top(window time.Duration, n int) (allowed, refused []admin.ActiveClient) {
	w := topk.FiveMinutes
	switch window {
	case time.Minute:
		w = topk.Minute
	case time.Hour:
		w = topk.Hour
	}
	now := time.Since(a.start)
	return activeClients(a.allowed.Last(w, now), n), activeClients(a.refused.Last(w, now), n)
}

func activeClients(s topk.Summary[who], n int) []admin.ActiveClient {
	top := s.Top(n)
	clients := make([]admin.ActiveClient, len(top))
	for i, e := range top {
		clients[i] = admin.ActiveClient{
			APIKeyID: e.Key.apiKeyID, Account: e.Key.account, Address: e.Key.addressText(), Tier: e.Key.tier,
			AtLeast: e.AtLeast, AtMost: e.AtMost,
		}
	}
	return clients
}

func (w *who) addressText() string {
	if w.apiKeyID != "" || w.account != "" {
		return ""
	}
	return policy.AddressIdentity(w.address, policy.DefaultIPv4Prefix, policy.DefaultIPv6Prefix)
}

// Interface guards
var _ admin.Ranker = (*activity)(nil)
