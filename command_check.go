package ratelimit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-tollgate/ratelimit/policy"
	"github.com/caddy-tollgate/ratelimit/policy/static"
)

func checkCommand() *cobra.Command {
	var config configFlags
	var strict bool
	cmd := &cobra.Command{
		Use:   "check [--config <file>] [--strict]",
		Short: "Checks a configuration and reports doubtful settings",
		Long: `
Loads a configuration without running it, and lists its backend, provider, zones
and the policies that stand in it. Those that a provider stores are listed by the
admin API, GET /policies: here nothing is asked of it. Settings that are allowed and
often a mistake are listed as doubtful, each with the reason.`,
		Args: cobra.NoArgs,
	}
	config.register(cmd)
	cmd.Flags().BoolVar(&strict, "strict", false, "Fail if a setting is doubtful")
	cmd.RunE = run(func(_ context.Context, out io.Writer, _ io.Reader) error { return check(out, &config, strict) })
	return cmd
}

var errDoubtful = errors.New("there are doubtful settings, see above; without --strict they are no error")

func check(out io.Writer, flags *configFlags, strict bool) error {
	config, err := flags.load()
	if err != nil {
		return err
	}
	if config.file == "" {
		return errors.New("there is no configuration; write --config <file>")
	}
	c, err := newChecker(config)
	if err != nil {
		return err
	}
	if err := validate(config.text); err != nil {
		return err
	}
	if err := c.write(out); err != nil {
		return err
	}
	if strict && len(c.doubts) > 0 {
		return errDoubtful
	}
	return nil
}

// validate provisions a configuration as caddy validate does.
func validate(text []byte) error {
	var config caddy.Config
	if err := caddy.StrictUnmarshalJSON(text, &config); err != nil {
		return err
	}
	return caddy.Validate(&config)
}

// checker collects what there is to say about a configuration.
type checker struct {
	app      *App
	handlers []*Handler
	backend  string
	provider string
	lines    [][]string // of the table: kind, name, limit, and more
	doubts   []string
}

