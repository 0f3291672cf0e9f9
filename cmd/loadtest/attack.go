package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/dunglas/httpsfv"
	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// Bounds of the load generator. When the servers are slower than the load, it
// waits: then it sends slower, and as many.
const (
	connections    = 64
	requestTimeout = time.Minute
)

// attack sends a phase to the instances by turns and adds to counts what the client
// got.
func attack(ctx context.Context, ph phase, urls []string, keys map[string]string, got counts, m *vegeta.Metrics) error {
	targets := ph.targets(urls, keys)
	a := vegeta.NewAttacker(
		vegeta.Workers(connections), vegeta.MaxWorkers(connections), vegeta.Connections(connections),
		vegeta.Timeout(requestTimeout), vegeta.HTTP2(false), vegeta.Redirects(vegeta.NoFollow),
	)
	stop := context.AfterFunc(ctx, func() { a.Stop() })
	defer stop()
	pace := exactly{vegeta.Rate{Freq: ph.rate, Per: time.Second}, uint64(len(targets))}
	for result := range a.Attack(once(targets), pace, 0, "") {
		m.Add(result)
		for _, r := range judge(result) {
			got[r]++
		}
	}
	return ctx.Err()
}

// targets lists every single request, in an order that is random and always the
// same.
func (ph phase) targets(urls []string, keys map[string]string) []vegeta.Target {
	var all []vegeta.Target
	for _, r := range ph.requests {
		path := r.path
		if path == "" {
			path = "/"
		}
		for range r.times {
			all = append(all, vegeta.Target{Method: "GET", URL: path, Header: r.header(keys)})
		}
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i := range all {
		all[i].URL = urls[i%len(urls)] + all[i].URL
	}
	return all
}

func (r request) header(keys map[string]string) http.Header {
	h := http.Header{"X-Forwarded-For": {r.address}}
	if r.key != "" {
		h.Set("X-API-Key", keys[r.key])
	}
	if r.token != "" {
		h.Set("Authorization", "Bearer "+r.token)
	}
	return h
}

// once hands each target out once.
func once(targets []vegeta.Target) vegeta.Targeter {
	var next atomic.Int64
	return func(t *vegeta.Target) error {
		i := int(next.Add(1)) - 1
		if i >= len(targets) {
			return vegeta.ErrNoTargets
		}
		*t = targets[i]
		return nil
	}
}

// exactly paces a number of requests, at a rate if that is possible.
type exactly struct {
	vegeta.ConstantPacer
	n uint64
}

// Pace stops when all requests are sent.
func (e exactly) Pace(elapsed time.Duration, hits uint64) (time.Duration, bool) {
	if hits >= e.n {
		return 0, true
	}
	return e.ConstantPacer.Pace(elapsed, hits)
}

// judge says, by status, headers and body, which zones have done what to a request.
func judge(r *vegeta.Result) []row {
	switch r.Code {
	case http.StatusOK:
		if rows := charged(r.Headers); len(rows) > 0 {
			return rows
		}
		return []row{exempt}
	case http.StatusTooManyRequests:
		return []row{{policyOf(r.Body), blocked}}
	case http.StatusUnauthorized:
		return append(charged(r.Headers), row{"", invalid}) // it counted before its token was judged
	case 0:
		return []row{{"", "no answer: " + r.Error}}
	}
	return []row{{"", fmt.Sprint("HTTP ", r.Code)}}
}

// charged lists the zones that an answer says it was counted by.
func charged(h http.Header) []row {
	list, err := httpsfv.UnmarshalList(h["Ratelimit-Policy"])
	if err != nil {
		return []row{{"", "RateLimit-Policy is no list: " + err.Error()}}
	}
	rows := make([]row, len(list))
	for i, member := range list {
		name, _ := member.(httpsfv.Item).Value.(string)
		rows[i] = row{name, allowed}
	}
	return rows
}

// policyOf is the zone that a refusal names.
func policyOf(body []byte) string {
	var p struct{ Policy string }
	if err := json.Unmarshal(body, &p); err != nil {
		return "(a body without its name)"
	}
	return p.Policy
}
