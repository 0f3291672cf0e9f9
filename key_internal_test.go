package ratelimit

import (
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// request makes an evaluation of a request from an address with header fields.
func request(t *testing.T, address string, header map[string]string) *evaluation {
	t.Helper()
	r := httptest.NewRequest("GET", "/a", nil)
	r.RemoteAddr = address
	if address != "@" {
		r.RemoteAddr = address + ":1234"
	}
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), new(caddyhttp.Server))
	for name, value := range header {
		r.Header.Set(name, value)
	}
	return newEvaluation(new(Handler), r)
}

// identityOf is the identity that a zone with a key makes of a request.
func identityOf(t *testing.T, key, missing string, e *evaluation) (string, keyResult) {
	t.Helper()
	k, err := newKeyTemplate(key, missing, 32, 64)
	if err != nil {
		t.Fatal(err)
	}
	return k.identity(e)
}

func TestAKeyNamesTheClientAndNotItsSecret(t *testing.T) {
	t.Parallel()
	hashed := func(parts ...string) string { return policy.HashIdentity(parts...) }
	for _, c := range []struct {
		name, key, missing, address string
		header                      map[string]string
		want                        string
		result                      keyResult
	}{
		{name: "the default is the address", address: "192.0.2.7", want: "192.0.2.7"},
		{name: "an IPv6 address counts by its /64", address: "[2001:db8::1:2:3:4]", want: "2001:db8::/64"},
		{name: "the remote host is an address too", key: "{http.request.remote.host}", address: "[2001:db8::1:2:3:4]", want: "2001:db8::/64"},
		{name: "text is one bucket for all", key: "everybody", address: "192.0.2.7", want: "*"},
		{name: "a value is hashed", key: "{http.request.header.X}", address: "192.0.2.7", header: map[string]string{"X": "secret"}, want: hashed("secret")},
		{name: "a value that looks like an address is no address", key: "{http.request.header.X}", address: "192.0.2.7", header: map[string]string{"X": "192.0.2.8"}, want: hashed("192.0.2.8")},
		{name: "text around a placeholder changes nothing", key: "a-{http.request.header.X}", address: "192.0.2.7", header: map[string]string{"X": "v"}, want: hashed("v")},
		{name: "values are apart", key: "{http.request.header.X}{http.request.header.Y}", address: "192.0.2.7", header: map[string]string{"X": "ab", "Y": "c"}, want: hashed("ab", "c")},
		{name: "an address in a longer key is cut as well", key: "{http.vars.client_ip}/{http.request.method}", address: "[2001:db8::1:2:3:4]", want: hashed("2001:db8::/64", "GET")},
		{name: "an empty key counts by address", key: "{http.request.header.X}", address: "192.0.2.7", want: "192.0.2.7"},
		{name: "the address joins a key that is empty in part", key: "{http.request.header.X}{http.request.method}", address: "192.0.2.7", want: hashed("", "GET", "192.0.2.7")},
		{name: "skip", key: "{http.request.header.X}", missing: "skip", address: "192.0.2.7", result: keySkip},
		{name: "reject", key: "{http.request.header.X}", missing: "reject", address: "192.0.2.7", result: keyReject},
		{name: "a text in place of the key", key: "{http.request.header.X}", missing: "nobody", address: "192.0.2.7", want: hashed("", "nobody")},
		{name: "no identity yet counts by address", key: "{http.rate_limit.identity}", address: "192.0.2.7", want: "192.0.2.7"},
		{name: "no address at all", address: "@", want: hashed("@")},
		{name: "an unknown placeholder counts by address", key: "{no.such.thing}", address: "192.0.2.7", want: "192.0.2.7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, result := identityOf(t, c.key, c.missing, request(t, c.address, c.header))
			if got != c.want || result != c.result {
				t.Errorf("got %q (%v), want %q (%v)", got, result, c.want, c.result)
			}
		})
	}
}

// A client chooses header values; none may reach the bucket of those who have none.
func TestNoValueMeetsTheBucketOfMissingKeys(t *testing.T) {
	t.Parallel()
	const key = "{http.request.header.X}{http.request.header.Y}"
	missing, _ := identityOf(t, key, "nobody", request(t, "192.0.2.7", nil))
	for _, header := range []map[string]string{{"Y": "nobody"}, {"X": "nobody"}, {"X": "\x00nobody"}, {"X": "nobody", "Y": "nobody"}} {
		if got, _ := identityOf(t, key, "nobody", request(t, "192.0.2.8", header)); got == missing {
			t.Errorf("%v meets the bucket of requests without a key", header)
		}
	}
}
