package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Zone is a limit that the operator writes in the configuration. Its name is its
// identity, on every instance and over reloads: zones of one name share their
// counters and must be defined alike. A zone with only a name refers to the one
// that the app defines.
type Zone struct {
	// The zone's name, as clients, logs and metrics see it. Required.
	Name string `json:"name"`

	// Which requests the zone limits: those that match any of the sets.
	// Default: all.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// Text with placeholders that tells clients apart; each value has a bucket of
	// its own. Text without placeholders is one bucket for all. Default:
	// {http.vars.client_ip}, the client's address.
	Key string `json:"key,omitempty"`

	// Units per window; 0 denies everything. Required.
	Limit *int64 `json:"limit,omitempty"`

	// Length of the window, 1ms to 366d. Required.
	Window caddy.Duration `json:"window,omitempty"`

	// The most units that can be had at once; of token_bucket alone. Default (0):
	// Limit.
	Burst int64 `json:"burst,omitempty"`

	// How requests are counted: "token_bucket", "leaky_bucket", "fixed_window",
	// "sliding_window" or "sliding_log". Default: token_bucket.
	Algorithm policy.Algorithm `json:"algorithm,omitempty"`

	// How long a request may wait for its turn, up to 10m; of leaky_bucket alone.
	// Default (0): none waits. Who goes away while waiting has still had its turn.
	MaxDelay caddy.Duration `json:"max_delay,omitempty"`

	// Units that a request takes: a whole number, or text with placeholders that
	// becomes one. 0 only looks. What a placeholder leaves empty costs 1; what
	// is not a number, or more than the limit could ever give, is answered 400.
	// Do not take a cost from what clients control. Default: 1.
	Cost Cost `json:"cost,omitempty"`

	// How many leading bits of an IPv4 address in the key count, 1 to 32; the
	// others are cut off. Default: 32.
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`

	// The same for IPv6, 1 to 128. Default: 64, what a single host commonly holds.
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`

	// What happens when the key's placeholders are all empty: "address" counts by
	// the client's address, "skip" lets the request pass this zone uncounted,
	// "reject" answers 400, and any other text is the key in its place.
	// With address, the address also joins a key that is empty in part.
	// Default: address.
	MissingKey string `json:"missing_key,omitempty"`

	// What happens while the backend cannot decide: "open", "closed" or "local".
	// Default: the handler's.
	OnError policy.OnError `json:"on_error,omitempty"`

	// "enforce" refuses, "shadow" only counts. Default: enforce.
	Mode policy.Mode `json:"mode,omitempty"`

	matchers caddyhttp.MatcherSets
	key      keyTemplate
	costs    costTemplate
	limit    *limit
	ofClient bool // whether it depends on who the client is
}

const maxZoneName = 128

// policyName is what the names of policies look like: FREE /login POST.
var policyName = regexp.MustCompile(`^([^ ]+|api_key [^ ]+) [/*]`)

// reference reports whether the zone is a mere name.
func (z *Zone) reference() bool {
	bare := Zone{Name: z.Name}
	return string(bare.definition()) == string(z.definition())
}

// definition is the zone as JSON, to compare and to copy it.
func (z *Zone) definition() []byte {
	b, err := json.Marshal(z)
	if err != nil { // only for malformed raw JSON, which the matchers' loader reports better
		return []byte(err.Error())
	}
	return b
}

// Validate reports the first mistake in the zone, in words that say what to
// write instead. It does not look at matchers.
func (z *Zone) Validate() error {
	if err := validateZoneName(z.Name); err != nil {
		return err
	}
	if err := z.validate(); err != nil {
		return fmt.Errorf("zone %s: %w", z.Name, err)
	}
	return nil
}

