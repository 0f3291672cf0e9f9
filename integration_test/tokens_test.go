package integration_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	clientSecret = "the-secret-of-the-clients-of-these-tests"
	issuer       = "https://issuer.example.com"
)

func newRSA(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// publicPEM is the public key as the issuer hands it out.
func publicPEM(t *testing.T, key crypto.Signer) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// signed makes a token; header adds to its header.
func signed(t *testing.T, how jwt.SigningMethod, key any, claims jwt.MapClaims, header map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(how, claims)
	maps.Copy(token.Header, header)
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// claimsOf are good claims with changes, of which nil leaves one out.
func claimsOf(changes jwt.MapClaims) jwt.MapClaims {
	claims := jwt.MapClaims{"sub": "acme", "tier": "PRO", "iss": issuer, "aud": "api", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	return claims
}

func encoded(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// unsigned is a token whose header says so, without a signature.
func unsigned(t *testing.T, header string) string {
	t.Helper()
	payload, err := json.Marshal(claimsOf(nil))
	if err != nil {
		t.Fatal(err)
	}
	return encoded(header) + "." + encoded(string(payload)) + "."
}

// keyServer publishes the key set of an issuer.
type keyServer struct {
	*httptest.Server
	reads atomic.Int64

	mu   sync.Mutex
	keys map[string]*rsa.PrivateKey // by kid; nil: it does not answer
}

func newKeyServer(t *testing.T) *keyServer {
	t.Helper()
	s := new(keyServer)
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// publish replaces the set.
func (s *keyServer) publish(keys map[string]*rsa.PrivateKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = keys
}

func (s *keyServer) serve(w http.ResponseWriter, _ *http.Request) {
	s.reads.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	set := map[string][]map[string]string{"keys": {}}
	for id, key := range s.keys {
		set["keys"] = append(set["keys"], map[string]string{
			"kty": "RSA", "use": "sig", "alg": "RS256", "kid": id,
			"n": base64.RawURLEncoding.EncodeToString(key.N.Bytes()),
			"e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.E)).Bytes()),
		})
	}
	_ = json.NewEncoder(w).Encode(set)
}

// tokenSite verifies tokens by a secret, a public key or a key set, by the path.
// Each has a zone of two hundred by address beside it.
var tokenSite = strings.Replace(trusting, "rate_limit {", `rate_limit {
		provider static {
			tier anonymous {
				policy * 1000/1d
			}
			tier PRO {
				policy * 2000/1d
			}
		}`, 1) + `
:{$PORT} {` + tokenHandler("secret", "secret "+clientSecret) + tokenHandler("public", "public_key {$PEM}") + tokenHandler("jwks", "jwks {$JWKS}") + `
	respond "{http.rate_limit.tier}"
}`

func tokenHandler(name, key string) string {
	return fmt.Sprintf(`
	rate_limit /%[1]s {
		identify {
			jwt {
				%[2]s
				issuer %[3]s
				audience api other
			}
		}
		zone address_%[1]s {
			limit 200/1d
		}
		tiers
	}`, name, key, issuer)
}

// startTokenSite runs tokenSite with the public key and the key set of an issuer.
func startTokenSite(t *testing.T, key crypto.Signer, set *keyServer) *caddy {
	t.Helper()
	file := filepath.Join(t.TempDir(), "issuer.pem")
	if err := os.WriteFile(file, []byte(publicPEM(t, key)), 0o600); err != nil {
		t.Fatal(err)
	}
	return startCaddy(t, tokenSite, "PEM="+file, "JWKS="+set.URL)
}

// hostile is a token that somebody might send to one of the sites.
type hostile struct{ name, site, token string }

// goodToken signs claims as the issuer does for a site.
func goodToken(t *testing.T, site string, key *rsa.PrivateKey, changes jwt.MapClaims) string {
	t.Helper()
	if site == "secret" {
		return signed(t, jwt.SigningMethodHS256, []byte(clientSecret), claimsOf(changes), nil)
	}
	return signed(t, jwt.SigningMethodRS256, key, claimsOf(changes), map[string]any{"kid": "one"})
}

// hostileTokens are those that pass nowhere, for an issuer that signs with the key.
func hostileTokens(t *testing.T, key *rsa.PrivateKey) []hostile {
	t.Helper()
	other := newRSA(t)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hs := func(changes jwt.MapClaims) string { return goodToken(t, "secret", nil, changes) }
	rs := func(by *rsa.PrivateKey, kid string) string {
		return signed(t, jwt.SigningMethodRS256, by, claimsOf(nil), map[string]any{"kid": kid})
	}
	confused := func(secret string) string {
		return signed(t, jwt.SigningMethodHS256, []byte(secret), claimsOf(nil), nil)
	}
	tampered := strings.Split(hs(nil), ".")
	tampered[1] = strings.Split(unsigned(t, "{}"), ".")[1] + "A"
	return []hostile{
		{"wrong algorithm: a longer hash", "secret", signed(t, jwt.SigningMethodHS512, []byte(clientSecret), claimsOf(nil), nil)},
		{"wrong algorithm: RS256 for a secret", "secret", rs(key, "one")},
		{"wrong algorithm: ES256 for an RSA key", "public", signed(t, jwt.SigningMethodES256, curve, claimsOf(nil), nil)},
		{"none", "secret", unsigned(t, `{"alg":"none"}`)},
		{"NONE for a public key", "public", unsigned(t, `{"alg":"NONE"}`)},
		{"none for a key set", "jwks", unsigned(t, `{"alg":"none","kid":"one"}`)},
		{"HS256 signed with the public key", "public", confused(publicPEM(t, key))},
		{"HS256 signed with the public key, trimmed", "public", confused(strings.TrimSpace(publicPEM(t, key)))},
		{"HS256 signed with the modulus of the key set", "jwks", confused(string(key.N.Bytes()))},
		{"another secret", "secret", confused("another-secret-of-thirty-two-bytes-or-more")},
		{"another issuer's key", "public", rs(other, "one")},
		{"another key of a known kid", "jwks", rs(other, "one")},
		{"signature left out", "secret", unsigned(t, `{"alg":"HS256","typ":"JWT"}`)},
		{"claims changed after signing", "secret", strings.Join(tampered, ".")},
		{"expired", "secret", hs(jwt.MapClaims{"exp": time.Now().Add(-time.Minute).Unix()})},
		{"without an expiry", "secret", hs(jwt.MapClaims{"exp": nil})},
		{"not valid yet", "secret", hs(jwt.MapClaims{"nbf": time.Now().Add(time.Hour).Unix()})},
		{"wrong audience", "secret", hs(jwt.MapClaims{"aud": "shop"})},
		{"no audience", "secret", hs(jwt.MapClaims{"aud": nil})},
		{"wrong issuer", "secret", hs(jwt.MapClaims{"iss": issuer + ".evil.example"})},
		{"huge", "secret", hs(jwt.MapClaims{"pad": strings.Repeat("x", 9<<10)})},
		{"huge, of dots", "secret", strings.Repeat(".", 100<<10)},
		{"two dots only", "secret", ".."},
		{"two dots only for a key set", "jwks", ".."},
		{"unknown kid", "jwks", rs(key, "nobody")},
		{"no account", "secret", hs(jwt.MapClaims{"sub": nil})},
	}
}

// A bad token is answered 401, and counts against the address that it comes from.
func TestEachHostileTokenIs401AndCountsAgainstItsAddress(t *testing.T) {
	t.Parallel()
	key, set := newRSA(t), newKeyServer(t)
	set.publish(map[string]*rsa.PrivateKey{"one": key})
	c := startTokenSite(t, key, set)
	for i, tc := range hostileTokens(t, key) {
		address := from(fmt.Sprintf("203.0.113.%d", i))
		zone := "address_" + tc.site
		a := c.get("/"+tc.site, address, bearer(tc.token))
		if a.status != 401 {
			t.Fatalf("%s: got %d %s, want 401", tc.name, a.status, a.body)
		}
		a.wantProblem(t, 401, "invalid_token", "")
		if got := a.remaining(t, zone); got != 199 {
			t.Errorf("%s: %d left for its address, want 199", tc.name, got)
		}
		if !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") || tc.token != ".." && strings.Contains(a.body+c.log.String(), tc.token) {
			t.Errorf("%s: WWW-Authenticate %q, body %s", tc.name, a.header.Get("WWW-Authenticate"), a.body)
		}
		a = c.get("/"+tc.site, address, bearer(goodToken(t, tc.site, key, nil))).wantStatus(t, 200)
		if a.body != "PRO" || a.remaining(t, zone) != 198 {
			t.Errorf("%s: a good token after it is in tier %s, %d left; want PRO and 198", tc.name, a.body, a.remaining(t, zone))
		}
	}
}

// The same tokens do not make an admin.
func TestNoHostileTokenReachesTheAdminAPI(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, managed)
	claims := func(changes jwt.MapClaims) jwt.MapClaims {
		all := jwt.MapClaims{"sub": "mallory", "roles": []string{"ADMIN"}, "exp": time.Now().Add(time.Hour).Unix()}
		maps.Copy(all, changes)
		maps.DeleteFunc(all, func(_ string, value any) bool { return value == nil })
		return all
	}
	hs := func(changes jwt.MapClaims) string {
		return signed(t, jwt.SigningMethodHS256, []byte(adminSecret), claims(changes), nil)
	}
	cases := map[string]string{
		"none":          encoded(`{"alg":"none"}`) + "." + encoded(`{"sub":"mallory","roles":["ADMIN"],"exp":99999999999}`) + ".",
		"expired":       hs(jwt.MapClaims{"exp": time.Now().Add(-time.Minute).Unix()}),
		"no expiry":     hs(jwt.MapClaims{"exp": nil}),
		"not yet valid": hs(jwt.MapClaims{"nbf": time.Now().Add(time.Hour).Unix()}),
		"other secret":  signed(t, jwt.SigningMethodHS256, []byte(clientSecret), claims(nil), nil),
		"longer hash":   signed(t, jwt.SigningMethodHS512, []byte(adminSecret), claims(nil), nil),
		"RS256":         signed(t, jwt.SigningMethodRS256, newRSA(t), claims(nil), nil),
		"huge":          hs(jwt.MapClaims{"pad": strings.Repeat("x", 9<<10)}),
		"two dots":      "..",
	}
	m := manage(c)
	m.do(200, "GET", "/policies", "")
	for name, token := range cases {
		stranger := &manager{m.caddy, bearer(token)}
		a := stranger.do(401, "PATCH", "/policies/default-free", `{"limit": 1000000}`, ifMatch("*"))
		if !strings.Contains(a.body, `"invalid_token"`) || !strings.Contains(a.header.Get("WWW-Authenticate"), `error="invalid_token"`) {
			t.Errorf("%s: %s (WWW-Authenticate %q)", name, a.body, a.header.Get("WWW-Authenticate"))
		}
	}
	if got := m.do(200, "GET", "/policies/default-free", "").read(t).Limit; got != 60 {
		t.Errorf("the limit is %d, want 60", got)
	}
}

// An address that is over its limit is told so, whatever it sends; its tokens are
// not looked at.
func TestAnExhaustedAddressIs429BeforeItsTokenIsLookedAt(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		key, set := newRSA(t), newKeyServer(t)
		set.publish(map[string]*rsa.PrivateKey{"one": key})
		c := startCaddy(t, strings.ReplaceAll(trusting+":{$PORT} {"+tokenHandler("jwks", "jwks {$JWKS}")+"\n respond welcome\n}", "200/1d\n\t\t}\n\t\ttiers", "3/1d\n\t\t}"),
			backend, "JWKS="+set.URL)
		good := bearer(signed(t, jwt.SigningMethodRS256, key, claimsOf(nil), map[string]any{"kid": "one"}))
		unknown := bearer(signed(t, jwt.SigningMethodRS256, key, claimsOf(nil), map[string]any{"kid": "nobody"}))
		first, second := from("203.0.113.7"), from("203.0.113.8")
		c.sequence(4, "/jwks", first, bearer("..")).want(t, tally{401: 3, 429: 1})
		c.get("/jwks", first, good).wantProblem(t, 429, "rate_limited", "address_jwks")

		// An unknown key makes the set be read. While a refusal is known, which is
		// for a second, nothing is read.
		eventually(t, "two requests come within a second", func() bool {
			start := time.Now()
			c.get("/jwks", first, bearer("..")).wantStatus(t, 429) // the refusal is known from here on, at the latest
			before := set.reads.Load()
			c.get("/jwks", first, bearer("..")).wantStatus(t, 429)
			c.get("/jwks", first, unknown).wantProblem(t, 429, "rate_limited", "address_jwks")
			if time.Since(start) > 300*time.Millisecond {
				return false
			}
			if read := set.reads.Load() - before; read != 0 {
				t.Errorf("the key set was read %d times for an exhausted address", read)
			}
			return true
		})
		before := set.reads.Load()
		c.get("/jwks", second, unknown).wantProblem(t, 401, "invalid_token", "")
		if set.reads.Load() == before {
			t.Errorf("an unknown key does not make the set be read, so that the check above sees nothing")
		}
	})
}

// An issuer that changes its keys is followed; what it has withdrawn is refused.
func TestAKeySetThatIsRotatedIsFollowed(t *testing.T) {
	t.Parallel()
	first, second, set := newRSA(t), newRSA(t), newKeyServer(t)
	token := func(key *rsa.PrivateKey, kid, account string) option {
		return bearer(signed(t, jwt.SigningMethodRS256, key, claimsOf(jwt.MapClaims{"sub": account}), map[string]any{"kid": kid}))
	}
	c := startTokenSite(t, first, set)
	c.get("/jwks", token(first, "one", "acme")).wantProblem(t, 503, "rate_limit_unavailable", "") // never read so far
	set.publish(map[string]*rsa.PrivateKey{"one": first})
	eventually(t, "the key set is read", func() bool { return c.get("/jwks", token(first, "one", "acme")).status == 200 })

	set.publish(map[string]*rsa.PrivateKey{"two": second})
	eventually(t, "the new key is known", func() bool { return c.get("/jwks", token(second, "two", "acme")).status == 200 })
	c.get("/jwks", token(first, "one", "globex")).wantProblem(t, 401, "invalid_token", "")
	c.get("/jwks", token(first, "two", "globex")).wantProblem(t, 401, "invalid_token", "")

	set.publish(nil) // an issuer that is down takes nobody with it
	c.get("/jwks", token(second, "two", "globex")).wantStatus(t, 200)
	c.get("/jwks", token(second, "three", "globex")).wantProblem(t, 401, "invalid_token", "")
}

// A client is its account, not its token; and its tier is what the token says.
func TestTokensOfOneAccountShareOneBucket(t *testing.T) {
	t.Parallel()
	c := startTokenSite(t, newRSA(t), newKeyServer(t))
	left := func(changes jwt.MapClaims) (string, int64) {
		token := signed(t, jwt.SigningMethodHS256, []byte(clientSecret), claimsOf(changes), nil)
		a := c.get("/secret", bearer(token)).wantStatus(t, 200)
		return a.body, a.remaining(t, a.body+" *")
	}
	ledger := []struct {
		name    string
		changes jwt.MapClaims
		tier    string
		left    int64
	}{
		{"an account", nil, "PRO", 1999},
		{"another token of it", jwt.MapClaims{"jti": "2"}, "PRO", 1998},
		{"another audience of ours", jwt.MapClaims{"aud": []string{"other"}}, "PRO", 1997},
		{"another account", jwt.MapClaims{"sub": "globex"}, "PRO", 1999},
		{"a tier that nobody knows", jwt.MapClaims{"sub": "initech", "tier": "GOLD"}, "anonymous", 999},
		{"no tier", jwt.MapClaims{"sub": "hooli", "tier": nil}, "anonymous", 999},
	}
	for _, row := range ledger {
		if tier, n := left(row.changes); tier != row.tier || n != row.left {
			t.Errorf("%s: got tier %s and %d left, want %s and %d", row.name, tier, n, row.tier, row.left)
		}
	}
}

// command runs a subcommand rate-limit of the binary in the home of a process.
func (c *caddy) command(input string, args ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, caddyBinary, append([]string{"rate-limit"}, args...)...)
	cmd.Dir, cmd.Env, cmd.Stdin = c.dir, c.env, strings.NewReader(input)
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// lastLine is what a command prints behind what Caddy logs.
func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

// The command signs with whatever the configuration verifies by: also the secret
// that was made at the first start.
func TestTheCommandTokenMakesAnAdmin(t *testing.T) {
	t.Parallel()
	generated := managed[:strings.LastIndex(managed, "rate_limit_admin")] + "rate_limit_admin\n}\n"
	for name, site := range map[string]string{"a configured secret": managed, "a generated secret": generated} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCaddy(t, site)
			as := func(args ...string) *manager {
				out, err := c.command("", append([]string{"token", "--config", "Caddyfile"}, args...)...)
				if err != nil {
					t.Fatalf("token %q: %v %s", args, err, out)
				}
				return &manager{c.at("tcp", c.addr2()), bearer(lastLine(out))}
			}
			as("--role", "ADMIN", "--subject", "olga").create("/tiers", `{"name": "GOLD"}`)
			viewer := as("--role", "VIEWER", "--ttl", "1m")
			viewer.do(403, "POST", "/tiers", `{"name": "SILVER"}`)
			if entries := viewer.list("/audit"); len(entries) != 1 || entries[0].Actor != "olga" {
				t.Errorf("audit: %+v, want one change by olga", entries)
			}
			short := as("--role", "ADMIN", "--ttl", "1s")
			eventually(t, "the token expires", func() bool { a, _ := short.ask("GET", "/tiers", ""); return a.status == 401 })
			if name == "a generated secret" { // which no configured one is
				manage(c).do(401, "GET", "/tiers", "")
			}
			for _, args := range [][]string{{"token"}, {"token", "--role", "ADMIN", "--ttl", "0s"}} {
				if out, err := c.command("", args...); err == nil || !strings.Contains(out, "--"+map[int]string{1: "role", 5: "ttl"}[len(args)]) {
					t.Errorf("%q: %v %s", args, err, out)
				}
			}
		})
	}
}

// What hash prints is what the admin API and provider static take.
func TestTheCommandHashPrintsWhatAKeyIsKnownBy(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, managed)
	const key = "an-imported-key-of-another-make-7Qx2pL"
	out, err := c.command(key+"\n", "hash")
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	manage(c).create("/api-keys", `{"client": "acme", "tier": "PRO", "sha256": %q}`, lastLine(out))
	(&stage{t: t, there: c}).awaitTier(key, "PRO")
	for _, input := range []string{"", "\n", " " + key + "\n", strings.Repeat("x", 5000)} {
		if out, err := c.command(input, "hash"); err == nil || strings.Contains(out, key) {
			t.Errorf("%.20q: %v %s", input, err, out)
		}
	}
}
