package jwtauth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

const (
	// minSecret is the size of HS256's hash, which RFC 7518 section 3.2 demands of
	// its secrets.
	minSecret = 32

	minRSABits, maxRSABits = 2048, 16384

	pemBegin = "-----BEGIN "
)

// key verifies the signatures of some algorithms.
type key struct {
	id         string // kid in its set; empty outside of one
	algorithms []string
	material   any // as the algorithms want it
}

// accepts reports whether the key verifies tokens of an algorithm.
func (k *key) accepts(algorithm string) bool { return slices.Contains(k.algorithms, algorithm) }

func checkSecret(secret string) error {
	if len(secret) < minSecret {
		return fmt.Errorf("jwt: secret has %d bytes, which is too short to be safe; write at least %d, as openssl rand -base64 32 makes them", len(secret), minSecret)
	}
	return nil
}

func secretKey(secret string) (*key, error) {
	if err := checkSecret(secret); err != nil {
		return nil, err
	}
	return &key{algorithms: []string{"HS256"}, material: []byte(secret)}, nil
}

// publicKey makes a key of an RSA, ECDSA or Ed25519 public key.
func publicKey(public crypto.PublicKey) (*key, error) {
	switch p := public.(type) {
	case *rsa.PublicKey:
		if bits := p.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return nil, fmt.Errorf("an RSA key of %d bits; use one of %d to %d", bits, minRSABits, maxRSABits)
		}
		return &key{algorithms: []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, material: p}, nil
	case *ecdsa.PublicKey:
		algorithm, ok := map[elliptic.Curve]string{elliptic.P256(): "ES256", elliptic.P384(): "ES384", elliptic.P521(): "ES512"}[p.Curve]
		if !ok {
			return nil, fmt.Errorf("an ECDSA key on the curve %s; use P-256, P-384 or P-521", p.Curve.Params().Name)
		}
		return &key{algorithms: []string{algorithm}, material: p}, nil
	case ed25519.PublicKey:
		return &key{algorithms: []string{"EdDSA"}, material: p}, nil
	}
	return nil, fmt.Errorf("a key of the type %T; use RSA, ECDSA or Ed25519", public)
}

// parsePEM reads the one public key of a PEM text.
func parsePEM(text []byte) (*key, error) {
	block, rest := pem.Decode(text)
	if block == nil {
		return nil, errors.New("jwt: public_key holds no PEM; it looks like -----BEGIN PUBLIC KEY-----")
	}
	if next, _ := pem.Decode(rest); next != nil {
		return nil, errors.New("jwt: public_key holds more than one PEM block; write one key, or serve several as jwks")
	}
	public, err := parseBlock(block)
	if err != nil {
		return nil, err
	}
	k, err := publicKey(public)
	if err != nil {
		return nil, fmt.Errorf("jwt: public_key is %w", err)
	}
	return k, nil
}

func parseBlock(block *pem.Block) (public crypto.PublicKey, err error) {
	switch block.Type {
	case "PUBLIC KEY":
		public, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		public, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var certificate *x509.Certificate
		if certificate, err = x509.ParseCertificate(block.Bytes); err == nil {
			public = certificate.PublicKey
		}
	case "PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY":
		return nil, errors.New("jwt: public_key holds a private key, which verifies nothing and belongs to the issuer alone; write the public one: openssl pkey -in <file> -pubout")
	default:
		return nil, fmt.Errorf("jwt: public_key holds a %q; write a PUBLIC KEY or a CERTIFICATE", block.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("jwt: public_key cannot be read: %w", err)
	}
	return public, nil
}
