package ratelimit

import (
	"errors"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// The words of mholt/caddy-ratelimit: see compatibility.

// window reads window <duration>.
func (p *zoneParser) window() error {
	value, err := p.value("a duration, like window 1m")
	if err != nil {
		return err
	}
	window, err := caddy.ParseDuration(value)
	switch {
	case err != nil:
		return p.Errf("window %q is not a duration; write one like window 1m", value)
	case window <= 0:
		return p.Errf("window %s must be longer than nothing; write one like window 1m", value)
	}
	p.z.Window = caddy.Duration(window)
	return nil
}

// events reads events <n>.
func (p *zoneParser) events() error {
	value, err := p.value("a whole number, like events 100")
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return p.Errf("events %q is not a number of requests; write a whole number from 0, like events 100", value)
	}
	p.z.Limit = &n
	return nil
}

// finishCompatible completes a zone that is written in window and events.
func (p *zoneParser) finishCompatible() error {
	window, events := p.seen["window"], p.seen["events"]
	if !window && !events {
		return nil
	}
	switch {
	case p.seen["limit"]:
		return errors.New("zone " + p.z.Name + ": limit says what window and events say; write one or the other")
	case !events:
		return errors.New("zone " + p.z.Name + ": window needs events; write limit <count>/<window> instead, like limit 100/1m")
	case !window:
		return errors.New("zone " + p.z.Name + ": events needs a window; write limit <count>/<window> instead, like limit 100/1m")
	}
	p.z.compatible()
	return nil
}

var distributedWords = map[string]bool{"read_interval": true, "write_interval": true, "purge_age": true}

// distributed reads a block of durations, which has no effect.
func (p *handlerParser) distributed() error {
	if err := p.noMore("write distributed { read_interval <duration> }"); err != nil {
		return err
	}
	block := newReader(p.Dispenser, "distributed")
	values := make(map[string]string)
	for nesting := p.Nesting(); p.NextBlock(nesting); {
		word := p.Val()
		if !distributedWords[word] {
			return block.unknownWord([]string{"read_interval", "write_interval", "purge_age"})
		}
		value, err := p.duration()
		if err != nil {
			return err
		}
		values[word] = value
	}
	p.h.Distributed = caddyconfig.JSON(values, nil)
	return nil
}

func (p *handlerParser) duration() (string, error) {
	word := p.Val()
	value, err := p.value("a duration, like 5s")
	if err != nil {
		return "", err
	}
	if _, err := caddy.ParseDuration(value); err != nil {
		return "", p.Errf("%s %q is not a duration; write one like %s 5s", word, value, word)
	}
	return value, nil
}

// storage reads a storage module, which has no effect.
func (p *handlerParser) storage() error {
	if !p.NextArg() {
		return p.Err("storage needs the name of a storage module; or leave the word out")
	}
	name := p.Val()
	module, err := caddyfile.UnmarshalModule(p.Dispenser, "caddy.storage."+name)
	if err != nil {
		return err
	}
	p.h.Storage = caddyconfig.JSONModuleObject(module, "module", name, nil)
	return nil
}

// sweepInterval reads a duration, which has no effect.
func (p *handlerParser) sweepInterval() error {
	value, err := p.duration()
	if err != nil {
		return err
	}
	interval, err := caddy.ParseDuration(value)
	p.h.SweepInterval = caddy.Duration(interval)
	return err
}