func newChecker(config *loadedConfig) (*checker, error) {
	app, err := config.app()
	if err != nil {
		return nil, err
	}
	raws, err := config.handlers("rate_limit")
	if err != nil {
		return nil, err
	}
	c := &checker{app: app}
	for _, raw := range raws {
		h := new(Handler)
		if err := json.Unmarshal(raw, h); err != nil {
			return nil, err
		}
		c.handlers = append(c.handlers, h)
	}
	if len(c.handlers) == 0 {
		c.doubt("no site has rate_limit: nothing is limited")
	}
	if err := c.checkBackend(); err != nil {
		return nil, err
	}
	if err := c.checkProvider(); err != nil {
		return nil, err
	}
	for i, h := range c.handlers {
		if err := c.checkHandler(i+1, h); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *checker) doubt(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(c.doubts, text) {
		c.doubts = append(c.doubts, text)
	}
}

// fewKeys is how many clients a memory backend should at least have room for.
const fewKeys = 10_000

func (c *checker) checkBackend() error {
	backend := struct {
		Backend string `json:"backend"`
		MaxKeys int    `json:"max_keys"`
	}{Backend: "memory"}
	if c.app.BackendRaw != nil {
		if err := json.Unmarshal(c.app.BackendRaw, &backend); err != nil {
			return err
		}
	}
	c.backend = backend.Backend
	if backend.MaxKeys > 0 && backend.MaxKeys < fewKeys {
		c.doubt("backend memory: max_keys %d is small; once so many clients are counted, newcomers are held to what is forgotten of others. Write %d or more, or leave it out", backend.MaxKeys, fewKeys)
	}
	return nil
}

func (c *checker) checkProvider() error {
	if c.app.ProviderRaw == nil {
		return nil
	}
	var kind struct {
		Provider string `json:"provider"`
	}
	if err := json.Unmarshal(c.app.ProviderRaw, &kind); err != nil {
		return err
	}
	c.provider = kind.Provider
	if !slices.ContainsFunc(c.handlers, func(h *Handler) bool { return h.Tiers }) {
		c.doubt("provider %s: no rate_limit says tiers, so that its policies apply nowhere", c.provider)
	}
	if c.provider != "static" {
		return nil
	}
	var provider static.Provider
	if err := json.Unmarshal(c.app.ProviderRaw, &provider); err != nil {
		return err
	}
	for _, t := range provider.Tiers {
		for _, p := range t.Policies {
			c.checkPolicy(t.Name, p)
		}
	}
	return nil
}

func (c *checker) checkPolicy(tier string, p static.Policy) {
	if p.Limit == nil {
		return // loading the configuration says so better
	}
	name := strings.Join(append([]string{tier, p.Route}, p.Methods...), " ")
	l := policy.Limit{Count: *p.Limit, Window: time.Duration(p.Window), Burst: p.Burst}
	c.line("policy", name, l, string(p.Algorithm), "", string(p.OnError), string(p.Mode))
	c.checkLimit("policy "+name, l, p.OnError, p.Mode)
}

func (c *checker) line(kind, name string, l policy.Limit, algorithm, key, onError, mode string) {
	if algorithm == "" {
		algorithm = string(policy.TokenBucket)
	}
	if onError == "" {
		onError = string(policy.Local)
	}
	if mode == "" {
		mode = string(policy.Enforce)
	}
	c.lines = append(c.lines, []string{kind, name, l.String(), algorithm, key, onError, mode})
}

// checkLimit doubts what a zone and a policy have in common.
func (c *checker) checkLimit(what string, l policy.Limit, onError policy.OnError, mode policy.Mode) {
	if l.Burst > l.Count {
		c.doubt("%s: its burst is above its count, so that as many as %d can pass within one %s. If that is not meant, leave burst out", what, l.Burst+l.Count, l.Window)
	}
	if onError == policy.Open {
		c.doubt("%s: on_error open lifts the limit while the backend is down; on_error local counts in this process instead", what)
	}
	if mode == policy.Shadow {
		c.doubt("%s: mode shadow only counts and refuses nothing", what)
	}
}

func (c *checker) checkHandler(n int, h *Handler) error {
	zones, err := h.compatibility.zones()
	if err != nil {
		return err
	}
	zones = append(slices.Clone(h.Zones), zones...)
	for i, z := range zones {
		zones[i] = c.definition(z)
	}
	byAddress := slices.ContainsFunc(zones, func(z *Zone) bool { return addressKey(z.Key) })
	for _, z := range zones {
		if z.Limit == nil {
			continue // loading the configuration says so better
		}
		c.checkZone(z, h, byAddress)
	}
	if h.Identify != nil {
		c.checkIdentify(n, h, byAddress)
	}
	return nil
}

// definition is the zone that a reference means.
func (c *checker) definition(z *Zone) *Zone {
	if !z.reference() {
		return z
	}
	for _, shared := range c.app.Zones {
		if shared.Name == z.Name {
			return shared
		}
	}
	return z
}

var (
	clientChosen = regexp.MustCompile(`\{(http\.request\.(header|cookie|uri|orig_uri|body)|header|cookie|query|uri|path)[.}]`)
	ofAddress    = regexp.MustCompile(`\{(client_ip|remote_host|http\.vars\.client_ip|http\.request\.remote\.host)\}`)
	ofOneRequest = regexp.MustCompile(`\{(uuid|remote|remote_port|http\.request\.(uuid|duration|duration_ms|remote|remote\.port)|time\.now[^{}]*)\}`)
	ofConnection = regexp.MustCompile(`\{(remote_host|http\.request\.remote\.host)\}`)
)

func addressKey(key string) bool { return key == "" || ofAddress.MatchString(key) }

func (c *checker) checkZone(z *Zone, h *Handler, byAddress bool) {
	what := "zone " + z.Name
	onError := z.OnError
	if onError == "" {
		onError = h.OnError
	}
	key := z.Key
	if key == "" {
		key = defaultZoneKey
	}
	l := policy.Limit{Count: *z.Limit, Window: time.Duration(z.Window), Burst: z.Burst}
	c.line("zone", z.Name, l, string(z.Algorithm), key, string(onError), string(z.Mode))
	c.checkLimit(what, l, onError, z.Mode)
	if clientChosen.MatchString(key) && !byAddress {
		c.doubt("%s: its key %s is chosen by the client, who gets a fresh limit for each value; add a zone by address beside it, like zone %s_address { limit ... }", what, key, z.Name)
	}
	if !strings.Contains(key, "{") {
		c.doubt("%s: its key %q has no placeholder, so that all clients share one limit", what, key)
	}
	if ofOneRequest.MatchString(key) {
		c.doubt("%s: its key %s is another one for each request or connection, so that nobody is limited; write what stays the same for a client, like {client_ip}", what, key)
	}
	c.checkForeign(what, key+string(z.Cost))
	if ofConnection.MatchString(key) {
		c.doubt("%s: its key %s is the address of the proxy, if there is one in front; {client_ip} is the client's", what, key)
	}
	if clientChosen.MatchString(string(z.Cost)) {
		c.doubt("%s: its cost %s is chosen by the client, who can make requests free", what, z.Cost)
	}
}

func (c *checker) checkForeign(what, text string) {
	for _, name := range foreignPlaceholders(text) {
		c.doubt("%s: %s is not Caddy's own; while nothing before rate_limit sets it, it is empty", what, name)
	}
}

func (c *checker) checkIdentify(n int, h *Handler, byAddress bool) {
	what := fmt.Sprintf("rate_limit handler %d", n)
	for _, s := range h.Identify.Sources {
		c.checkForeign(what, s.Placeholder)
		if s.JWT == nil {
			continue
		}
		if plainRemote(s.JWT.JWKS) {
			u, _ := url.Parse(s.JWT.JWKS) // it parses, or it would not be remote
			c.doubt("%s: jwks %s is read without TLS, so that whoever is on the way can make tokens; write https", what, u.Redacted())
		}
		if !byAddress && !h.Tiers {
			c.doubt("%s: it verifies tokens and has no zone by address, so that bad tokens cost their sender nothing", what)
		}
	}
}

// plainRemote reports whether a URL is read without TLS from another machine.
func plainRemote(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" {
		return false
	}
	address, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() != "localhost" && (err != nil || !address.IsLoopback())
}

func (c *checker) write(out io.Writer) error {
	provider := c.provider
	if provider == "" {
		provider = "none named"
	}
	fmt.Fprintf(out, "The configuration is valid.\nbackend:  %s\nprovider: %s\n", c.backend, provider)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(c.lines) > 0 {
		fmt.Fprint(table, "\nKIND\tNAME\tLIMIT\tALGORITHM\tKEY\tON_ERROR\tMODE\n")
	}
	for _, l := range c.lines {
		fmt.Fprintln(table, strings.Join(l, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(c.doubts) == 0 {
		_, err := fmt.Fprintln(out, "\nNothing is doubtful.")
		return err
	}
	_, err := fmt.Fprintf(out, "\nDoubtful:\n- %s\n", strings.Join(c.doubts, "\n- "))
	return err
}

func sortedKeys(object map[string]any) []string { return slices.Sorted(maps.Keys(object)) }
