package jwtauth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func TestEachWrongConfigurationIsAnErrorThatSaysWhatToWrite(t *testing.T) {
	t.Setenv("SHORT_SECRET", "hunter2 hunter2 hunt")
	t.Setenv("EMPTY", "")
	small := must(rsa.GenerateKey(rand.Reader, 1024))
	p224 := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	negative, long := caddy.Duration(-1), caddy.Duration(time.Hour)
	private := pemOf("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(rsaKeys().private)))
	for _, c := range []struct {
		name   string
		config Config
		want   string
	}{
		{"no key", Config{Issuer: "a"}, "write secret {env.JWT_SECRET}, public_key <pem file> or jwks <url>"},
		{"two keys", Config{Secret: testSecret, JWKS: "https://a"}, "jwt has both secret and jwks"},
		{"secret of 31 bytes", Config{Secret: testSecret[1:]}, "secret has 31 bytes, which is too short to be safe; write at least 32"},
		{"short secret from the environment", Config{Secret: "{env.SHORT_SECRET}"}, "secret has 20 bytes"},
		{"secret that is not set", Config{Secret: "{env.NOT_SET_AT_ALL}"}, "{env.NOT_SET_AT_ALL}"},
		{"secret that is empty", Config{Secret: "{env.EMPTY}"}, "secret: "},
		{"secret with braces", Config{Secret: "abc{0123456789abcdef0123456789abcdef}"}, "a backslash before a brace"},
		{"issuer that is not set", Config{Secret: testSecret, Issuer: "{env.NOT_SET_AT_ALL}"}, "issuer: "},
		{"audience that is not set", Config{Secret: testSecret, Audience: []string{"{env.NOT_SET_AT_ALL}"}}, "audience: "},
		{"audience that is empty", Config{Secret: testSecret, Audience: []string{""}}, "audience is empty"},
		{"key set without a scheme", Config{JWKS: "issuer.example.com/keys"}, "write one like jwks https://"},
		{"key set in a file", Config{JWKS: "file:///etc/keys"}, "write one like jwks https://"},
		{"negative leeway", Config{Secret: testSecret, Leeway: &negative}, "leeway -1ns is out of range"},
		{"long leeway", Config{Secret: testSecret, Leeway: &long}, "write a duration from 0s to 5m"},
		{"key file that is not there", Config{PublicKey: "/nowhere/key.pem"}, "neither a PEM nor a file that can be read"},
		{"no PEM", Config{PublicKey: pemBegin + "nothing"}, "holds no PEM"},
		{"two PEMs", Config{PublicKey: rsaKeys().publicPEM() + ecdsaKeys().publicPEM()}, "more than one PEM block"},
		{"private key", Config{PublicKey: private}, "write the public one"},
		{"something else", Config{PublicKey: pemOf("CERTIFICATE REQUEST", nil)}, `holds a "CERTIFICATE REQUEST"`},
		{"garbage", Config{PublicKey: pemOf("PUBLIC KEY", []byte("garbage"))}, "public_key cannot be read"},
		{"short RSA key", Config{PublicKey: pemOf("PUBLIC KEY", must(x509.MarshalPKIXPublicKey(&small.PublicKey)))}, "an RSA key of 1024 bits; use one of 2048"},
		{"weak curve", Config{PublicKey: pemOf("PUBLIC KEY", must(x509.MarshalPKIXPublicKey(&p224.PublicKey)))}, "the curve P-224; use P-256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(caddyContext(t), &c.config)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got  %v\nwant something with %s", err, c.want)
			}
			for _, secret := range []string{testSecret[1:], "hunter2", "0123456789abcdef"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error %q tells the secret", err)
				}
			}
		})
	}
}

func parse(block string, use Use) (*Config, error) {
	d := caddyfile.NewTestDispenser(block)
	d.Next()
	return Parse(d, use)
}

func TestTheBlockBecomesAConfiguration(t *testing.T) {
	for _, c := range []struct {
		block string
		use   Use
		want  string
	}{
		{"jwt {\n secret {env.JWT_SECRET}\n}", ForClients, `{"secret":"{env.JWT_SECRET}"}`},
		{"jwt {\n public_key key.pem\n tier_claim plan\n account_claim user.id\n}", ForClients, `{"public_key":"key.pem","account_claim":"user.id","tier_claim":"plan"}`},
		{
			"jwt {\n jwks https://a/keys\n issuer me\n audience a b\n leeway 30s\n role_claim realm_access.roles\n}", ForAdmins,
			`{"jwks":"https://a/keys","issuer":"me","audience":["a","b"],"leeway":30000000000,"role_claim":"realm_access.roles"}`,
		},
		{"jwt {\n role_claim groups\n}", ForAdmins, `{"role_claim":"groups"}`},
		{"jwt", ForAdmins, `{}`},
		{"jwt {\n secret " + testSecret + "\n leeway 0s\n}", ForAdmins, `{"secret":"` + testSecret + `","leeway":0}`},
	} {
		got, err := parse(c.block, c.use)
		if err != nil || string(must(json.Marshal(got))) != c.want {
			t.Errorf("%s\nbecame %s (%v)\nwant   %s", c.block, must(json.Marshal(got)), err, c.want)
		}
	}
}

func TestEachMistakeInTheBlockHasItsLineAndSaysWhatToWrite(t *testing.T) {
	for _, c := range []struct {
		name, block string
		use         Use
		want        string
	}{
		{"on the line", "jwt secret {\n}", ForClients, `jwt takes no word; write jwt {`},
		{"empty", "jwt {\n}", ForClients, "jwt has nothing to verify tokens by"},
		{"no key", "jwt {\n issuer a\n}", ForClients, "jwt has nothing to verify tokens by"},
		{"unknown word", "jwt {\n sekret abc\n}", ForClients, `"sekret" is not known in jwt; write one of secret, public_key`},
		{"roles of clients", "jwt {\n role_claim roles\n}", ForClients, "roles are for rate_limit_admin"},
		{"tier of admins", "jwt {\n tier_claim tier\n}", ForAdmins, "tiers are for identify"},
		{"twice", "jwt {\n issuer a\n issuer b\n}", ForClients, "issuer is given twice in jwt"},
		{"two keys", "jwt {\n secret {env.A}\n public_key b\n}", ForClients, "jwt has both secret and public_key"},
		{"short secret", "jwt {\n secret hunter2\n}", ForAdmins, "secret has 7 bytes"},
		{"secret of two words", "jwt {\n secret correct horsebatterystaple\n}", ForAdmins, "secret takes one value"},
		{"secret without value", "jwt {\n secret\n}", ForAdmins, "secret needs a value: at least 32 bytes"},
		{"secret that is empty", "jwt {\n secret \"\"\n}", ForAdmins, "secret needs a value: at least 32 bytes"},
		{"secret with a block", "jwt {\n secret " + testSecret + " {\n a\n }\n}", ForAdmins, "secret takes one value and no block"},
		{"key set that is no URL", "jwt {\n jwks keys.json\n}", ForAdmins, "jwks is not a URL"},
		{"audience without value", "jwt {\n audience\n}", ForAdmins, "audience needs a value"},
		{"leeway", "jwt {\n leeway soon\n}", ForAdmins, `leeway "soon" is not a duration`},
		{"long leeway", "jwt {\n leeway 1h\n}", ForAdmins, "leeway 1h0m0s is out of range"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(c.block, c.use)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "Testfile:") {
				t.Fatalf("got  %v\nwant something with %s, and the line", err, c.want)
			}
			for _, secret := range []string{"hunter2", "horse", testSecret} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error %q tells the secret", err)
				}
			}
		})
	}
}
