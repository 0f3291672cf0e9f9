package ratelimit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// compatibility holds the words of mholt/caddy-ratelimit, so that its
// configurations load unchanged.
type compatibility struct {
	// Zones by name, as in mholt/caddy-ratelimit. They are appended to Zones in
	// the order of their names.
	RateLimits map[string]*RateLimit `json:"rate_limits,omitempty"`

	// Has no effect; the backend redis shares counters between instances.
	Distributed json.RawMessage `json:"distributed,omitempty"`

	// Has no effect; the app's backend says where counters live.
	Storage json.RawMessage `json:"storage,omitempty"`

	// Has no effect; idle counters go by themselves.
	SweepInterval caddy.Duration `json:"sweep_interval,omitempty"`
}

// RateLimit is a zone in the words of mholt/caddy-ratelimit, and means what it
// means there: a sliding log, and without a key one bucket for all.
type RateLimit struct {
	// Which requests the zone limits. Default: all.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// Text with placeholders that tells clients apart. Default: one bucket for all.
	Key string `json:"key,omitempty"`

	// Requests per window; 0 denies everything.
	MaxEvents int64 `json:"max_events,omitempty"`

	// Length of the window. Required.
	Window caddy.Duration `json:"window,omitempty"`

	// As in Zone, but by default addresses are not cut.
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`
}

// sharedKey is the key of a zone that counts all clients together.
const sharedKey = "all"

// zone says the same in our words.
func (rl *RateLimit) zone(name string) *Zone {
	z := &Zone{
		Name:           name,
		MatcherSetsRaw: rl.MatcherSetsRaw,
		Key:            rl.Key,
		Limit:          &rl.MaxEvents,
		Window:         rl.Window,
		IPv4Prefix:     rl.IPv4Prefix,
		IPv6Prefix:     rl.IPv6Prefix,
	}
	z.compatible()
	return z
}

// compatible gives a zone the defaults that it has in mholt/caddy-ratelimit.
func (z *Zone) compatible() {
	if z.Key == "" {
		z.Key = sharedKey
	}
	if z.Algorithm == "" {
		z.Algorithm = policy.SlidingLog
	}
	if z.IPv6Prefix == nil {
		whole := 128
		z.IPv6Prefix = &whole
	}
}

// zones returns the zones that stand in the map, in the order of their names.
func (c *compatibility) zones() ([]*Zone, error) {
	var zones []*Zone
	for _, name := range slices.Sorted(maps.Keys(c.RateLimits)) {
		rl := c.RateLimits[name]
		if rl == nil {
			return nil, fmt.Errorf("zone %s: it is null; write an object with max_events and window", name)
		}
		if rl.Window == 0 {
			return nil, fmt.Errorf("zone %s: window is missing; write a duration, like 1m", name)
		}
		zones = append(zones, rl.zone(name))
	}
	return zones, nil
}

// warnReplaced says once what does the work of the words that have no effect.
func (h *Handler) warnReplaced(logger *zap.Logger) {
	var words []string
	if h.Distributed != nil {
		words = append(words, "distributed (write the global option rate_limit { backend redis <url> } to share counters between instances)")
	}
	if h.Storage != nil {
		words = append(words, "storage (the global option's backend says where counters live)")
	}
	if h.SweepInterval != 0 {
		words = append(words, "sweep_interval (idle counters go by themselves)")
	}
	if len(words) > 0 {
		logger.Warn("these words have no effect and can go: " + strings.Join(words, ", "))
	}
}
