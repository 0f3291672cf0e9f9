package jwtauth

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/caddyserver/certmagic"
)

// GeneratedSecretKey is where the generated secret stands in Caddy's storage.
const GeneratedSecretKey = "rate_limit/admin/jwt_secret"

// GeneratedSecret returns the secret that admins' tokens are signed with while none
// is configured: 256 random bits, made on first use and kept in the storage. All
// instances that share the storage agree on it.
func GeneratedSecret(ctx context.Context, storage certmagic.Storage) (string, error) {
	secret, err := LoadGeneratedSecret(ctx, storage)
	if !errors.Is(err, fs.ErrNotExist) {
		return secret, err
	}
	if err := storage.Lock(ctx, GeneratedSecretKey); err != nil {
		return "", fmt.Errorf("locking the storage to make a secret for admins: %w", err)
	}
	defer func() { _ = storage.Unlock(context.WithoutCancel(ctx), GeneratedSecretKey) }()
	secret, err = LoadGeneratedSecret(ctx, storage) // somebody else may have been first
	if !errors.Is(err, fs.ErrNotExist) {
		return secret, err
	}
	secret = newSecret()
	if err := storage.Store(ctx, GeneratedSecretKey, []byte(secret+"\n")); err != nil {
		return "", fmt.Errorf("keeping the secret for admins in the storage: %w", err)
	}
	return secret, nil
}

// LoadGeneratedSecret returns the generated secret; fs.ErrNotExist if none was made
// yet.
func LoadGeneratedSecret(ctx context.Context, storage certmagic.Storage) (string, error) {
	text, err := storage.Load(ctx, GeneratedSecretKey)
	if err != nil {
		return "", fmt.Errorf("reading the secret for admins from the storage: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if len(secret) < minSecret {
		return "", fmt.Errorf("the secret for admins in the storage (%s) is too short; delete it, and a new one is made", GeneratedSecretKey)
	}
	return secret, nil
}

func newSecret() string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(random[:])
}
