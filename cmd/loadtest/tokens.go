package main

import (
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// tokenSecret signs the tokens of clients and of the admin who sets a profile up.
// It is no secret to anybody: the servers run for the load only.
const tokenSecret = "signs-tokens-of-load-tests-and-nothing-else"

// unknownKey is an API key that nobody has.
const unknownKey = "a key that nobody has"

// tokenLife is longer than a profile can take.
const tokenLife = time.Hour

func goodToken(account, tier string) string {
	return sign(jwt.SigningMethodHS256, []byte(tokenSecret), claims(account, tier, tokenLife))
}

// badTokens are, for different reasons, not valid.
func badTokens() []string {
	valid := claims("mallory", "LOAD", tokenLife)
	return []string{
		sign(jwt.SigningMethodHS256, []byte("another-secret-that-is-as-long-as-the-first"), valid),
		sign(jwt.SigningMethodHS256, []byte(tokenSecret), claims("mallory", "LOAD", -tokenLife)),
		sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, valid),
		sign(jwt.SigningMethodHS384, []byte(tokenSecret), valid),
		sign(jwt.SigningMethodHS256, []byte(tokenSecret), jwt.MapClaims{"sub": "mallory"}), // never expires
		"no.token.this",
	}
}

func adminToken() string {
	c := claims("loadtest", "", tokenLife)
	c["roles"] = []string{"ADMIN"}
	return sign(jwt.SigningMethodHS256, []byte(tokenSecret), c)
}

func claims(account, tier string, life time.Duration) jwt.MapClaims {
	return jwt.MapClaims{"sub": account, "tier": tier, "exp": time.Now().Add(life).Unix()}
}

// sign panics where a method does not go with its key, which is a mistake in this
// file.
func sign(method jwt.SigningMethod, key any, c jwt.MapClaims) string {
	token, err := jwt.NewWithClaims(method, c).SignedString(key)
	if err != nil {
		panic(err)
	}
	return token
}
