package redisbackend

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
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
		return endpoint{}, fmt.Errorf("url %q has no scheme; write %s", maskURL(raw), withScheme(maskURL(raw)))
	}
	u, err := url.Parse(raw)
	if err != nil || hidesMore(raw) {
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
		return endpoint{}, fmt.Errorf("url %q: unknown scheme; write redis://, rediss:// for TLS, or unix:// for a socket", maskURL(raw))
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

// withScheme is what to write in place of a masked URL without a scheme.
func withScheme(masked string) string {
	if strings.Contains(masked, "***") {
		return "one like " + defaultURL
	}
	return "redis://" + masked
}

// hidesMore reports whether what stands before the last @ of a URL is more than a user
// and a password, so that a part of it would be taken for a host.
func hidesMore(raw string) bool {
	_, rest, _ := strings.Cut(raw, "://")
	at := strings.LastIndexByte(rest, '@')
	return at >= 0 && strings.ContainsAny(rest[:at], "/?#@")
}

var (
	schemeForm = regexp.MustCompile(`^[a-z]{1,10}$`)

	// placeForm is a host, a port and a path. Behind an @ the port may be wrong, and is
	// shown; without an @ it may be a password that lacks its host.
	placeForm    = regexp.MustCompile(`^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+|)(:[A-Za-z0-9]*)?(/[A-Za-z0-9._/-]*)?$`)
	noSecretForm = regexp.MustCompile(`^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+|)(:[0-9]{0,5})?(/[A-Za-z0-9._/-]*)?$`)

	// bareForm is what is a place also without a scheme.
	bareForm = regexp.MustCompile(`^(localhost|[A-Za-z0-9.-]+:[0-9]{1,5})?$`)
)

// maskURL shows where a URL leads and hides everything else, also of one that does
// not parse: the user information, options, and what may be a part of a password.
func maskURL(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		scheme, rest = "", raw
	}
	place, user, form := rest, "", noSecretForm
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		place, user, form = rest[at+1:], "***@", placeForm
	}
	options := ""
	if end := strings.IndexAny(place, "?#"); end >= 0 {
		place, options = place[:end], place[end:end+1]+"***"
	}
	switch {
	case !ok:
		form = bareForm
	case !schemeForm.MatchString(scheme):
		scheme = "***"
	}
	if !form.MatchString(place) {
		place = "***"
	}
	if !ok {
		return user + place + options
	}
	return scheme + "://" + user + place + options
}
