package policy

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"hash/crc32"
	"strings"
	"time"
)

// An API key is
//
//	tg_ <32 random letters and digits> <6 letters and digits: their checksum>
//
// The random part holds 190 bits. The checksum is the CRC-32 (IEEE) of all that
// stands before it, in base 62: it catches keys that were mistyped, cut off or
// made up carelessly before anybody has to look them up. It is no secret and
// protects nothing.
const (
	keyMark     = "tg_"
	keyRandom   = 32
	keyChecksum = 6
	keyShown    = 8 // how many characters KeyPrefix shows
)

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// NewKey makes an API key. It is shown to its owner once; a store keeps HashKey
// and KeyPrefix of it.
func NewKey() string {
	body := keyMark + randomText(keyRandom)
	return body + checksum(body)
}

// HashKey is what a store knows an API key by: its SHA-256.
func HashKey(key string) [32]byte { return sha256.Sum256([]byte(key)) }

// KeyPrefix is the beginning of a key, by which people recognize it. It reveals
// 30 of the 190 random bits.
func KeyPrefix(key string) string { return key[:min(keyShown, len(key))] }

// CheckKey reports whether a text that a client presents can be an API key at
// all: false for one that begins like NewKey's and is not whole. Keys of another
// make, which were imported by their hash, can be anything else.
func CheckKey(presented string) bool {
	if !strings.HasPrefix(presented, keyMark) {
		return true
	}
	if len(presented) != len(keyMark)+keyRandom+keyChecksum {
		return false
	}
	body := presented[:len(presented)-keyChecksum]
	return checksum(body) == presented[len(body):]
}

// NewID makes the public id of a record: the letter and 20 random letters and
// digits. Keys have the letter k, policies p.
func NewID(letter string) string { return letter + randomText(20) }

func checksum(body string) string {
	sum := crc32.ChecksumIEEE([]byte(body))
	var digits [keyChecksum]byte // 62^6 is above 2^32
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = base62[sum%62]
		sum /= 62
	}
	return string(digits[:])
}

// randomText returns n letters and digits, each as likely as the others.
func randomText(n int) string {
	text := make([]byte, 0, n)
	var buf [64]byte
	for len(text) < n {
		_, _ = rand.Read(buf[:]) // never fails
		for _, b := range buf {
			if c := b & 63; c < 62 && len(text) < n {
				text = append(text, base62[c])
			}
		}
	}
	return string(text)
}

// Works reports whether the key whose SHA-256 is sum is this record's key at
// the time: its current one or, during the grace period of a rotation, the one
// before; not revoked, not expired.
func (k KeyRecord) Works(sum [32]byte, at time.Time) bool {
	until, ok := k.WorksUntil(sum)
	return ok && (until.IsZero() || at.Before(until))
}

// WorksUntil is when the key whose SHA-256 is sum ceases to work, as far as is
// known now; zero means never. It reports false if sum is not of this record.
func (k KeyRecord) WorksUntil(sum [32]byte) (until time.Time, ok bool) {
	ends := []time.Time{k.ExpiresAt, k.RevokedAt}
	switch {
	case subtle.ConstantTimeCompare(sum[:], k.SHA256[:]) == 1:
	case k.hasPrevious() && subtle.ConstantTimeCompare(sum[:], k.PreviousSHA256[:]) == 1:
		ends = append(ends, k.PreviousUntil)
	default:
		return time.Time{}, false
	}
	for _, end := range ends {
		if !end.IsZero() && (until.IsZero() || end.Before(until)) {
			until = end
		}
	}
	return until, true
}

// Sums lists the hashes that the record holds: one, or after a rotation two.
func (k KeyRecord) Sums() [][32]byte {
	if k.hasPrevious() {
		return [][32]byte{k.SHA256, k.PreviousSHA256}
	}
	return [][32]byte{k.SHA256}
}

func (k KeyRecord) hasPrevious() bool { return k.PreviousSHA256 != [32]byte{} }
