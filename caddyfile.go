package ratelimit

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("rate_limit", parseGlobalOption)
}

// parseGlobalOption reads the global option. Syntax:
//
//	rate_limit {
//	    backend  <name> [<args...>] [{ ... }]
//	    provider <name> [{ ... }]
//	    zone     <name> { ... }
//	}
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next()
	if existing != nil {
		return nil, d.Err("the global option rate_limit is given twice; write one, with everything in it")
	}
	// shorthands like {client_ip} are Caddy's to expand only in sites
	segment := d.NextSegment()
	httpcaddyfile.NewShorthandReplacer().ApplyToSegment(&segment)
	p := &globalParser{reader: newReader(caddyfile.NewDispenser(segment), "the global option rate_limit")}
	if err := p.parse(); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "rate_limit", Value: caddyconfig.JSON(p.app, nil)}, nil
}

type globalParser struct {
	*reader
	app App
}

var globalWords = map[string]func(*globalParser) error{
	"backend":  (*globalParser).backend,
	"provider": (*globalParser).provider,
	"zone":     (*globalParser).zone,
}

func (p *globalParser) parse() error {
	p.Next()
	if err := p.noMore("write rate_limit { ... }"); err != nil {
		return err
	}
	for p.NextBlock(0) {
		read, ok := globalWords[p.Val()]
		if !ok {
			return p.unknownWord(slices.Sorted(maps.Keys(globalWords)))
		}
		if p.Val() != "zone" {
			if err := p.once(); err != nil {
				return err
			}
		}
		if err := read(p); err != nil {
			return err
		}
	}
	return nil
}

func (p *globalParser) backend() (err error) {
	p.app.BackendRaw, err = p.guest("rate_limit.backends", "backend")
	return err
}

func (p *globalParser) provider() (err error) {
	p.app.ProviderRaw, err = p.guest("rate_limit.providers", "provider")
	return err
}

// guest reads a module of the namespace: its name, arguments and block.
func (p *globalParser) guest(namespace, key string) (json.RawMessage, error) {
	if !p.NextArg() {
		return nil, p.Errf("%s needs a name; write one of %s", key, strings.Join(guests(namespace), ", "))
	}
	name := p.Val()
	if !slices.Contains(guests(namespace), name) {
		return nil, p.Errf("%s %q is not known; write one of %s", key, name, strings.Join(guests(namespace), ", "))
	}
	module, err := caddyfile.UnmarshalModule(p.Dispenser, namespace+"."+name)
	if err != nil {
		return nil, err
	}
	return caddyconfig.JSONModuleObject(module, key, name, nil), nil
}

// guests lists the modules of a namespace that this Caddy was built with.
func guests(namespace string) (names []string) {
	for _, m := range caddy.GetModules(namespace) {
		names = append(names, m.ID.Name())
	}
	return names
}

func (p *globalParser) zone() error {
	z, err := parseZone(p.Dispenser, nil)
	if err != nil {
		return err
	}
	if z.reference() {
		return p.Errf("zone %s has no block; write zone %s { limit 100/1m }", z.Name, z.Name)
	}
	if slices.ContainsFunc(p.app.Zones, func(o *Zone) bool { return o.Name == z.Name }) {
		return p.WrapErr(errDuplicateZone(z.Name))
	}
	p.app.Zones = append(p.app.Zones, z)
	return nil
}

// parseHandler reads the directive. Syntax:
//
//	rate_limit [<matcher>] [[<key>] <limit> [<name>]] {
//	    zone <name> [{ ... }]
//	    identify { ... }
//	    tiers
//	    exempt   <matcher>
//	    on_error open|closed|local
//	    headers  x draft | off
//	    log_key
//	    jitter   <fraction>
//	}
//
// The words distributed, storage and sweep_interval of mholt/caddy-ratelimit are
// read too, and replaced by others.
func parseHandler(helper httpcaddyfile.Helper) (_ caddyhttp.MiddlewareHandler, err error) {
	helper.Next()
	p := &handlerParser{reader: newReader(helper.Dispenser, "rate_limit"), helper: helper, start: helper.Token(), h: new(Handler)}
	if p.global, err = globalApp(helper); err != nil {
		return nil, err
	}
	if err := p.shortForm(); err != nil {
		return nil, err
	}
	for nesting := p.Nesting(); p.NextBlock(nesting); {
		if err := p.word(); err != nil {
			return nil, err
		}
	}
	return p.h, p.finish()
}