func validateZoneName(name string) error {
	switch {
	case name == "":
		return errors.New("a zone needs a name, like zone login { ... }")
	case len(name) > maxZoneName:
		return fmt.Errorf("zone name %.20q... has %d bytes; the most is %d", name, len(name), maxZoneName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("zone name %q has control characters or is not UTF-8; write plain text, like login", name)
	case policyName.MatchString(name):
		return fmt.Errorf("zone name %q is one that a policy may have, a tier and its route, so nobody could tell the two limits apart; write a name without a path in it, like login", name)
	case strings.ContainsAny(name, "{}"):
		return fmt.Errorf("zone name %q has braces, but a name takes no placeholders; write plain text, like login (a key stands before the limit)", name)
	}
	return nil
}

func (z *Zone) validate() error {
	rule, err := z.compileRule()
	if err != nil {
		return err
	}
	cost, err := newCostTemplate(string(z.Cost))
	if err != nil {
		return err
	}
	if err := rule.CheckCost(cost.fixed); err != nil {
		return err
	}
	if _, err := policy.ParseMode(string(z.Mode)); err != nil {
		return err
	}
	if z.OnError != "" {
		if _, err := policy.ParseOnError(string(z.OnError)); err != nil {
			return err
		}
	}
	_, err = z.keyTemplate()
	return err
}

func (z *Zone) compileRule() (*policy.Rule, error) {
	if z.Limit == nil {
		return nil, errors.New("limit is missing; write limit <count>/<window>, like limit 100/1m")
	}
	algorithm, err := policy.ParseAlgorithm(string(z.Algorithm))
	if err != nil {
		return nil, err
	}
	return policy.NewRule(policy.Limit{
		Count:    *z.Limit,
		Window:   time.Duration(z.Window),
		Burst:    z.Burst,
		MaxDelay: time.Duration(z.MaxDelay),
	}, algorithm)
}

func (z *Zone) keyTemplate() (keyTemplate, error) {
	v4, v6 := policy.DefaultIPv4Prefix, policy.DefaultIPv6Prefix
	if z.IPv4Prefix != nil {
		v4 = *z.IPv4Prefix
	}
	if z.IPv6Prefix != nil {
		v6 = *z.IPv6Prefix
	}
	if err := validatePrefix("ipv4_prefix", v4, 32); err != nil {
		return keyTemplate{}, err
	}
	if err := validatePrefix("ipv6_prefix", v6, 128); err != nil {
		return keyTemplate{}, err
	}
	return newKeyTemplate(z.Key, z.MissingKey, v4, v6)
}

func validatePrefix(word string, bits, most int) error {
	if bits < 1 || bits > most {
		return fmt.Errorf("%s %d is out of range; write a number of bits from 1 to %d", word, bits, most)
	}
	return nil
}

// provision compiles a valid zone and loads its matchers.
func (z *Zone) provision(ctx caddy.Context) error {
	rule, err := z.compileRule()
	if err != nil {
		return err
	}
	z.limit = newLimit(z.Name, z.Name, policy.ZoneScope(z.Name), rule, z.Mode, z.OnError)
	if z.key, err = z.keyTemplate(); err != nil {
		return err
	}
	if z.costs, err = newCostTemplate(string(z.Cost)); err != nil {
		return err
	}
	warnForeign(ctx.Logger(), "zone "+z.Name, z.Key+string(z.Cost))
	z.ofClient = strings.Contains(z.text(), ownPlaceholders)
	if len(z.MatcherSetsRaw) == 0 {
		return nil
	}
	matchers, err := ctx.LoadModule(z, "MatcherSetsRaw")
	if err != nil {
		return fmt.Errorf("zone %s: loading matchers: %w", z.Name, err)
	}
	return z.matchers.FromInterface(matchers)
}

// ownPlaceholders begins the placeholders of this handler, which describe the
// client among others.
const ownPlaceholders = "http.rate_limit."

// text is all that may hold placeholders, to look for one.
func (z *Zone) text() string { return string(z.definition()) }

// match reports whether the zone limits the request.
func (z *Zone) match(r *http.Request) (bool, error) {
	if len(z.matchers) == 0 {
		return true, nil
	}
	return z.matchers.AnyMatchWithError(r)
}

// costTemplate is how many units a request takes.
type costTemplate struct {
	fixed int64
	text  string // with placeholders; empty if the cost is fixed
}

func newCostTemplate(text string) (costTemplate, error) {
	if strings.Contains(text, "{") {
		if err := checkPlaceholders(text); err != nil {
			return costTemplate{}, fmt.Errorf("cost: %w", err)
		}
		return costTemplate{text: text}, nil
	}
	cost, err := parseCost(text)
	return costTemplate{fixed: cost}, err
}

// of returns the cost of a request.
func (c costTemplate) of(repl *caddy.Replacer) (int64, error) {
	if c.text == "" {
		return c.fixed, nil
	}
	return parseCost(repl.ReplaceAll(c.text, ""))
}

func parseCost(text string) (int64, error) {
	if text == "" {
		return 1, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("cost %.40q is not a number of units; write a whole number from 0, or a placeholder that becomes one", text)
	}
	return int64(n), nil
}
