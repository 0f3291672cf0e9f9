package integration_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/policy"
)

// sourcesSite has one zone for each place where a client may say who it is. Requests to
// its second port come from no trusted proxy.
const sourcesSite = `
{
	debug
	auto_https disable_redirects
	servers :{$PORT} {
		trusted_proxies static 127.0.0.1/32
		max_header_size 2MB
	}
	servers :{$PORT2} {
		max_header_size 2MB
	}
	rate_limit {
		backend {$BACKEND}
		provider static {
			tier anonymous {
				policy * 1000000/1d
			}
			tier FREE {
				policy * 1000000/1d
			}
			api_key acme {$ACME_SHA256} FREE
		}
	}
}
(identity) {
	rate_limit /{args[0]} {
		identify {
			{blocks.how}
		}
		zone {args[0]} {
			key {http.rate_limit.identity}
			limit 2/1d
		}
	}
}
http://:{$PORT} {
	rate_limit /header {header.X-Client} 2/1d header
	rate_limit /query {query.client} 2/1d query
	rate_limit /cookie {cookie.client} 2/1d cookie
	rate_limit /forwarded 2/1d forwarded
	import identity keyheader {
		how {
			api_key header X-API-Key
		}
	}
	import identity keyquery {
		how {
			api_key query client
		}
	}
	import identity keycookie {
		how {
			api_key cookie client
		}
	}
	import identity placeholder {
		how {
			placeholder {header.X-Client}
		}
	}
	import identity token {
		how {
			jwt {
				secret ` + clientSecret + `
			}
		}
	}
	route /user {
		basic_auth {
			{$USERS}
		}
		rate_limit {http.auth.user.id} 2/1d user
	}
	respond "welcome"
}
https://localhost:{$PORT2} {
	tls {$CERT} {$CERT} {
		client_auth {
			mode request
		}
	}
	rate_limit /untrusted 2/1d untrusted
	rate_limit /certificate {tls_client_subject} 2/1d certificate
	respond "welcome"
}`

