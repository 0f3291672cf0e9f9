package admin

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// seal keeps the answer to a request with an Idempotency-Key in the store, so that
// the same request can be answered with the same API key, and so that the store
// alone reveals neither the API key nor the Idempotency-Key: what the answer is
// stored under and what it is encrypted with (AES-256-GCM) are both derived from
// the Idempotency-Key and the admin's name, slowly (PBKDF2), since clients choose
// Idempotency-Keys that are less random than they should be.
type seal struct {
	id   string // what the answer is stored under
	aead cipher.AEAD
}

// sealRounds costs a request with an Idempotency-Key some ten milliseconds, and
// who guesses one as much for each try.
const sealRounds = 50_000

func newSeal(actor, idempotencyKey string) *seal {
	salt := sha256.Sum256([]byte("tollgate idempotency\x00" + actor))
	derived, err := pbkdf2.Key(sha256.New, idempotencyKey, salt[:], sealRounds, 64)
	if err != nil {
		panic("deriving a key of a fixed length: " + err.Error()) // only lengths can be wrong
	}
	block, err := aes.NewCipher(derived[32:])
	if err != nil {
		panic("an AES key of 32 bytes: " + err.Error())
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("a block cipher of 16 bytes: " + err.Error())
	}
	return &seal{id: hex.EncodeToString(derived[:32]), aead: aead}
}

// replay is what is kept of a request and its answer.
type replay struct {
	Request string `json:"request"` // its fingerprint
	Secret  string `json:"key,omitempty"`
}

// close encrypts a replay.
func (s *seal) close(r replay) []byte {
	text, err := json.Marshal(r)
	if err != nil {
		panic("two texts as JSON: " + err.Error())
	}
	return s.aead.Seal(nil, nil, text, []byte(s.id))
}

var errNotSealed = errors.New("the kept answer is not what was stored under this Idempotency-Key")

// open decrypts what close returned.
func (s *seal) open(sealed []byte) (r replay, err error) {
	text, err := s.aead.Open(nil, nil, sealed, []byte(s.id))
	if err != nil {
		return r, fmt.Errorf("%w: %w", errNotSealed, err)
	}
	return r, json.Unmarshal(text, &r)
}

// fingerprint tells requests apart.
func fingerprint(n NewKey) string {
	expires := ""
	if !n.ExpiresAt.Time.IsZero() {
		expires = n.ExpiresAt.Time.UTC().String()
	}
	text, err := json.Marshal([]string{n.Client, n.Tier, expires, n.SHA256, n.Prefix})
	if err != nil {
		panic("a list of texts as JSON: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
