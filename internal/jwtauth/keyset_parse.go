package jwtauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/MicahParks/jwkset"
)

// maxSetKeys is how many keys of a set are read.
const maxSetKeys = 100

// parseKeySet reads a JSON Web Key Set (RFC 7517). Keys that are of no use here,
// like those for encryption, are left out; skipped says which.
func parseKeySet(text []byte) (set []*key, skipped, err error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, nil, fmt.Errorf("it is not a JSON Web Key Set: %w", err)
	}
	if document.Keys == nil {
		return nil, nil, errors.New(`it is not a JSON Web Key Set: it has no "keys"`)
	}
	set = []*key{}
	for i, raw := range document.Keys {
		if i == maxSetKeys {
			skipped = errors.Join(skipped, fmt.Errorf("all behind the first %d", maxSetKeys))
			break
		}
		k, err := parseSetKey(raw)
		if err != nil {
			skipped = errors.Join(skipped, fmt.Errorf("key %d: %w", i+1, err))
			continue
		}
		set = append(set, k)
	}
	return set, skipped, nil
}

// parseSetKey reads one key. Private parts are not read, and secrets not at all.
func parseSetKey(raw json.RawMessage) (*key, error) {
	jwk, err := jwkset.NewJWKFromRawJSON(raw, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
	if err != nil {
		return nil, err
	}
	m := jwk.Marshal()
	if m.USE != "" && m.USE != jwkset.UseSig {
		return nil, fmt.Errorf("its use is %q, not sig", m.USE)
	}
	if len(m.KEYOPS) > 0 && !slices.Contains(m.KEYOPS, jwkset.KeyOpsVerify) {
		return nil, errors.New("its key_ops do not have verify")
	}
	if len(m.KID) > maxKeyID {
		return nil, fmt.Errorf("its kid has more than %d bytes", maxKeyID)
	}
	k, err := publicKey(jwk.Key())
	if err != nil {
		return nil, fmt.Errorf("it is %w", err)
	}
	if algorithm := m.ALG.String(); algorithm != "" {
		if !k.accepts(algorithm) {
			return nil, fmt.Errorf("its alg %q does not go with its type", algorithm)
		}
		k.algorithms = []string{algorithm}
	}
	k.id = m.KID
	return k, nil
}