type handlerParser struct {
	*reader
	helper httpcaddyfile.Helper
	start  caddyfile.Token
	global *App
	h      *Handler
}

// globalApp is what the global option of the same Caddyfile says.
func globalApp(helper httpcaddyfile.Helper) (*App, error) {
	app := new(App)
	option, ok := helper.Option("rate_limit").(httpcaddyfile.App)
	if !ok {
		return app, nil
	}
	return app, json.Unmarshal(option.Value, app)
}

// shortForm reads [<key>] <limit> [<name>].
func (p *handlerParser) shortForm() error {
	const usage = "write rate_limit [<key>] <count>/<window> [<name>], like rate_limit 100/1m, or rate_limit {client_ip} 10r/s login"
	args := p.RemainingArgs()
	if len(args) == 0 {
		return nil
	}
	z := new(Zone)
	if isKey(args) {
		z.Key, args = args[0], args[1:]
	}
	if len(args) == 0 {
		return p.Errf("a limit is missing behind the key %s; %s", z.Key, usage)
	}
	limit, err := policy.ParseLimit(args[0])
	if err != nil {
		return p.WrapErr(err)
	}
	z.setLimit(limit)
	switch {
	case len(args) == 1:
		z.Name = p.placeName()
	case args[1] == "burst":
		return p.Err("a burst goes into a zone; write rate_limit { zone <name> { limit " + args[0] + " burst <n> } }")
	case len(args) > 2:
		return p.Errf("unexpected word %q; %s", args[2], usage)
	case strings.HasPrefix(args[1], "/"), strings.HasPrefix(args[1], "@"):
		return p.Errf("%s is not a name, and a matcher stands before the limit; write rate_limit %s %s", args[1], args[1], args[0])
	default:
		z.Name = args[1]
	}
	return p.addZone(z, p.start)
}

// isKey reports whether the first of the short form's arguments is a key: it has
// a placeholder, or a limit follows where none is.
func isKey(args []string) bool {
	if strings.Contains(args[0], "{") {
		return true
	}
	if len(args) < 2 || strings.Contains(args[0], "/") {
		return false
	}
	_, err := policy.ParseLimit(args[1])
	return err == nil
}

// placesState counts, in the state of an adaptation, how often a place in the
// file was met: a snippet that is imported twice is two places.
const placesState = "rate_limit.places"

// placeName names a zone by its place in the file.
func (p *handlerParser) placeName() string {
	places, ok := p.helper.State[placesState].(map[string]int)
	if !ok {
		places = make(map[string]int)
		p.helper.State[placesState] = places
	}
	name := fmt.Sprintf("%s:%d", filepath.Base(p.start.File), p.start.Line)
	if p.helper.IsNamedRoute() { // has a state of its own
		name = "route:" + name
	}
	places[name]++
	if n := places[name]; n > 1 {
		name += "#" + strconv.Itoa(n)
	}
	return name
}

var handlerWords = map[string]func(*handlerParser) error{
	"zone":           (*handlerParser).zone,
	"identify":       (*handlerParser).identify,
	"tiers":          (*handlerParser).tiers,
	"exempt":         (*handlerParser).exempt,
	"on_error":       (*handlerParser).onError,
	"headers":        (*handlerParser).headers,
	"log_key":        (*handlerParser).logKey,
	"jitter":         (*handlerParser).jitter,
	"distributed":    (*handlerParser).distributed,
	"storage":        (*handlerParser).storage,
	"sweep_interval": (*handlerParser).sweepInterval,
}

// ownHandlerWords are the words to suggest: those without a replacement.
var ownHandlerWords = []string{"zone", "identify", "tiers", "exempt", "on_error", "headers", "log_key", "jitter"}

