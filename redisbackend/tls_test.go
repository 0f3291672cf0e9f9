package redisbackend_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

// certificate writes a self-signed certificate for redis.example, which serves
// as its own authority, for the server and for the client.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis.example"}, DNSNames: []string{"redis.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", keyDER)
}

func TestTLSProvesBothSides(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	testserver.NewRedis(t, "--tls-port", strconv.Itoa(port),
		"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "yes")
	secure, plain := "rediss://127.0.0.1:"+strconv.Itoa(port), "redis://127.0.0.1:"+strconv.Itoa(port)

	all := redisbackend.TLS{CA: cert, Cert: cert, Key: key, ServerName: "redis.example"}
	for name, tt := range map[string]struct {
		url    string
		change func(*redisbackend.TLS)
		fails  string
	}{
		"all is right":            {secure, func(*redisbackend.TLS) {}, ""},
		"tls without the scheme":  {plain, func(*redisbackend.TLS) {}, ""},
		"an unknown authority":    {secure, func(c *redisbackend.TLS) { c.CA = "" }, "certificate signed by unknown authority"},
		"another name":            {secure, func(c *redisbackend.TLS) { c.ServerName = "other.example" }, "not other.example"},
		"the address as the name": {secure, func(c *redisbackend.TLS) { c.ServerName = "" }, "127.0.0.1"},
		"no certificate to show":  {secure, func(c *redisbackend.TLS) { c.Cert, c.Key = "", "" }, "redis backend unavailable"},
		"nothing is looked at":    {secure, func(c *redisbackend.TLS) { c.CA, c.ServerName, c.InsecureSkipVerify = "", "", true }, ""},
	} {
		settings := all
		tt.change(&settings)
		b := provision(t, &redisbackend.Backend{URLs: []string{tt.url}, Timeout: patient, TLS: &settings})
		_, err := take(b, bucket(t, "ip", "10/1h"))
		if tt.fails != "" {
			wantText(t, err, tt.fails)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