// hostileClients are what clients may say of themselves; several values are one repeated field.
var hostileClients = [][]string{
	{""},
	{"   "},
	{"acme"},
	{"ACME"},
	{" acme"},
	{"acme "},
	{"\u0430cme"},
	{"\uff41cme"}, // Cyrillic, full width
	{"caf\u00e9"},
	{"cafe\u0301"}, // composed, decomposed
	{strings.Repeat("k", 1<<20)},
	{strings.Repeat("k", 1<<20-1) + "l"},
	{"a\x00b"},
	{"a\x00"},
	{"a\r\nb"},
	{"a\nb"},
	{"a\r\n b"},
	{"a\x1b[31m"},
	{"a\tb"},
	{"a\x7f"},
	{"\xff\xfe\xc3"},
	{"\xff\xfe\xc4"},
	{"\xed\xa0\x80"},
	{"\xed\xa0\x81"},
	{"\ufffd"}, // lone surrogates, and what decoders make of them
	{"{http.request.uri}"},
	{"{"},
	{"}:{"},
	{"{}"},
	{"a:b"},
	{"a|b"},
	{"a"},
	{"b"},
	{"a,b"},
	{"a", "b"},
	{"b", "a"},
	{"a", "a"},
	{"*"},
	{"?[a-z]*"},
	{"ratelimit:*"},
	{`\*`},
	{"'; DROP TABLE rate_limit_tiers; --"},
	{`"`},
	{`\`},
	{"%00"},
	{"%27"},
	{"../../x"},
	{"__proto__"},
	{"constructor"},
	{"null"},
	{"<nil>"},
	{"undefined"},
	{"fe80::1%eth0"},
	{"fe80::1%eth1"},
	{"fe80::1"},
	{"203.0.113.7"},
	{"::ffff:203.0.113.7"},
	{"::ffff:cb00:7107"},
	{"203.0.113.007"},
	{"203.0.113.7, 198.51.100.1"},
	{"203.0.113.7:80"},
	{"[2001:db8::1]:443"},
	{"2001:DB8:0::2"},
	{"127.0.0.1"},
	{"k_acme"},
	{"h_AAAAAAAAAAAAAAAAAAAAAA"},
	{"unknown"},
}

// Who a value makes of its sender, besides a name of its own.
const (
	byAddress = "the address"
	nobody    = "" // refused before anything is counted, or not to be sent at all
)

// sender is one way to say who one is.
type sender struct {
	zone string

	// who is the client that the values are, and the status it is answered within its limit.
	who func(values []string) (client string, status int)

	send func(t *testing.T, c *caddy, values []string) (status int)
}

func TestHostileValuesThroughEverySourceOfIdentity(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	c := startCaddy(t, sourcesSite, redisBackend(server), "CERT="+serverCertificate(t), "USERS="+userLines(),
		fmt.Sprintf("ACME_SHA256=%x", sha256.Sum256([]byte(acmeKey))))
	looker, loaded := inspect(t, server), len(c.log.String())
	for _, s := range senders(t) {
		clients := ledger(t, c, s)
		stored := make(map[string]bool)
		for _, key := range storedKeys(t, looker) {
			if strings.HasSuffix(key, ":"+s.zone) {
				stored[key] = true
			}
			if !plainKey.MatchString(key) {
				t.Errorf("%s: the key %.200q in Redis is not plain", s.zone, key)
			}
		}
		if len(stored) != clients {
			t.Errorf("%s: %d keys in Redis for %d clients", s.zone, len(stored), clients)
		}
	}
	// nothing of what clients said stands in the log, though it tells of every request
	eventually(t, "the refusals are logged", func() bool { return len(c.log.lines("rate limit exceeded")) > 0 })
	c.stop()
	for _, said := range []string{"DROP TABLE", "__proto__", "ratelimit:*", "cafe\u0301"} {
		if strings.Contains(c.log.String()[loaded:], said) {
			t.Errorf("%q is in the log", said)
		}
	}
}

// plainKey is every key that may stand in Redis: short, and of letters that mean nothing to it.
var plainKey = regexp.MustCompile(`^ratelimit:\{[A-Za-z0-9_.:/*-]{1,64}\}:[a-z]{1,16}$`)

// ledger sends each value three times, and predicts every answer from who the value is: a client
// has two, whatever others have had. It returns how many clients were counted.
func ledger(t *testing.T, c *caddy, s sender) int {
	t.Helper()
	used := make(map[string]int)
	for _, values := range hostileClients {
		client, status := s.who(values)
		for try := range 3 {
			got := s.send(t, c, values)
			if client == nobody {
				if got != 0 && (got < 400 || got > 499) {
					t.Errorf("%s %.60q: got %d, want that it is refused", s.zone, values, got)
				}
				break
			}
			want := status
			if used[client]++; used[client] > 2 {
				want = 429
			}
			if got != want {
				t.Errorf("%s %.60q, request %d: got %d, want %d", s.zone, values, try+1, got, want)
			}
		}
	}
	return len(used)
}

func senders(t *testing.T) []sender {
	header := func(name string) func(*testing.T, *caddy, []string) int {
		return func(t *testing.T, c *caddy, values []string) int { return sendLines(t, c.addr(), name, values) }
	}
	cookie := func(path string) func(*testing.T, *caddy, []string) int {
		return func(t *testing.T, c *caddy, values []string) int {
			return sendLines(t, c.addr(), path, cookieLines(values))
		}
	}
	query := func(path string) func(*testing.T, *caddy, []string) int {
		return func(t *testing.T, c *caddy, values []string) int {
			return sendLines(t, c.addr(), path+"?"+url.Values{"client": values}.Encode()+" ", nil)
		}
	}
	return []sender{
		{"header", headerClient, header("header X-Client")},
		{"placeholder", headerClient, header("placeholder X-Client")},
		{"keyheader", onlyAddress(headerClient), header("keyheader X-API-Key")},
		{"query", func(values []string) (string, int) { return named(strings.Join(values, ",")) }, query("query")},
		{"keyquery", func([]string) (string, int) { return byAddress, 200 }, query("keyquery")},
		{"cookie", cookieClient, cookie("cookie Cookie")},
		{"keycookie", onlyAddress(cookieClient), cookie("keycookie Cookie")},
		{"token", tokenClient, header("token Authorization")},
		{"forwarded", forwardedClient, header("forwarded X-Forwarded-For")},
		{"untrusted", onlyAddress(headerClient), sendUntrusted(t)},
		{"certificate", certificateClient, sendCertificate(t)},
		{"user", userClient, sendUser},
	}
}

// sendLines sends a request whose target is a path, and behind a space the field that holds
// the values. It returns 0 if Caddy hung up.
func sendLines(t *testing.T, address, target string, values []string) int {
	t.Helper()
	path, field, _ := strings.Cut(target, " ")
	switch path {
	case "token":
		values = tokens(values)
	case "user":
		values = []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(strings.Join(values, ",")+":hiccup"))}
	}
	request := "GET /" + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
	for _, value := range values {
		request += field + ": " + value + "\r\n"
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, request+"\r\n") // who is refused early is cut off
	reply, _ := io.ReadAll(conn)
	if len(reply) == 0 {
		return 0
	}
	return statusOf(t, string(reply))
}

func cookieLines(values []string) (lines []string) {
	for _, value := range values {
		lines = append(lines, "client="+value)
	}
	return lines
}

// named is the client that a text names: the address, if it is empty.
func named(text string) (string, int) {
	if text == "" {
		return byAddress, 200
	}
	return "client " + text, 200
}

// headerClient is who a header names, once HTTP has trimmed and judged it.
func headerClient(values []string) (string, int) {
	var trimmed []string
	for _, value := range values {
		value = unfolded(value)
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return nobody, 0
		}
		trimmed = append(trimmed, strings.Trim(value, " \t"))
	}
	return named(strings.Join(trimmed, ","))
}

// unfolded joins a line that goes on behind a line end and a space, which HTTP/1.1 still reads.
func unfolded(value string) string { return strings.ReplaceAll(value, "\r\n ", " ") }

// cookieClient is whom the first of the cookies names, of those whose value is one.
func cookieClient(values []string) (string, int) {
	lines := cookieLines(values)
	if client, _ := headerClient(lines); client == nobody {
		return nobody, 0
	}
	r := http.Request{Header: http.Header{"Cookie": {unfolded(strings.Join(lines, "; "))}}}
	for _, line := range r.CookiesNamed("client") {
		return named(line.Value)
	}
	return byAddress, 200
}

// onlyAddress is for what names nobody: where it gets through, the address counts.
func onlyAddress(who func([]string) (string, int)) func([]string) (string, int) {
	return func(values []string) (string, int) {
		if client, _ := who(values); client == nobody {
			return nobody, 0
		}
		return byAddress, 200
	}
}

// tokens signs a token for each of the values, as they are.
func tokens(values []string) (lines []string) {
	for _, value := range values {
		var sub strings.Builder
		for i := range len(value) {
			switch b := value[i]; {
			case b < ' ' || b == '"' || b == '\\':
				fmt.Fprintf(&sub, `\u%04x`, b)
			default:
				sub.WriteByte(b)
			}
		}
		text := encoded(`{"alg":"HS256"}`) + "." + encoded(fmt.Sprintf(`{"exp":%d,"sub":"%s"}`, time.Now().Add(time.Hour).Unix(), sub.String()))
		mac := hmac.New(sha256.New, []byte(clientSecret))
		mac.Write([]byte(text))
		lines = append(lines, "Bearer "+text+"."+base64.RawURLEncoding.EncodeToString(mac.Sum(nil)))
	}
	return lines
}

// tokenClient is the account of a token. What is no text, or is too long, is no account; nor are two
// tokens one.
func tokenClient(values []string) (string, int) {
	account := values[0]
	if len(values) > 1 || account == "" || len(account) > 4096 || !utf8.ValidString(account) || strings.Contains(account, "\ufffd") {
		return byAddress, 401
	}
	return "account " + account, 200
}

// forwardedClient is the first address that a trusted proxy tells, as Caddy reads it.
func forwardedClient(values []string) (string, int) {
	if client, _ := headerClient(values); client == nobody {
		return nobody, 0
	}
	for text := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if host, _, err := net.SplitHostPort(text); err == nil {
			text = host
		}
		text, _, _ = strings.Cut(strings.TrimSpace(text), "%")
		if address, err := netip.ParseAddr(text); err == nil {
			return policy.AddressIdentity(address, 32, 64), 200
		}
	}
	return "127.0.0.1", 200
}

// sendUntrusted sends values as X-Forwarded-For over TLS, from nobody's proxy.
func sendUntrusted(t *testing.T) func(*testing.T, *caddy, []string) int {
	return func(t *testing.T, c *caddy, values []string) int {
		conn, err := tls.Dial("tcp", c.addr2(), &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		request := fmt.Sprintf("GET /untrusted HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\n", c.port2)
		for _, value := range values {
			request += "X-Forwarded-For: " + value + "\r\n"
		}
		_, _ = io.WriteString(conn, request+"\r\n")
		reply, _ := io.ReadAll(conn)
		if len(reply) == 0 {
			return 0
		}
		return statusOf(t, string(reply))
	}
}

// certificateClient is the subject of a certificate, which can only be UTF-8, and not of any length.
func certificateClient(values []string) (string, int) {
	subject := strings.Join(values, ",")
	if !utf8.ValidString(subject) || len(subject) > 100_000 {
		return nobody, 0
	}
	return named(pkix.Name{CommonName: subject}.String())
}

// sendCertificate shows a certificate of which the client chose the subject.
func sendCertificate(t *testing.T) func(*testing.T, *caddy, []string) int {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, c *caddy, values []string) int {
		subject := pkix.Name{CommonName: strings.Join(values, ",")}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: subject, NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			return 0 // no certificate can say that
		}
		client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true,
			Certificates:       []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		}}}
		resp, err := client.Get(fmt.Sprintf("https://localhost:%d/certificate", c.port2))
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
}

// serverCertificate is a file with a certificate for localhost and its key.
func serverCertificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return newCaddy(t).write("server.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))+
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

// users are accounts whose names could be taken for each other. The hash is of the word
// "hiccup", by bcrypt at its cheapest.
var users = []string{
	"acme", "ACME", "\u0430cme", "\uff41cme", "caf\u00e9", "cafe\u0301", "a|b", "a", "b", "a,b", "*", "?[a-z]*",
	"'; DROP TABLE rate_limit_tiers; --", "__proto__", "constructor", "null", "203.0.113.7", "127.0.0.1", "k_acme", "unknown", "../../x",
}

func userLines() string {
	var lines strings.Builder
	for _, name := range users {
		quoted, _ := json.Marshal(name)
		fmt.Fprintf(&lines, "%s $2a$04$sGh9vbA.TA2kyoEwXezvLOmNX4PLs1uaNy9iqSSzFBJrfksgwJjTy\n", quoted)
	}
	return lines.String()
}

// sendUser tells a name and the password of all. Caddy takes its time to refuse a name that it
// does not know, so only a few of those are tried.
func sendUser(t *testing.T, c *caddy, values []string) int {
	if client, _ := userClient(values); client == nobody && utf8.ValidString(values[0]) && !strings.ContainsAny(values[0], ":\x00") {
		return 0
	}
	return sendLines(t, c.addr(), "user Authorization", values)
}

// userClient is who has an account; Caddy refuses the others before they are counted.
func userClient(values []string) (string, int) {
	said := strings.Join(values, ",")
	for _, name := range users {
		if name == said {
			return "user " + name, 200
		}
	}
	return nobody, 0
}
