package jwtauth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"
)

// A lock on a file storage ends its goroutine a few seconds after it is released.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"))
}

const testSecret = "0123456789abcdef0123456789abcdef"

// keyPair is a private key and the algorithm that it signs with.
type keyPair struct {
	method  jwt.SigningMethod
	private crypto.Signer
}

var (
	rsaKeys   = sync.OnceValue(func() keyPair { return keyPair{jwt.SigningMethodRS256, must(rsa.GenerateKey(rand.Reader, 2048))} })
	otherRSA  = sync.OnceValue(func() keyPair { return keyPair{jwt.SigningMethodRS256, must(rsa.GenerateKey(rand.Reader, 2048))} })
	ecdsaKeys = sync.OnceValue(func() keyPair {
		return keyPair{jwt.SigningMethodES256, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	})
	ed25519Key = sync.OnceValue(func() keyPair {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		return keyPair{jwt.SigningMethodEdDSA, must(private, err)}
	})
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// publicPEM is the public key as a configuration has it.
func (k keyPair) publicPEM() string {
	der := must(x509.MarshalPKIXPublicKey(k.private.Public()))
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// clock is a clock that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// set sets the clock to a time after noon.
func (c *clock) set(after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = noon.Add(after)
}

// noon is when the tests with a clock of their own begin.
var noon = time.Unix(1_800_000_000, 0)

func caddyContext(t testing.TB) caddy.Context {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	t.Cleanup(cancel)
	return ctx
}

// newTestVerifier makes a verifier whose clock stands at noon.
func newTestVerifier(t testing.TB, c *Config) (*Verifier, *clock) {
	t.Helper()
	v, err := New(caddyContext(t), c)
	if err != nil {
		t.Fatal(err)
	}
	time := &clock{now: noon}
	v.now = time.Now
	return v, time
}

// claims are those of a good token, with changes; a nil value leaves a claim out.
func claims(changes jwt.MapClaims) jwt.MapClaims {
	all := jwt.MapClaims{"sub": "alice", "tier": "PRO", "iss": "https://issuer.example.com", "aud": "api", "exp": noon.Add(time.Hour).Unix()}
	maps.Copy(all, changes)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

// sign makes a token; header changes its header.
func sign(method jwt.SigningMethod, key any, c jwt.MapClaims, header map[string]any) string {
	t := jwt.NewWithClaims(method, c)
	maps.Copy(t.Header, header)
	return must(t.SignedString(key))
}

// signHS signs a good token, with changes, with the test secret.
func signHS(changes jwt.MapClaims) string {
	return sign(jwt.SigningMethodHS256, []byte(testSecret), claims(changes), nil)
}

// signRaw signs a header and claims that are written out, with HS256.
func signRaw(secret, header, payload string) string {
	text := encode(header) + "." + encode(payload)
	return text + "." + base64.RawURLEncoding.EncodeToString(must(jwt.SigningMethodHS256.Sign(text, []byte(secret))))
}

func encode(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// unsigned puts a good payload behind a header, without a signature.
func unsigned(header string) string {
	return encode(header) + "." + encode(string(must(json.Marshal(claims(nil))))) + "."
}

func secretConfig() *Config {
	return &Config{Secret: testSecret, Issuer: "https://issuer.example.com", Audience: []string{"api", "other"}}
}

// leaks reports whether an error repeats a part of a secret or token.
func leaks(err error, secret string) bool {
	for part := range strings.SplitSeq(secret, ".") {
		if len(part) > 3 && strings.Contains(err.Error(), part) {
			return true
		}
	}
	return false
}
