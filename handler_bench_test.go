package ratelimit

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// discard is a response writer that keeps nothing of one request for the next.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// The hot path without Caddy's server around it: the difference to the bare
// request is what the handler costs.
func BenchmarkHandler(b *testing.B) {
	const many = "1000000000/1d"
	b.Run("bare request", func(b *testing.B) { benchmarkRequests(b, nil) })
	for _, c := range []struct{ name, directives string }{
		{"allowed", "rate_limit " + many},
		{"allowed, headers off", "rate_limit {\n zone a {\n limit " + many + "\n }\n headers off\n }"},
		{"allowed, three zones", "rate_limit {\n zone a {\n limit " + many + "\n }\n zone b {\n limit " + many + "\n }\n zone c {\n limit " + many + "\n }\n }"},
		{"allowed, key of a header", "rate_limit {\n zone a {\n key {header.X-Client}\n limit " + many + "\n }\n }"},
		{"refused", "rate_limit 1/1d"},
	} {
		b.Run(c.name, func(b *testing.B) {
			benchmarkRequests(b, newSite(b, "http://:80 {\n"+c.directives+"\n}").h)
		})
	}
}

func benchmarkRequests(b *testing.B, h *Handler) {
	next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(http.StatusOK)
		_, err := io.WriteString(w, "hello")
		return err
	})
	original, err := http.NewRequest("GET", "http://localhost/", strings.NewReader(""))
	if err != nil {
		b.Fatal(err)
	}
	original.RemoteAddr = "192.0.2.1:1234"
	original.Header.Set("X-Client", "abc")
	w := &discard{header: make(http.Header, 16)}
	server := new(caddyhttp.Server)
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		r := caddyhttp.PrepareRequest(original, caddy.NewReplacer(), w, server)
		caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "192.0.2.1")
		if h == nil {
			err = next.ServeHTTP(w, r)
		} else {
			err = h.ServeHTTP(w, r, next)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
