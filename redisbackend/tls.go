package redisbackend

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLS is how connections are encrypted. An empty one means TLS with the
// system's certificate authorities.
type TLS struct {
	// Path of a PEM file with the certificate authorities to trust. Empty
	// means those of the system.
	CA string `json:"ca,omitempty"`

	// Paths of PEM files with the certificate and key to show to the server.
	// Empty means none; one without the other is an error.
	Cert string `json:"cert,omitempty"`
	Key  string `json:"key,omitempty"`

	// The name that the server's certificate must carry. Empty means the host
	// of each server's address.
	ServerName string `json:"server_name,omitempty"`

	// Accept any certificate. Whoever can reach the network can then read the
	// password and answer in the server's place: for tests only.
	InsecureSkipVerify bool `json:"insecure_skip_verify,omitempty"`
}

// tlsSettings are the part of settings that comes from TLS, files read.
type tlsSettings struct {
	CA, Cert, Key string // PEM
	ServerName    string
	Insecure      bool
}

// load reads the files. A nil TLS means the defaults.
func (t *TLS) load() (*tlsSettings, error) {
	s := new(tlsSettings)
	if t == nil {
		return s, nil
	}
	s.ServerName, s.Insecure = t.ServerName, t.InsecureSkipVerify
	for name, file := range map[string]string{"ca": t.CA, "cert": t.Cert, "key": t.Key} {
		if file == "" {
			continue
		}
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("tls %s: %w; write the path of a PEM file", name, err)
		}
		switch name {
		case "ca":
			s.CA = string(pem)
		case "cert":
			s.Cert = string(pem)
		case "key":
			s.Key = string(pem)
		}
	}
	_, err := s.config()
	return s, err
}

// config builds the configuration of TLS connections; nil means no TLS.
func (s *tlsSettings) config() (*tls.Config, error) {
	if s == nil {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerName, InsecureSkipVerify: s.Insecure}
	if s.CA != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(s.CA)) {
			return nil, errors.New("tls ca: the file holds no certificate; write the path of a PEM file")
		}
	}
	if s.Cert != "" {
		pair, err := tls.X509KeyPair([]byte(s.Cert), []byte(s.Key))
		if err != nil {
			return nil, fmt.Errorf("tls cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
