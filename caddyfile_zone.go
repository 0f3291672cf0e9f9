package ratelimit

import (
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// parseZone reads a zone; the dispenser stands at the word. A name without a block
// is a reference. Syntax:
//
//	zone <name> [{
//	    match        <matcher>
//	    key          <text with placeholders>
//	    limit        <count>/<window> [burst <n>]
//	    algorithm    <name>
//	    max_delay    <duration>
//	    cost         <n or placeholder>
//	    ipv4_prefix  <bits>
//	    ipv6_prefix  <bits>
//	    missing_key  address|skip|reject|<text>
//	    on_error     open|closed|local
//	    mode         enforce|shadow
//	}]
//
// In place of limit it takes window <duration> and events <n>, the words of
// mholt/caddy-ratelimit, with their meaning there.
func parseZone(d *caddyfile.Dispenser, named func() (caddy.ModuleMap, bool, error)) (*Zone, error) {
	p := &zoneParser{reader: newReader(d, "zone"), named: named, start: d.Token(), z: new(Zone)}
	if !p.NextArg() {
		return nil, p.Err("zone needs a name, like zone login { limit 100/1m }")
	}
	p.z.Name = p.Val()
	p.block = "zone " + p.z.Name
	if err := p.wrap(validateZoneName(p.z.Name)); err != nil {
		return nil, err
	}
	if err := p.noMore("write zone <name> { ... }"); err != nil {
		return nil, err
	}
	words := 0
	for nesting := p.Nesting(); p.NextBlock(nesting); words++ {
		if err := p.word(); err != nil {
			return nil, err
		}
	}
	if words == 0 {
		return p.z, nil
	}
	return p.z, p.finish()
}

type zoneParser struct {
	*reader
	named func() (caddy.ModuleMap, bool, error)
	start caddyfile.Token
	z     *Zone
}

var zoneWords = map[string]func(*zoneParser) error{
	"match":       (*zoneParser).match,
	"key":         (*zoneParser).key,
	"limit":       (*zoneParser).limit,
	"algorithm":   (*zoneParser).algorithm,
	"max_delay":   (*zoneParser).maxDelay,
	"cost":        (*zoneParser).cost,
	"ipv4_prefix": (*zoneParser).ipv4Prefix,
	"ipv6_prefix": (*zoneParser).ipv6Prefix,
	"missing_key": (*zoneParser).missingKey,
	"on_error":    (*zoneParser).onError,
	"mode":        (*zoneParser).mode,
	"window":      (*zoneParser).window,
	"events":      (*zoneParser).events,
}

// ownZoneWords are the words to suggest.
var ownZoneWords = []string{
	"match", "key", "limit", "algorithm", "max_delay", "cost", "ipv4_prefix", "ipv6_prefix", "missing_key", "on_error", "mode",
}

func (p *zoneParser) word() error {
	read, ok := zoneWords[p.Val()]
	if !ok {
		return p.unknownWord(ownZoneWords)
	}
	if p.Val() != "match" {
		if err := p.once(); err != nil {
			return err
		}
	}
	return read(p)
}

func (p *zoneParser) match() error {
	set, err := parseMatcher(p.Dispenser, p.named)
	if err != nil {
		return err
	}
	p.z.MatcherSetsRaw = append(p.z.MatcherSetsRaw, set)
	return nil
}

func (p *zoneParser) key() (err error) {
	if p.z.Key, err = p.value("text with placeholders, like key {client_ip}"); err != nil {
		return err
	}
	if p.z.Key == "" {
		return p.Err("key is empty; write text with placeholders, like key {client_ip}, or leave the word out")
	}
	_, err = p.z.keyTemplate()
	return p.wrap(err)
}

// limit reads <count>/<window> [burst <n>].
func (p *zoneParser) limit() error {
	const usage = "write limit <count>/<window> [burst <n>], like limit 100/1m burst 20"
	if !p.NextArg() {
		return p.Errf("limit needs a value; %s", usage)
	}
	l, err := policy.ParseLimit(p.Val())
	if err != nil {
		return p.WrapErr(err)
	}
	if p.NextArg() {
		if l.Burst, err = p.burst(usage); err != nil {
			return err
		}
	}
	if err := p.noMore(usage); err != nil {
		return err
	}
	p.z.setLimit(l)
	return p.wrap(l.Validate())
}

func (p *zoneParser) burst(usage string) (int64, error) {
	if p.Val() != "burst" {
		return 0, p.Errf("unexpected word %q; %s", p.Val(), usage)
	}
	if !p.NextArg() {
		return 0, p.Errf("burst needs a value; %s", usage)
	}
	n, err := strconv.ParseInt(p.Val(), 10, 64)
	if err != nil || n < 1 {
		return 0, p.Errf("burst %q is not a number of units; write a whole number from 1, like burst 20", p.Val())
	}
	return n, nil
}

// setLimit writes a limit into the zone's fields.
func (z *Zone) setLimit(l policy.Limit) {
	z.Limit, z.Window, z.Burst = &l.Count, caddy.Duration(l.Window), l.Burst
}

func (p *zoneParser) algorithm() error {
	value, err := p.value("token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log")
	if err != nil {
		return err
	}
	p.z.Algorithm, err = policy.ParseAlgorithm(value)
	return p.wrap(err)
}

func (p *zoneParser) maxDelay() error {
	value, err := p.value("a duration, like 500ms")
	if err != nil {
		return err
	}
	delay, err := caddy.ParseDuration(value)
	if err != nil || delay <= 0 {
		return p.Errf("max_delay %q is not a duration; write one like max_delay 500ms", value)
	}
	p.z.MaxDelay = caddy.Duration(delay)
	return nil
}

func (p *zoneParser) cost() (err error) {
	text, err := p.value("a whole number, or a placeholder that becomes one")
	if err != nil {
		return err
	}
	if p.z.Cost = Cost(text); text == "" {
		return p.Err("cost is empty; write a whole number from 0, or a placeholder that becomes one")
	}
	_, err = newCostTemplate(text)
	return p.wrap(err)
}

func (p *zoneParser) ipv4Prefix() (err error) {
	p.z.IPv4Prefix, err = p.prefix(32)
	return err
}

func (p *zoneParser) ipv6Prefix() (err error) {
	p.z.IPv6Prefix, err = p.prefix(128)
	return err
}

func (p *zoneParser) prefix(most int) (*int, error) {
	word := p.Val()
	value, err := p.value("a number of bits, like " + word + " " + strconv.Itoa(most/2))
	if err != nil {
		return nil, err
	}
	bits, err := strconv.Atoi(value)
	if err != nil {
		return nil, p.Errf("%s %q is not a number of bits; write one from 1 to %d", word, value, most)
	}
	return &bits, p.wrap(validatePrefix(word, bits, most))
}

func (p *zoneParser) missingKey() (err error) {
	if p.z.MissingKey, err = p.value("address, skip, reject, or a text that is the key instead"); err != nil {
		return err
	}
	if p.z.MissingKey == "" {
		return p.Err("missing_key is empty; write address, skip, reject, or a text that is the key instead")
	}
	return nil
}

func (p *zoneParser) onError() error {
	value, err := p.value("open, closed or local")
	if err != nil {
		return err
	}
	p.z.OnError, err = policy.ParseOnError(value)
	return p.wrap(err)
}

func (p *zoneParser) mode() error {
	value, err := p.value("enforce or shadow")
	if err != nil {
		return err
	}
	p.z.Mode, err = policy.ParseMode(value)
	return p.wrap(err)
}

// finish checks what only the whole block shows.
func (p *zoneParser) finish() error {
	if err := p.finishCompatible(); err != nil {
		return errAt(p.start, err)
	}
	if err := p.z.Validate(); err != nil {
		return errAt(p.start, err)
	}
	return nil
}
