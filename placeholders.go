package ratelimit

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// A placeholder that nobody sets is empty, and Caddy says nothing of it. So texts with
// placeholders are judged when they are loaded: what can never have a value is an error, and
// what only another module may set is a warning.

// placeholders lists what stands between braces in a text, as Caddy reads it.
func placeholders(text string) (names []string, err error) {
	_, err = caddy.NewEmptyReplacer().ReplaceFunc(text, func(name string, _ any) (any, error) {
		names = append(names, name)
		return "", nil
	})
	return names, err
}

// checkPlaceholders reports the first placeholder of a text that can never have a value.
func checkPlaceholders(text string) error {
	names, err := placeholders(text)
	if err != nil {
		return fmt.Errorf("%.40q: %w; write placeholders like {client_ip}", text, err)
	}
	for _, name := range names {
		if err := checkPlaceholder(name); err != nil {
			return err
		}
	}
	return nil
}

// requestPlaceholders begins the placeholders that Caddy has of every request.
const requestPlaceholders = "http.request."

// ownNames are the placeholders of this module, without their beginning.
var ownNames = []string{"decision", "exceeded.name", "identity", "limit", "remaining", "reset", "retry_after", "shadow_zone", "tier", "zone"}

func checkPlaceholder(name string) error {
	own, ours := strings.CutPrefix(name, ownPlaceholders)
	switch {
	case name == "" || strings.ContainsAny(name, "{}"):
		return fmt.Errorf("{%.40s} names no placeholder; write one like {client_ip}", name)
	case ours && !slices.Contains(ownNames, own):
		return fmt.Errorf("{%s} is not known; write {%[2]sidentity} or {%[2]stier}", name, ownPlaceholders)
	case ours:
		return nil
	case lacksName(name):
		return fmt.Errorf("{%s} lacks the name of what it means, or has one that no request can have; write one like {http.request.header.X-Client}", name)
	case strings.HasPrefix(name, requestPlaceholders) && !ofRequest(name):
		return unknownPlaceholder(name, meantOfRequest(name))
	}
	meant := meantShorthand(name)
	if meant == "" {
		return nil
	}
	if err := checkPlaceholder(meant); err != nil {
		return err // written out it would be wrong too
	}
	return unknownPlaceholder(name, meant)
}

func unknownPlaceholder(name, meant string) error {
	if meant == "" {
		return fmt.Errorf("{%s} is not known, so it would always be empty; write one that Caddy knows, like {client_ip} or {http.request.header.X-Client}", name)
	}
	if strings.Contains(name, ".") {
		return fmt.Errorf("{%s} is not known, so it would always be empty; write {%s}", name, meant)
	}
	return fmt.Errorf("{%s} is not known; write {%s}, or give what a map sets a name less like it", name, meant)
}

// named begins the placeholders that end in a name which the operator chooses.
var named = []string{"http.request.header.", "http.request.cookie.", "http.request.uri.query.", "http.vars."}

// lacksName reports whether the name is missing, or one that no request has.
func lacksName(placeholder string) bool {
	for i, beginning := range named {
		if chosen, ok := strings.CutPrefix(placeholder, beginning); ok {
			ofField := i < 2
			return chosen == "" || ofField && !tokenName.MatchString(chosen)
		}
	}
	return false
}

// ofRequest asks Caddy whether it knows a placeholder of a request.
func ofRequest(name string) bool {
	r := &http.Request{Method: "GET", URL: &url.URL{Path: "/"}, Host: "localhost", RemoteAddr: "192.0.2.1:1", Header: make(http.Header)}
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, net.Addr(new(net.TCPAddr)))
	repl := caddy.NewReplacer()
	caddyhttp.PrepareRequest(r.WithContext(ctx), repl, nil, nil)
	if strings.HasPrefix(name, requestPlaceholders+"duration") {
		return true // asks for the start of the request, which this one never had
	}
	_, known := repl.Get(name)
	return known
}

// requestNames are the placeholders of a request that a key is likely to mean; those that
// end in a dot are followed by a name or a number.
var requestNames = []string{
	"header.", "cookie.", "uri.query.", "uri.path.", "host.labels.", "host", "hostport", "port", "method", "scheme", "proto", "uri", "uri.path", "uri.query",
	"remote", "remote.host", "remote.port", "tls.version", "tls.server_name",
	"tls.client.fingerprint", "tls.client.subject", "tls.client.issuer", "tls.client.serial", "tls.client.san.",
}

