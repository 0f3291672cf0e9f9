package jwtauth

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/caddyserver/caddy/v2"
	"github.com/golang-jwt/jwt/v5"
)

// issuer is a server with a key set.
type issuer struct {
	*httptest.Server
	reads atomic.Int32
	stall chan struct{} // a read waits until it is closed; nil: not at all

	mu     sync.Mutex
	status int
	body   string
}

func newIssuer(t *testing.T, body string) *issuer {
	i := &issuer{status: http.StatusOK, body: body}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.reads.Add(1)
		if i.stall != nil {
			select {
			case <-i.stall:
			case <-r.Context().Done():
				return
			}
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		w.WriteHeader(i.status)
		_, _ = w.Write([]byte(i.body))
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) serve(status int, body string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.status, i.body = status, body
}

// jwk writes a key as a member of a set; more goes into it as it is.
func jwk(public crypto.PublicKey, more map[string]any) map[string]any {
	k := must(jwkset.NewJWKFromKey(public, jwkset.JWKOptions{}))
	var m map[string]any
	if err := json.Unmarshal(must(json.Marshal(k.Marshal())), &m); err != nil {
		panic(err)
	}
	for name, value := range more {
		m[name] = value
	}
	return m
}

func setOf(keys ...map[string]any) string {
	if keys == nil {
		keys = []map[string]any{}
	}
	return string(must(json.Marshal(map[string]any{"keys": keys})))
}

func named(id string) map[string]any { return map[string]any{"kid": id} }

func TestTheKeysOfASetVerifyTokensByName(t *testing.T) {
	small := must(rsa.GenerateKey(rand.Reader, 1024))
	i := newIssuer(t, setOf(
		jwk(rsaKeys().private.Public(), named("rsa")),
		jwk(rsaKeys().private.Public(), map[string]any{"kid": "rs512", "alg": "RS512", "use": "sig", "key_ops": []string{"verify"}}),
		jwk(ecdsaKeys().private.Public(), named("ecdsa")),
		jwk(ed25519Key().private.Public(), named("ed25519")),
		jwk(otherRSA().private.Public(), map[string]any{"kid": "encryption", "use": "enc"}),
		jwk(otherRSA().private.Public(), map[string]any{"kid": "wrong_alg", "alg": "ES256"}),
		jwk(&small.PublicKey, named("small")),
		map[string]any{"kid": "secret", "kty": "oct", "k": encode(testSecret)},
		map[string]any{"kid": "future", "kty": "XYZ"},
	))
	v, _ := newTestVerifier(t, &Config{JWKS: i.URL})
	for _, c := range []struct {
		name   string
		method jwt.SigningMethod
		key    any
		header map[string]any
		want   error
	}{
		{"RSA", jwt.SigningMethodRS256, rsaKeys().private, named("rsa"), nil},
		{"RSA, another of its algorithms", jwt.SigningMethodPS384, rsaKeys().private, named("rsa"), nil},
		{"RSA pinned to an algorithm", jwt.SigningMethodRS512, rsaKeys().private, named("rs512"), nil},
		{"RSA pinned to another algorithm", jwt.SigningMethodRS256, rsaKeys().private, named("rs512"), errAlgorithm},
		{"ECDSA", jwt.SigningMethodES256, ecdsaKeys().private, named("ecdsa"), nil},
		{"Ed25519", jwt.SigningMethodEdDSA, ed25519Key().private, named("ed25519"), nil},
		{"name of another key", jwt.SigningMethodES256, ecdsaKeys().private, named("rsa"), errAlgorithm},
		{"signed by another key", jwt.SigningMethodRS256, otherRSA().private, named("rsa"), errSignature},
		{"no name, one key fits", jwt.SigningMethodES256, ecdsaKeys().private, nil, nil},
		{"no name, two keys fit", jwt.SigningMethodRS512, rsaKeys().private, nil, errKey},
		{"key for encryption", jwt.SigningMethodRS256, otherRSA().private, named("encryption"), errKey},
		{"key whose alg is not of its type", jwt.SigningMethodRS256, otherRSA().private, named("wrong_alg"), errKey},
		{"short RSA key", jwt.SigningMethodRS256, small, named("small"), errKey},
		{"published secret", jwt.SigningMethodHS256, []byte(testSecret), named("secret"), errAlgorithm},
		{"unknown key", jwt.SigningMethodRS256, rsaKeys().private, named("unknown"), errKey},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := v.Verify(t.Context(), sign(c.method, c.key, claims(nil), c.header))
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// RS256 tokens by name.
func rsToken(k keyPair, id string) string {
	return sign(k.method, k.private, claims(nil), named(id))
}

func TestARotatedKeySetIsSeenByTheFirstTokenOfANewKey(t *testing.T) {
	i := newIssuer(t, setOf(jwk(rsaKeys().private.Public(), named("old"))))
	v, _ := newTestVerifier(t, &Config{JWKS: i.URL})
	if _, err := v.Verify(t.Context(), rsToken(rsaKeys(), "old")); err != nil {
		t.Fatal(err)
	}
	i.serve(200, setOf(jwk(otherRSA().private.Public(), named("new"))))
	if _, err := v.Verify(t.Context(), rsToken(otherRSA(), "new")); err != nil {
		t.Errorf("a token of the new key: %v", err)
	}
	v.cache.InvalidateAll() // or a minute later
	if _, err := v.Verify(t.Context(), rsToken(rsaKeys(), "old")); !errors.Is(err, errKey) {
		t.Errorf("a token of the old key: got %v, want %v", err, errKey)
	}
}

func TestAFloodOfUnknownKeysReadsTheSetAFewTimesOnly(t *testing.T) {
	i := newIssuer(t, setOf(jwk(rsaKeys().private.Public(), named("known"))))
	v, _ := newTestVerifier(t, &Config{JWKS: i.URL})
	for n := range 1000 {
		if _, err := v.Verify(t.Context(), rsToken(keyPair{jwt.SigningMethodES256, ecdsaKeys().private}, fmt.Sprint("made up ", n))); !errors.Is(err, errKey) {
			t.Fatalf("token %d: %v", n, err)
		}
	}
	// one at the start, the burst, and one for every askedEvery that the loop takes
	if n := i.reads.Load(); n > 1+askedBurst+2 {
		t.Errorf("1000 tokens of unknown keys read the set %d times", n)
	}
	if _, err := v.Verify(t.Context(), rsToken(rsaKeys(), "known")); err != nil {
		t.Errorf("a token of a known key: %v", err)
	}
}

func TestTheSameUnknownKeyReadsTheSetOnce(t *testing.T) {
	i := newIssuer(t, setOf())
	v, _ := newTestVerifier(t, &Config{JWKS: i.URL})
	for range 50 {
		if _, err := v.Verify(t.Context(), rsToken(rsaKeys(), "stale")); !errors.Is(err, errKey) {
			t.Fatal(err)
		}
	}
	if n := i.reads.Load(); n != 2 {
		t.Errorf("the set was read %d times, want 2: at the start and for the key", n)
	}
}

func TestTheMemoryOfMissingKeysIsBounded(t *testing.T) {
	i := newIssuer(t, setOf())
	s := newKeySet(i.URL, caddyContext(t).Logger())
	defer func() { _ = s.Destruct() }()
	s.asked.SetLimit(1e9)
	s.asked.SetBurst(1e6)
	for n := range maxMissing + 10 {
		<-s.begin().done
		<-s.ask(fmt.Sprint(n)).done
	}
	if len(s.missing) > maxMissing {
		t.Errorf("%d missing keys are remembered, want at most %d", len(s.missing), maxMissing)
	}
}

// Whoever waits, waits for the same short time, whatever the server does.
func TestAStalledServerHoldsNoRequest(t *testing.T) {
	i := newIssuer(t, setOf(jwk(rsaKeys().private.Public(), named("known"))))
	v, _ := newTestVerifier(t, &Config{JWKS: i.URL})
	if _, err := v.Verify(t.Context(), rsToken(rsaKeys(), "known")); err != nil {
		t.Fatal(err)
	}
	i.stall = make(chan struct{})
	defer close(i.stall)
	start := time.Now()
	var all sync.WaitGroup
	for n := range 3 * maxWaiting {
		token := rsToken(keyPair{jwt.SigningMethodES256, ecdsaKeys().private}, fmt.Sprint(n))
		all.Go(func() {
			if _, err := v.Verify(t.Context(), token); !errors.Is(err, errKey) {
				t.Errorf("got %v, want %v", err, errKey)
			}
		})
	}
	all.Wait()
	if d := time.Since(start); d > maxWaiting*requestWait {
		t.Errorf("%d requests took %s: they wait one after the other", 3*maxWaiting, d)
	}
	quickest := time.Hour // one that waits takes requestWait at least; the machine may take any time
	for range 5 {
		start = time.Now()
		if _, err := v.Verify(t.Context(), rsToken(rsaKeys(), "late")); !errors.Is(err, errKey) {
			t.Errorf("while the read hangs on, a request got %v; want %v", err, errKey)
		}
		quickest = min(quickest, time.Since(start))
	}
	if quickest >= requestWait {
		t.Errorf("while the read hangs on, a request is refused after %s; want at once", quickest)
	}
	if _, err := v.Verify(t.Context(), sign(jwt.SigningMethodRS256, rsaKeys().private, claims(jwt.MapClaims{"sub": "bob"}), named("known"))); err != nil {
		t.Errorf("a known key: %v", err)
	}
}

func TestAnUnreadableSetLeavesTheLastOneAtWork(t *testing.T) {
	good := setOf(jwk(rsaKeys().private.Public(), named("a")))
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   error // for a token of the key that was known
	}{
		{"error of the server", 500, "", nil},
		{"not found", 404, good, nil},
		{"no JSON", 200, "<html>", nil},
		{"no set", 200, "{}", nil},
		{"null", 200, `{"keys":null}`, nil},
		{"too large", 200, `{"keys":[],"pad":"` + strings.Repeat("x", maxSetBytes) + `"}`, nil},
		{"empty set: its keys are withdrawn", 200, `{"keys":[]}`, errKey},
		{"set with other keys", 200, setOf(jwk(otherRSA().private.Public(), named("b"))), errKey},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			i := newIssuer(t, good)
			v, _ := newTestVerifier(t, &Config{JWKS: i.URL})
			i.serve(c.status, c.body)
			<-v.keys.(*keySet).begin().done
			if _, err := v.Verify(t.Context(), rsToken(rsaKeys(), "a")); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestASetThatWasNeverReadIsUnavailableAndComesByItself(t *testing.T) {
	i := newIssuer(t, "")
	i.serve(503, "")
	v, _ := newTestVerifier(t, &Config{JWKS: i.URL})
	if _, err := v.Verify(t.Context(), rsToken(rsaKeys(), "a")); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want %v", err, ErrUnavailable)
	}
	i.serve(200, setOf(jwk(rsaKeys().private.Public(), named("a"))))
	deadline, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	keys := v.keys.(*keySet)
	for tick := time.Tick(10 * time.Millisecond); keys.current.Load() == nil && deadline.Err() == nil; { // the background retries
		<-tick
	}
	if _, err := v.Verify(t.Context(), rsToken(rsaKeys(), "a")); err != nil {
		t.Error(err)
	}
}

func TestASetOutlivesAReloadAndEndsWithItsLastConfiguration(t *testing.T) {
	i := newIssuer(t, setOf(jwk(rsaKeys().private.Public(), named("a"))))
	first, endFirst := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer endFirst()
	v1 := must(New(first, &Config{JWKS: i.URL}))
	i.serve(503, "") // the new configuration could not read it
	second, endSecond := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer endSecond()
	v2 := must(New(second, &Config{JWKS: i.URL}))
	endFirst()
	v2.now = func() time.Time { return noon }
	if _, err := v2.Verify(t.Context(), rsToken(rsaKeys(), "a")); err != nil {
		t.Errorf("after a reload: %v", err)
	}
	if v1.keys != v2.keys {
		t.Error("two configurations with one URL read it twice")
	}
	keys := v2.keys.(*keySet)
	if keys.ctx.Err() != nil {
		t.Error("the set ended with its first configuration")
	}
	endSecond()
	select {
	case <-keys.ctx.Done():
	case <-time.After(10 * time.Second):
		t.Error("the set goes on without a configuration")
	}
}

func TestARedirectFromTLSToPlainTextIsNotFollowed(t *testing.T) {
	plain := newIssuer(t, setOf())
	secure := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer secure.Close()
	client := newClient()
	client.Transport.(*http.Transport).TLSClientConfig = secure.Client().Transport.(*http.Transport).TLSClientConfig
	if response, err := client.Get(secure.URL); err == nil {
		response.Body.Close()
		t.Errorf("it was followed: %s", response.Status)
	}
	if plain.reads.Load() != 0 {
		t.Error("the plain server was asked")
	}
}
