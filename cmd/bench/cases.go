package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// benchCase is one configuration and how it is loaded.
type benchCase struct {
	name string

	// The site's directives. Empty for a yardstick, whose directives are made
	// from the answer of the case that it copies.
	site   string
	copies string

	redis  bool // the site's limits live in Redis
	extra  int  // how many instances there are besides one, all on the same Redis
	spread bool // many clients instead of one
	status int  // of every answer

	yardstick string  // the case that this one is held against
	budget    float64 // the least that the ratio to the yardstick should be; 0 is none
}

// Limits that no load reaches, yet slow enough in giving back that the buckets
// stay in use, and one that is used up by the first request.
const (
	hotLimit    = "1000000000/1d"
	spreadLimit = "100000/1d"
	spentLimit  = "1/1d"
)

// Names that other cases refer to.
const (
	bareCaddy       = "Caddy, bare"
	allowedBytes    = "Caddy, bytes of an allowed answer"
	manyBytes       = "Caddy, bytes of an allowed answer, many clients"
	refusedBytes    = "Caddy, bytes of a refusal"
	memoryAllowed   = "memory, allowed"
	memoryRefused   = "memory, refused"
	redisManyClient = "Redis, allowed, many clients"
	threeBytes      = "Caddy, bytes of an allowed answer, 3 zones"
	tenBytes        = "Caddy, bytes of an allowed answer, 10 zones"
	memoryThree     = "memory, allowed, 3 zones"
	memoryTen       = "memory, allowed, 10 zones"
)

// cases are in the order of the table, each behind its yardstick: what is
// measured in the same minute compares best.
var cases = []benchCase{
	{name: bareCaddy, site: hello, status: http.StatusOK},
	{
		name: "memory, allowed, headers off", site: limited("limit "+hotLimit, "headers off"), status: http.StatusOK,
		yardstick: bareCaddy, budget: 0.95,
	},
	{name: allowedBytes, copies: memoryAllowed, status: http.StatusOK},
	{
		name: memoryAllowed, site: limited("limit " + hotLimit), status: http.StatusOK,
		yardstick: allowedBytes, budget: 0.97,
	},
	{
		name: "Redis, allowed, one hot client", site: limited("limit "+hotLimit, failClosed), redis: true, status: http.StatusOK,
		yardstick: allowedBytes, budget: 0.80,
	},
	{name: manyBytes, copies: redisManyClient, spread: true, status: http.StatusOK},
	{
		name: redisManyClient, site: limited("key {http.request.header."+clientHeader+"}\n\t\t\tlimit "+spreadLimit, failClosed),
		redis: true, spread: true, status: http.StatusOK,
		yardstick: manyBytes, budget: 0.70,
	},
	{
		name: "Redis, allowed, many clients, 3 instances", site: limited("key {http.request.header."+clientHeader+"}\n\t\t\tlimit "+spreadLimit, failClosed),
		redis: true, extra: 2, spread: true, status: http.StatusOK,
	},
	{name: threeBytes, copies: memoryThree, status: http.StatusOK},
	{name: memoryThree, site: zones(3), status: http.StatusOK, yardstick: threeBytes},
	{name: "Redis, allowed, 3 zones", site: zones(3, failClosed), redis: true, status: http.StatusOK, yardstick: threeBytes},
	{name: tenBytes, copies: memoryTen, status: http.StatusOK},
	{name: memoryTen, site: zones(10), status: http.StatusOK, yardstick: tenBytes},
	{name: "Redis, allowed, 10 zones", site: zones(10, failClosed), redis: true, status: http.StatusOK, yardstick: tenBytes},
	{name: refusedBytes, copies: memoryRefused, status: http.StatusTooManyRequests},
	{
		name: memoryRefused, site: limited("limit " + spentLimit), status: http.StatusTooManyRequests,
		yardstick: refusedBytes, budget: 1,
	},
	{
		name: "Redis, refused", site: limited("limit "+spentLimit, failClosed), redis: true, status: http.StatusTooManyRequests,
		yardstick: refusedBytes, budget: 1,
	},
}

// hello is what every site answers to an allowed request.
const hello = `respond "hello"`

// failClosed makes a Redis that does not answer visible: counting in this
// process instead would pass for a very fast Redis.
const failClosed = "on_error closed"

// limited is a site with one zone and further lines in its handler.
func limited(zone string, lines ...string) string {
	handler := append([]string{"zone bench {\n\t\t\t" + zone + "\n\t\t}"}, lines...)
	return "rate_limit {\n\t\t" + strings.Join(handler, "\n\t\t") + "\n\t}\n\t" + hello
}

// zones is a site with several zones, each with a bucket for every client.
func zones(n int, lines ...string) string {
	handler := make([]string, n, n+len(lines))
	for i := range handler {
		handler[i] = fmt.Sprintf("zone zone%d {\n\t\t\tlimit %s\n\t\t}", i+1, hotLimit)
	}
	return "rate_limit {\n\t\t" + strings.Join(append(handler, lines...), "\n\t\t") + "\n\t}\n\t" + hello
}

// caddyfile completes a site's directives to a configuration that listens on
// the loopback address only and keeps nothing.
func caddyfile(site, addr, storage, redisURL string) string {
	var backend string
	if redisURL != "" {
		backend = fmt.Sprintf("\trate_limit {\n\t\tbackend redis %s\n\t}\n", redisURL)
	}
	host, port, _ := strings.Cut(addr, ":")
	return fmt.Sprintf("{\n\tadmin off\n\tauto_https off\n\tpersist_config off\n\tstorage file_system %s\n%s}\n\nhttp://:%s {\n\tbind %s\n\t%s\n}\n",
		storage, backend, port, host, site)
}

// sameBytes is a site that gives an answer by Caddy's own means.
func sameBytes(a answer) (string, error) {
	var header strings.Builder
	for _, name := range a.names() {
		for i, value := range a.header[name] {
			quoted, err := quote(value)
			if err != nil {
				return "", err
			}
			header.WriteString("\t\t" + strings.Repeat("+", min(i, 1)) + name + " " + quoted + "\n")
		}
	}
	body, err := quote(a.body)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("header {\n%s\t}\n\trespond %s %d", header.String(), body, a.status), nil
}

// quote makes one Caddyfile token of a text. Braces are escaped, so that Caddy
// does not spend time on looking for placeholders in a copied answer.
func quote(s string) (string, error) {
	if strings.Contains(s, "`") {
		return "", fmt.Errorf("an answer has a backtick in it and cannot be copied into a Caddyfile: %q", s)
	}
	return "`" + strings.NewReplacer("{", `\{`, "}", `\}`).Replace(s) + "`", nil
}

func find(name string) int {
	return slices.IndexFunc(cases, func(c benchCase) bool { return c.name == name })
}
