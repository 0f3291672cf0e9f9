package redisbackend

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// Defaults and bounds of the settings.
const (
	defaultURL            = "redis://localhost:6379"
	defaultTimeout        = 50 * time.Millisecond
	defaultKeyPrefix      = "ratelimit"
	defaultMaxConnections = 8

	maxTimeout     = 10 * time.Second
	maxConnections = 10_000
)

// settings are what shapes a client: two configurations with equal settings
// share one. Placeholders are replaced, files are read.
type settings struct {
	Network       string // tcp or unix
	Addrs         []string
	Sentinel      string
	Username      string
	Password      string
	SentinelUser  string
	SentinelPass  string
	DB            int
	TLS           *tlsSettings
	Connections   int
	SocketTimeout time.Duration
}

// poolKey names the settings without revealing them.
func (s *settings) poolKey() (string, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// address is how logs call the server: it never holds a secret.
func (s *settings) address() string {
	addrs := strings.Join(s.Addrs, ", ")
	if s.Sentinel != "" {
		return s.Sentinel + " by sentinel " + addrs
	}
	return addrs
}

// checkURLs reports the first URL that is wrong, alone or beside the others.
// Those with placeholders are checked when their values are known.
func (b *Backend) checkURLs() error {
	var schemes [2]string // by whether it is encrypted, the first such URL
	for i, raw := range b.URLs {
		if b.pending(raw) {
			continue
		}
		e, err := parseURL(raw, b.defaultPort())
		if err != nil {
			return err
		}
		for _, earlier := range b.URLs[:i] {
			if earlier == raw {
				return fmt.Errorf("url %q is written twice; write each node once", maskURL(raw))
			}
		}
		if e.network == "unix" && (len(b.URLs) > 1 || b.Sentinel != "") {
			return fmt.Errorf("url %q: a socket leads to one server, not to a Cluster or Sentinel; write redis:// urls", maskURL(raw))
		}
		if err := checkScheme(&schemes, e.tls, maskURL(raw)); err != nil {
			return err
		}
		if e.network == "unix" && b.TLS != nil {
			return fmt.Errorf("url %q: a socket takes no tls; leave it out", maskURL(raw))
		}
		if e.db > 0 && (b.Sentinel != "" || len(b.URLs) > 1) {
			return fmt.Errorf("url %q: a database number goes with one plain server; leave the path out (with sentinel, use the option db)", maskURL(raw))
		}
		if e.db >= 0 && b.DB != 0 && e.db != b.DB {
			return fmt.Errorf("url %q and db %d name different databases; write one of them", maskURL(raw), b.DB)
		}
	}
	return nil
}

// checkScheme reports a URL that is encrypted beside one that is not: all
// connections are made alike.
func checkScheme(schemes *[2]string, secure bool, masked string) error {
	mine, other := &schemes[0], schemes[1]
	if secure {
		mine, other = &schemes[1], schemes[0]
	}
	if *mine == "" {
		*mine = masked
	}
	if other != "" {
		return fmt.Errorf("url %q beside %q: one is encrypted and the other is not; write all with rediss://, or all with redis://", masked, other)
	}
	return nil
}

// check reports the first setting that is wrong, of those that can be judged
// before placeholders are replaced.
func (b *Backend) check() error {
	timeout := time.Duration(b.Timeout)
	switch {
	case timeout != 0 && (timeout < time.Millisecond || timeout > maxTimeout):
		return timeoutOutOfRange(timeout)
	case b.DB < 0:
		return fmt.Errorf("db %d is negative; write the number of a database, like 0", b.DB)
	case b.DB > 0 && b.Sentinel == "" && len(b.URLs) > 1:
		return fmt.Errorf("db %d: a Cluster has only database 0; leave db out", b.DB)
	case b.MaxConnections < 0 || b.MaxConnections > maxConnections:
		return fmt.Errorf("max_connections %d is out of range; write a number from 1 to %d, like %d", b.MaxConnections, maxConnections, defaultMaxConnections)
	case b.Sentinel != "" && len(b.URLs) == 0:
		return fmt.Errorf("sentinel %s: no sentinel is named; write their urls, like redis://localhost:26379", b.Sentinel)
	case !b.pending(b.KeyPrefix) && strings.ContainsAny(b.KeyPrefix, "{} \t\r\n"):
		return fmt.Errorf("key_prefix %q: spaces and braces have a meaning in keys; write a word like %s", b.KeyPrefix, defaultKeyPrefix)
	case b.TLS != nil && (b.TLS.Cert == "") != (b.TLS.Key == ""):
		return errors.New("tls: cert and key belong together; write both or neither")
	}
	return b.checkURLs()
}

func timeoutOutOfRange(timeout time.Duration) error {
	return fmt.Errorf("timeout %s is out of range; write a duration from 1ms to %s, like %s", timeout, maxTimeout, defaultTimeout)
}

// pending reports whether a value holds placeholders that are not replaced yet.
func (b *Backend) pending(s string) bool { return !b.resolved && strings.ContainsAny(s, "{}") }

func (b *Backend) defaultPort() string {
	if b.Sentinel != "" {
		return "26379"
	}
	return "6379"
}

// resolve replaces placeholders in a copy of the settings, checks the result
// and reads files.
func (b *Backend) resolve() (*Backend, error) {
	r, repl := *b, caddy.NewReplacer()
	r.resolved = true
	r.URLs = append([]string(nil), b.URLs...)
	if len(r.URLs) == 0 && r.Sentinel == "" {
		r.URLs = []string{defaultURL}
	}
	if b.TLS != nil {
		t := *b.TLS
		r.TLS = &t
	}
	for _, f := range r.texts() {
		value, err := repl.ReplaceOrErr(*f.value, true, true)
		if err != nil && (f.name == "password" || f.name == "url") && !ownPlaceholder.MatchString(err.Error()) {
			return nil, fmt.Errorf("%s has a placeholder that is unknown; write one like {env.REDIS_PASSWORD}, and a backslash before a brace that is meant as itself", f.name)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w; set it, or write the value itself", f.name, err)
		}
		*f.value = value
	}
	return &r, r.check()
}

// ownPlaceholder is one whose name is no secret: other braces may be a password's.
var ownPlaceholder = regexp.MustCompile(`\{(env|file)\.[^{}]+\}`)

type textField struct {
	name  string
	value *string
}

// texts lists the settings in which placeholders are replaced.
func (b *Backend) texts() []textField {
	fields := []textField{
		{"sentinel", &b.Sentinel}, {"key_prefix", &b.KeyPrefix}, {"username", &b.Username}, {"password", &b.Password},
	}
	for i := range b.URLs {
		fields = append(fields, textField{"url", &b.URLs[i]})
	}
	if t := b.TLS; t != nil {
		fields = append(fields, textField{"tls ca", &t.CA}, textField{"tls cert", &t.Cert}, textField{"tls key", &t.Key}, textField{"tls server_name", &t.ServerName})
	}
	return fields
}

// settings builds the settings of the client from a resolved backend.
func (b *Backend) settings() (*settings, error) {
	s := &settings{
		Sentinel: b.Sentinel, Username: b.Username, Password: b.Password, DB: b.DB,
		Connections: b.MaxConnections, SocketTimeout: max(time.Second, 2*time.Duration(b.Timeout)),
	}
	secure := false
	for _, raw := range b.URLs {
		e, err := parseURL(raw, b.defaultPort())
		if err != nil {
			return nil, err
		}
		secure = secure || e.tls
		if err := s.add(e, raw); err != nil {
			return nil, err
		}
	}
	if secure || b.TLS != nil {
		t, err := b.TLS.load()
		if err != nil {
			return nil, err
		}
		s.TLS = t
	}
	return s, nil
}

func (s *settings) add(e endpoint, raw string) error {
	s.Network = e.network
	s.Addrs = append(s.Addrs, e.addr)
	if e.db > 0 {
		s.DB = e.db
	}
	user, pass := &s.Username, &s.Password
	if s.Sentinel != "" {
		user, pass = &s.SentinelUser, &s.SentinelPass
	}
	if !merge(user, e.username) || !merge(pass, e.password) {
		return fmt.Errorf("url %q names other credentials than another url or the options username and password; write them once", maskURL(raw))
	}
	return nil
}

// merge sets an empty field, and reports whether the field then has the value.
func merge(field *string, value string) bool {
	if value == "" {
		return true
	}
	if *field == "" {
		*field = value
	}
	return *field == value
}