// meantOfRequest finds the placeholder that a misspelt one means; empty if there is none.
func meantOfRequest(name string) string {
	written := strings.TrimPrefix(name, requestPlaceholders)
	for _, right := range requestNames {
		beginning, rest := written, ""
		if dots := strings.Count(right, "."); strings.HasSuffix(right, ".") {
			beginning, rest = cutAfter(written, dots)
		}
		if alike(beginning, right) && !lacksName(requestPlaceholders+right+rest) && ofRequest(requestPlaceholders+right+rest) {
			return requestPlaceholders + right + rest
		}
	}
	return ""
}

// cutAfter cuts a text behind its n-th dot.
func cutAfter(text string, n int) (before, after string) {
	end := 0
	for range n {
		i := strings.IndexByte(text[end:], '.')
		if i < 0 {
			return text, ""
		}
		end += i + 1
	}
	return text[:end], text[end:]
}

// shorthands are those of the Caddyfile that a key is likely to mean.
var shorthands = []string{
	"client_ip", "remote_host", "remote_port", "remote", "hostport", "host", "port", "method", "scheme", "path", "query", "uri", "uuid", "dir",
	"tls_client_fingerprint", "tls_client_subject", "tls_client_serial", "tls_client_issuer", "tls_version",
	"header.", "cookie.", "query.", "path.", "labels.", "vars.", "re.", "rp.", "resp.", "err.", "file_match.",
}

// meantShorthand finds what a shorthand means that was misspelt, or that stands where Caddy
// does not expand it, as in JSON; empty if the name is none.
func meantShorthand(name string) string {
	if slices.ContainsFunc(notShort, func(beginning string) bool { return strings.HasPrefix(name, beginning) }) {
		return ""
	}
	for _, right := range shorthands {
		beginning, rest := name, ""
		if strings.HasSuffix(right, ".") {
			beginning, rest = cutAfter(name, 1)
		}
		if beginning == right || alike(beginning, right) {
			if meant := expand(right + rest); meant != "" {
				return meant
			}
		}
	}
	return ""
}

// expand has Caddy expand a shorthand; empty if it is none.
func expand(shorthand string) string {
	segment := caddyfile.Segment{{Text: "{" + shorthand + "}"}}
	httpcaddyfile.NewShorthandReplacer().ApplyToSegment(&segment)
	if segment[0].Text == "{"+shorthand+"}" {
		return ""
	}
	return strings.Trim(segment[0].Text, "{}")
}

// notShort begins the placeholders that are written out.
var notShort = []string{"http.", "env.", "file.", "system.", "time."}

// standard begins the placeholders that modules of Caddy set.
var standard = append([]string{
	requestPlaceholders, ownPlaceholders, "http.vars.", "http.auth.user.", "http.regexp.", "http.matchers.", "http.url_pattern.",
	"http.reverse_proxy.", "http.intercept.", "http.error.", "http.response.header.",
}, notShort[1:]...)

// foreignPlaceholders lists what in a text only a module from elsewhere, or a map, may set.
func foreignPlaceholders(text string) (foreign []string) {
	names, _ := placeholders(text)
	for _, name := range names {
		if !slices.ContainsFunc(standard, func(beginning string) bool { return strings.HasPrefix(name, beginning) }) {
			foreign = append(foreign, "{"+name+"}")
		}
	}
	return foreign
}

// warnForeign says which placeholders of a text may stay empty, and what happens then.
func warnForeign(logger *zap.Logger, where, text string) {
	if foreign := foreignPlaceholders(text); len(foreign) > 0 {
		logger.Warn("these placeholders are not Caddy's own; while nothing before rate_limit sets them they are empty, and missing_key (by default the address) or a cost of 1 holds",
			zap.String("where", where), zap.Strings("placeholders", foreign))
	}
}

// alike reports whether a word is another one misspelt: by one letter in five or more, by two
// in eight or more.
func alike(written, right string) bool {
	written = strings.ToLower(written)
	switch most := distance(written, right); {
	case len(right) < 5:
		return written == right
	case len(right) < 8:
		return most <= 1
	default:
		return most <= 2
	}
}

// distance counts the letters that are missing, too many, wrong or swapped (optimal string
// alignment, after Damerau and Levenshtein). Words of very different lengths are far apart.
func distance(a, b string) int {
	if len(a) > len(b)+2 || len(b) > len(a)+2 {
		return max(len(a), len(b))
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			wrong := 1
			if a[i-1] == b[j-1] {
				wrong = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+wrong)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// certificatePlaceholders begins what Caddy says of the client's certificate.
const certificatePlaceholders = "http.request.tls.client."

// describesNobody reports whether a placeholder describes the certificate of a client that
// has shown none: Caddy describes an empty one then, which is the same for all.
func describesNobody(r *http.Request, placeholder string) bool {
	const n = len(certificatePlaceholders)
	return len(placeholder) > n && strings.EqualFold(placeholder[:n], certificatePlaceholders) &&
		(r.TLS == nil || len(r.TLS.PeerCertificates) == 0)
}
