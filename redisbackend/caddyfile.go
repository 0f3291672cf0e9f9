package redisbackend

import (
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tollgate/ratelimit/internal/block"
)

// UnmarshalCaddyfile reads the backend. Syntax:
//
//	redis [<url>...] {
//		url             <url>...
//		timeout         <duration>
//		key_prefix      <text>
//		username        <name>
//		password        <password>
//		db              <number>
//		sentinel        <master>
//		max_connections <number>
//		tls [{
//			ca                   <pem file>
//			cert                 <pem file>
//			key                  <pem file>
//			server_name          <name>
//			insecure_skip_verify
//		}]
//	}
//
// Several urls are nodes of a Cluster, or with sentinel the sentinels.
func (b *Backend) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // redis
	b.URLs = append(b.URLs, d.RemainingArgs()...)
	read := func(option string) error { return b.unmarshalOption(d, option) }
	if err := block.Each(d, read, "url"); err != nil {
		return err
	}
	if err := b.check(); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

func (b *Backend) unmarshalOption(d *caddyfile.Dispenser, option string) error {
	switch option {
	case "url":
		return b.unmarshalURLs(d)
	case "timeout":
		return b.unmarshalTimeout(d)
	case "key_prefix":
		return textArg(d, &b.KeyPrefix, "a word like ratelimit")
	case "username":
		return textArg(d, &b.Username, "a name, like {env.REDIS_USERNAME}")
	case "password":
		return textArg(d, &b.Password, "a password, like {env.REDIS_PASSWORD}")
	case "sentinel":
		return textArg(d, &b.Sentinel, "the name of the master, like mymaster")
	case "db":
		return numberArg(d, &b.DB, 0, "the number of a database, like 0")
	case "max_connections":
		return numberArg(d, &b.MaxConnections, 1, "a number from 1, like 8")
	case "tls":
		return b.unmarshalTLS(d)
	default:
		return d.Errf("unknown option %q of backend redis; write url, timeout, key_prefix, username, password, db, sentinel, tls or max_connections", option)
	}
}

func (b *Backend) unmarshalURLs(d *caddyfile.Dispenser) error {
	urls := d.RemainingArgs()
	if len(urls) == 0 {
		return d.Errf("url has no value; write one like %s", defaultURL)
	}
	for _, raw := range urls {
		b.URLs = append(b.URLs, raw)
		if err := b.checkURLs(); err != nil {
			return d.WrapErr(err)
		}
	}
	return block.NoBlock(d, "url")
}

func (b *Backend) unmarshalTimeout(d *caddyfile.Dispenser) error {
	var text string
	if err := textArg(d, &text, "a duration like 50ms"); err != nil {
		return err
	}
	timeout, err := caddy.ParseDuration(text)
	if err != nil {
		return d.Errf("timeout %q is not a duration; write one like %s", text, defaultTimeout)
	}
	if timeout < time.Millisecond || timeout > maxTimeout {
		return d.WrapErr(timeoutOutOfRange(timeout))
	}
	b.Timeout = caddy.Duration(timeout)
	return nil
}

// unmarshalTLS reads the block tls, which may be missing.
func (b *Backend) unmarshalTLS(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.Errf("tls takes no value, but a block: write tls { ca <pem file> } in lines of their own, or tls alone")
	}
	b.TLS = new(TLS)
	return block.Each(d, func(option string) error { return b.TLS.unmarshalOption(d, option) })
}

func (t *TLS) unmarshalOption(d *caddyfile.Dispenser, option string) error {
	switch option {
	case "ca":
		return textArg(d, &t.CA, "the path of a PEM file")
	case "cert":
		return textArg(d, &t.Cert, "the path of a PEM file")
	case "key":
		return textArg(d, &t.Key, "the path of a PEM file")
	case "server_name":
		return textArg(d, &t.ServerName, "the name in the server's certificate")
	case "insecure_skip_verify":
		if d.NextArg() {
			return d.Errf("insecure_skip_verify takes no value; write the word alone, or leave it out")
		}
		t.InsecureSkipVerify = true
		return block.NoBlock(d, option)
	default:
		return d.Errf("unknown option %q of tls; write ca, cert, key, server_name or insecure_skip_verify", option)
	}
}

// textArg reads the only argument of an option.
func textArg(d *caddyfile.Dispenser, value *string, want string) error {
	option := d.Val()
	if !d.NextArg() || d.Val() == "" {
		return d.Errf("%s has no value; write %s", option, want)
	}
	*value = d.Val()
	if d.NextArg() {
		return d.Errf("%s takes one value; write %s, in quotes if it has spaces", option, want) // what is too much may be half a password
	}
	return block.NoBlock(d, option)
}

func numberArg(d *caddyfile.Dispenser, value *int, least int, want string) error {
	option, text := d.Val(), ""
	if err := textArg(d, &text, want); err != nil {
		return err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least {
		return d.Errf("%s %q is not possible; write %s", option, text, want)
	}
	*value = n
	return nil
}
