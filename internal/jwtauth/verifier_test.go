package jwtauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/golang-jwt/jwt/v5"
)

// compareWithStandard checks that what strictObject accepts, the standard library
// reads alike.
func compareWithStandard(t *testing.T, text string) {
	strict, err := strictObject([]byte(text))
	if err != nil {
		return
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var standard map[string]any
	if err := d.Decode(&standard); err != nil || !reflect.DeepEqual(strict, standard) {
		t.Errorf("%q is read as %v, and by the standard library as %v (%v)", text, strict, standard, err)
	}
}

func TestAGoodTokenOfEachKindOfKeyIsAccepted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(file, []byte(rsaKeys().publicPEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TOLLGATE_SECRET", testSecret)
	t.Setenv("TOLLGATE_PEM", ecdsaKeys().publicPEM())
	for _, c := range []struct {
		name   string
		config *Config
		method jwt.SigningMethod
		key    any
	}{
		{"secret", &Config{Secret: testSecret}, jwt.SigningMethodHS256, []byte(testSecret)},
		{"secret from the environment", &Config{Secret: "{env.TOLLGATE_SECRET}"}, jwt.SigningMethodHS256, []byte(testSecret)},
		{"RSA", &Config{PublicKey: rsaKeys().publicPEM()}, jwt.SigningMethodRS256, rsaKeys().private},
		{"RSA from a file", &Config{PublicKey: file}, jwt.SigningMethodRS512, rsaKeys().private},
		{"RSA-PSS", &Config{PublicKey: rsaKeys().publicPEM()}, jwt.SigningMethodPS256, rsaKeys().private},
		{"ECDSA from the environment", &Config{PublicKey: "{env.TOLLGATE_PEM}"}, jwt.SigningMethodES256, ecdsaKeys().private},
		{"Ed25519", &Config{PublicKey: ed25519Key().publicPEM()}, jwt.SigningMethodEdDSA, ed25519Key().private},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, _ := newTestVerifier(t, c.config)
			got, err := v.Verify(t.Context(), sign(c.method, c.key, claims(nil), map[string]any{"kid": "whatever"}))
			want := &Claims{Account: "alice", Issuer: "https://issuer.example.com", Tier: "PRO"}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v; want %+v", got, err, want)
			}
		})
	}
}