func (p *handlerParser) word() error {
	read, ok := handlerWords[p.Val()]
	if !ok {
		return p.unknownWord(ownHandlerWords)
	}
	if p.Val() != "zone" && p.Val() != "exempt" {
		if err := p.once(); err != nil {
			return err
		}
	}
	return read(p)
}

func (p *handlerParser) zone() error {
	start := p.Token()
	z, err := parseZone(p.Dispenser, p.helper.WithDispenser(p.Dispenser).MatcherToken)
	if err != nil {
		return err
	}
	return p.addZone(z, start)
}

// zonesState holds, in the state of an adaptation, where each zone was defined.
const zonesState = "rate_limit.zones"

// addZone adds a zone that was read at a token, unless its name means something
// else already.
func (p *handlerParser) addZone(z *Zone, at caddyfile.Token) error {
	if slices.ContainsFunc(p.h.Zones, func(o *Zone) bool { return o.Name == z.Name }) {
		return errAt(at, errDuplicateZone(z.Name))
	}
	if err := p.checkGlobal(z); err != nil {
		return errAt(at, err)
	}
	if !z.reference() {
		if err := p.checkElsewhere(z, at); err != nil {
			return errAt(at, err)
		}
	}
	p.h.Zones = append(p.h.Zones, z)
	return nil
}

func (p *handlerParser) checkGlobal(z *Zone) error {
	i := slices.IndexFunc(p.global.Zones, func(o *Zone) bool { return o.Name == z.Name })
	switch {
	case z.reference() && i < 0:
		return errUndefinedZone(z.Name)
	case z.reference():
		return nil
	}
	if err := z.Validate(); err != nil {
		return err
	}
	if i < 0 {
		return nil
	}
	if shared := p.global.Zones[i].definition(); string(shared) != string(z.definition()) {
		return errZonesDiffer(z.Name, definition{place: globalPlace, json: shared}, definition{place: "this one", json: z.definition()})
	}
	return nil
}

func (p *handlerParser) checkElsewhere(z *Zone, at caddyfile.Token) error {
	zones, ok := p.helper.State[zonesState].(map[string]definition)
	if !ok {
		zones = make(map[string]definition)
		p.helper.State[zonesState] = zones
	}
	here := definition{place: fmt.Sprintf("%s:%d", at.File, at.Line), json: z.definition()}
	known, ok := zones[z.Name]
	if !ok {
		zones[z.Name] = here
		return nil
	}
	if string(known.json) != string(here.json) {
		return errZonesDiffer(z.Name, known, here)
	}
	return nil
}

func (p *handlerParser) tiers() error {
	p.h.Tiers = true
	return p.noMore("write tiers alone")
}

func (p *handlerParser) exempt() error {
	set, err := parseMatcher(p.Dispenser, p.helper.WithDispenser(p.Dispenser).MatcherToken)
	if err != nil {
		return err
	}
	p.h.ExemptRaw = append(p.h.ExemptRaw, set)
	return nil
}

func (p *handlerParser) onError() error {
	value, err := p.value("open, closed or local")
	if err != nil {
		return err
	}
	p.h.OnError, err = policy.ParseOnError(value)
	return p.wrap(err)
}

func (p *handlerParser) headers() error {
	p.h.Headers = p.RemainingArgs()
	if len(p.h.Headers) == 0 {
		return p.Err("headers needs a value; write headers x, headers draft, headers x draft or headers off")
	}
	_, err := parseFamilies(p.h.Headers)
	return p.wrap(err)
}

func (p *handlerParser) logKey() error {
	p.h.LogKey = true
	return p.noMore("write log_key alone")
}

func (p *handlerParser) jitter() error {
	value, err := p.value("a fraction, like 0.2")
	if err != nil {
		return err
	}
	p.h.Jitter, err = strconv.ParseFloat(value, 64)
	if err != nil || !(p.h.Jitter >= 0 && p.h.Jitter <= 1) {
		return p.Errf("jitter %q is not a fraction; write a number from 0 to 1, like jitter 0.2", value)
	}
	return nil
}

// finish checks what only the whole directive shows.
func (p *handlerParser) finish() error {
	if len(p.h.Zones) == 0 && !p.h.Tiers {
		return errAt(p.start, errNoLimits)
	}
	return nil
}
