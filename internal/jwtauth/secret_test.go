package jwtauth

import (
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/certmagic"
)

func TestInstancesThatStartTogetherAgreeOnOneSecret(t *testing.T) {
	path := t.TempDir()
	secrets := make([]string, 4)
	var all sync.WaitGroup
	for i := range secrets {
		all.Go(func() {
			secret, err := GeneratedSecret(t.Context(), &certmagic.FileStorage{Path: path})
			if err != nil {
				t.Error(err)
			}
			secrets[i] = secret
		})
	}
	all.Wait()
	for _, s := range secrets {
		if s != secrets[0] || len(s) < minSecret {
			t.Fatalf("the secrets are %q", secrets)
		}
	}
	again, err := LoadGeneratedSecret(t.Context(), &certmagic.FileStorage{Path: path})
	if err != nil || again != secrets[0] {
		t.Errorf("after a restart it is %q (%v), want %q", again, err, secrets[0])
	}
	other, err := GeneratedSecret(t.Context(), &certmagic.FileStorage{Path: t.TempDir()})
	if err != nil || other == secrets[0] {
		t.Errorf("another storage has the same secret (%v)", err)
	}
}

func TestASecretThatIsMissingOrSpoiltIsAnError(t *testing.T) {
	storage := &certmagic.FileStorage{Path: t.TempDir()}
	if _, err := LoadGeneratedSecret(t.Context(), storage); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none was made: got %v, want %v", err, fs.ErrNotExist)
	}
	if err := storage.Store(t.Context(), GeneratedSecretKey, []byte("x\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := GeneratedSecret(t.Context(), storage); err == nil || !strings.Contains(err.Error(), "too short") {
		t.Errorf("a spoilt one: %v", err)
	}
}