func TestClaimsAreReadWhereTheConfigurationSays(t *testing.T) {
	realm := map[string]any{"roles": []string{"ADMIN", "VIEWER"}, "plan": "PRO"}
	for _, c := range []struct {
		name    string
		config  Config
		changes jwt.MapClaims
		want    Claims
	}{
		{"by default", Config{}, jwt.MapClaims{"roles": []string{"ADMIN"}}, Claims{Account: "alice", Tier: "PRO", Roles: []string{"ADMIN"}}},
		{"roles as one text", Config{}, jwt.MapClaims{"roles": "ADMIN VIEWER"}, Claims{Account: "alice", Tier: "PRO", Roles: []string{"ADMIN", "VIEWER"}}},
		{"roles that are not all text", Config{}, jwt.MapClaims{"roles": []any{"ADMIN", 1}}, Claims{Account: "alice", Tier: "PRO"}},
		{
			"further in",
			Config{RoleClaim: "realm.roles", TierClaim: "realm.plan", AccountClaim: "user.id"},
			jwt.MapClaims{"realm": realm, "user": map[string]any{"id": 42}},
			Claims{Account: "42", Tier: "PRO", Roles: []string{"ADMIN", "VIEWER"}},
		},
		{
			"a name with dots in it",
			Config{TierClaim: "https://example.com/tier"},
			jwt.MapClaims{"https://example.com/tier": "FREE"},
			Claims{Account: "alice", Tier: "FREE"},
		},
		{
			"a whole name before a path",
			Config{TierClaim: "a.b"},
			jwt.MapClaims{"a.b": "FREE", "a": map[string]any{"b": "PRO"}},
			Claims{Account: "alice", Tier: "FREE"},
		},
		{"a path that ends early", Config{TierClaim: "tier.name"}, nil, Claims{Account: "alice"}},
		{"a large account number", Config{AccountClaim: "id"}, jwt.MapClaims{"id": json.Number("9007199254740993")}, Claims{Account: "9007199254740993", Tier: "PRO"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.config.Secret = testSecret
			c.want.Issuer = "https://issuer.example.com"
			v, _ := newTestVerifier(t, &c.config)
			got, err := v.Verify(t.Context(), signHS(c.changes))
			if err != nil || !reflect.DeepEqual(*got, c.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

// A ledger of one token, valid from noon for two minutes, with a leeway of 5 s.
func TestATokenIsValidFromItsNotBeforeToItsExpiry(t *testing.T) {
	leeway := caddy.Duration(5 * time.Second)
	token := signHS(jwt.MapClaims{"nbf": noon.Unix(), "exp": noon.Add(2 * time.Minute).Unix()})
	for _, c := range []struct {
		at   time.Duration
		want error
	}{
		{-5*time.Second - 1, errNotYet},
		{-5 * time.Second, nil},
		{0, nil},
		{2*time.Minute + 5*time.Second - 1, nil},
		{2*time.Minute + 5*time.Second, errExpired},
		{24 * time.Hour, errExpired},
	} {
		v, clock := newTestVerifier(t, &Config{Secret: testSecret, Leeway: &leeway})
		clock.set(c.at)
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, c.want) {
			t.Errorf("at %s: got %v, want %v", c.at, err, c.want)
		}
	}
}

// counting counts how often a key is looked for: once per token that is verified
// anew.
type counting struct {
	keySource
	found atomic.Int32
}

func (c *counting) find(ctx context.Context, id, algorithm string) (*key, error) {
	c.found.Add(1)
	return c.keySource.find(ctx, id, algorithm)
}

func TestAVerifiedTokenIsRememberedForAMinuteAndNotBeyondItsExpiry(t *testing.T) {
	v, clock := newTestVerifier(t, &Config{Secret: testSecret})
	keys := &counting{keySource: v.keys}
	v.keys = keys
	token := signHS(jwt.MapClaims{"exp": noon.Add(90 * time.Second).Unix()})
	for _, c := range []struct {
		at       time.Duration
		verified int32 // so far
		want     error
	}{
		{0, 1, nil},
		{0, 1, nil},
		{59 * time.Second, 1, nil},
		{60 * time.Second, 2, nil},        // the minute is over
		{90 * time.Second, 2, nil},        // within the leeway
		{91 * time.Second, 2, errExpired}, // while it is remembered
		{time.Hour, 2, errExpired},
	} {
		clock.set(c.at)
		_, err := v.Verify(t.Context(), token)
		if !errors.Is(err, c.want) || keys.found.Load() != c.verified {
			t.Errorf("at %s: got %v after %d verifications; want %v after %d", c.at, err, keys.found.Load(), c.want, c.verified)
		}
	}
}

// A flood of valid tokens is bounded in memory; only their count matters here.
func TestTheMemoryOfVerifiedTokensIsBounded(t *testing.T) {
	v, _ := newTestVerifier(t, &Config{Secret: testSecret})
	for i := range remembered + 2000 {
		v.cache.Set([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, new(verified))
	}
	v.cache.CleanUp()
	if n := v.cache.EstimatedSize(); n > remembered {
		t.Errorf("%d tokens are remembered, want at most %d", n, remembered)
	}
}

func TestAuthenticateReadsTheOneBearerTokenOfARequest(t *testing.T) {
	v, _ := newTestVerifier(t, &Config{Secret: testSecret})
	good := signHS(jwt.MapClaims{"roles": []string{"ADMIN"}})
	for _, c := range []struct {
		name    string
		headers []string
		subject string
		want    error
	}{
		{"none", nil, "", ErrMissing},
		{"another scheme", []string{"Basic YTpi"}, "", ErrMissing},
		{"no token behind the scheme", []string{"Bearer "}, "", ErrInvalid},
		{"good", []string{"Bearer " + good}, "alice", nil},
		{"scheme in small letters", []string{"bearer  " + good}, "alice", nil},
		{"beside another scheme", []string{"Basic YTpi", "Bearer " + good}, "alice", nil},
		{"two", []string{"Bearer " + good, "Bearer " + good}, "", ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			for _, h := range c.headers {
				r.Header.Add("Authorization", h)
			}
			subject, roles, err := v.Authenticate(r)
			if subject != c.subject || !errors.Is(err, c.want) || err == nil && !slices.Equal(roles, []string{"ADMIN"}) {
				t.Errorf("got %q, %q, %v; want %q, %v", subject, roles, err, c.subject, c.want)
			}
		})
	}
}

func TestAMintedTokenIsAcceptedByItsConfiguration(t *testing.T) {
	for _, config := range []*Config{
		{Secret: testSecret},
		{Secret: testSecret, Issuer: "me", Audience: []string{"admin", "api"}},
		{Secret: testSecret, AccountClaim: "user.id", RoleClaim: "user.access.roles", TierClaim: "https://example.com/tier"},
	} {
		token, err := Mint(config, Grant{Subject: "bob", Roles: []string{"ADMIN"}, Tier: "PRO", TTL: 15 * time.Minute}, noon)
		if err != nil {
			t.Fatal(err)
		}
		v, clock := newTestVerifier(t, config)
		got, err := v.Verify(t.Context(), token)
		want := &Claims{Account: "bob", Issuer: config.Issuer, Tier: "PRO", Roles: []string{"ADMIN"}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
		clock.set(15*time.Minute + defaultLeeway)
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, errExpired) {
			t.Errorf("after its TTL: %v, want %v", err, errExpired)
		}
	}
}

func TestOnlyASecretMints(t *testing.T) {
	for _, c := range []*Config{{}, {JWKS: "https://issuer.example.com/keys"}, {PublicKey: rsaKeys().publicPEM()}} {
		if token, err := Mint(c, Grant{Subject: "bob", TTL: time.Minute}, noon); err == nil {
			t.Errorf("%+v minted %s", c, token)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, c := range []struct {
		name string
		keyPair
	}{{"RS256", rsaKeys()}, {"ES256", ecdsaKeys()}, {"EdDSA", ed25519Key()}} {
		v, _ := newTestVerifier(b, &Config{PublicKey: c.publicPEM()})
		token := sign(c.method, c.private, claims(nil), nil)
		benchmarkVerify(b, c.name, v, token)
	}
	v, _ := newTestVerifier(b, &Config{Secret: testSecret})
	benchmarkVerify(b, "HS256", v, signHS(nil))
	b.Run("remembered", func(b *testing.B) {
		for b.Loop() {
			if _, err := v.Verify(b.Context(), signHSOnce); err != nil {
				b.Fatal(err)
			}
		}
	})
}

var signHSOnce = signHS(nil)

func benchmarkVerify(b *testing.B, name string, v *Verifier, token string) {
	b.Run(fmt.Sprint(name, " anew"), func(b *testing.B) {
		for b.Loop() {
			if _, err := v.verify(b.Context(), token); err != nil {
				b.Fatal(err)
			}
		}
	})
}
