package redisbackend

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// endpoint is one parsed URL.
type endpoint struct {
	network, addr      string
	tls                bool
	username, password string
	db                 int // -1 if the URL does not say
}

// parseURL reads one URL. Its errors mask the secrets in it.
func parseURL(raw string, defaultPort string) (endpoint, error) {
	if !strings.Contains(raw, "://") {
		return endpoint{}, fmt.Errorf("url %q has no scheme; write redis://%s", maskURL(raw), maskURL(raw))
	}
	u, err := url.Parse(raw)
	if err != nil {
		return endpoint{}, fmt.Errorf("url %q cannot be read; write redis://[<username>:<password>@]<host>:<port>, "+
			"special characters percent-encoded, or use the options username and password", maskURL(raw))
	}
	e := endpoint{network: "tcp", username: u.User.Username(), db: -1}
	e.password, _ = u.User.Password()
	if u.RawQuery != "" || u.Fragment != "" {
		return endpoint{}, fmt.Errorf("url %q carries options; write them into the block instead", maskURL(raw))
	}
	switch u.Scheme {
	case "redis", "rediss":
		e.tls = u.Scheme == "rediss"
		return e.host(u, maskURL(raw), defaultPort)
	case "unix":
		return e.socket(u, maskURL(raw))
	default:
		return endpoint{}, fmt.Errorf("url %q: unknown scheme %s; write redis://, rediss:// for TLS, or unix:// for a socket", maskURL(raw), u.Scheme)
	}
}

func (e endpoint) host(u *url.URL, masked, defaultPort string) (endpoint, error) {
	port := u.Port()
	if u.Hostname() == "" {
		return endpoint{}, fmt.Errorf("url %q has no host; write one like %s", masked, defaultURL)
	}
	if port == "" {
		port = defaultPort
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return endpoint{}, fmt.Errorf("url %q: port %s is out of range; write one from 1 to 65535", masked, port)
	}
	e.addr = net.JoinHostPort(u.Hostname(), port)
	if path := strings.Trim(u.Path, "/"); path != "" {
		db, err := strconv.ParseUint(path, 10, 16)
		if err != nil {
			return endpoint{}, fmt.Errorf("url %q: the path %q is not a database number; write one like /0, or leave it out", masked, u.Path)
		}
		e.db = int(db)
	}
	return e, nil
}

func (e endpoint) socket(u *url.URL, masked string) (endpoint, error) {
	if u.Host != "" || u.Path == "" || u.Path == "/" {
		return endpoint{}, fmt.Errorf("url %q has no absolute path; write one like unix:///run/redis/redis.sock", masked)
	}
	e.network, e.addr = "unix", u.Path
	return e, nil
}

// maskURL hides the user information of a URL, also of one that does not parse.
func maskURL(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		scheme, rest = "", raw
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = "***" + rest[at:]
	}
	if !ok {
		return rest
	}
	return scheme + "://" + rest
}
