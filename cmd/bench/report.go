package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// report prints the table, in Markdown.
func (b *bench) report(w io.Writer) error {
	var out strings.Builder
	out.WriteString("\n| case | requests/s | p50 | p99 | of bare Caddy | of the same bytes | budget | CPU seconds per 100,000 requests, Caddy + Redis | script calls per 100,000 requests |\n")
	out.WriteString("|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for i, c := range cases {
		out.WriteString(row(c, b.samples[i], b.samples[find(bareCaddy)], b.yardstick(c)) + "\n")
	}
	fmt.Fprintf(&out, "\nMedians of %d rounds of %s with wrk -t1 -c32; ratios are taken within a round (in brackets the lowest and the highest).\n", b.rounds, b.duration)
	fmt.Fprintf(&out, "With headers off, the same bytes are those of bare Caddy. Many clients are %d. Of several instances the rates are added, and the latencies are the worst.\n", clients)
	fmt.Fprintf(&out, "A bucket takes %d bytes in Redis, everything included.\n", b.keyBytes)
	for i, c := range cases {
		out.WriteString(othersNote(c, b.samples[i]))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// othersNote mentions answers that are not what the case means.
func othersNote(c benchCase, own []sample) string {
	var others, requests int64
	for _, s := range own {
		others += s.others(c)
		requests += s.requests
	}
	if others == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %d of %d answers had another status than %d.\n", c.name, others, requests, c.status)
}

// yardstick returns the samples that a case is held against; nil if none.
func (b *bench) yardstick(c benchCase) []sample {
	if c.yardstick == "" {
		return nil
	}
	return b.samples[find(c.yardstick)]
}

func row(c benchCase, own, bare, yardstick []sample) string {
	cells := []string{
		c.name,
		fmt.Sprintf("%.0f", medianOf(own, func(s sample) float64 { return s.rate })),
		milliseconds(medianOf(own, func(s sample) time.Duration { return s.p50 })),
		milliseconds(medianOf(own, func(s sample) time.Duration { return s.p99 })),
		fmt.Sprintf("%.2f", median(ratios(own, bare))),
		spreadOf(ratios(own, yardstick)),
		verdict(c.budget, ratios(own, yardstick)),
		processorTime(own),
		scriptCalls(own),
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// ratios divides the rates of two cases, round by round.
func ratios(own, other []sample) []float64 {
	all := make([]float64, len(other))
	for round := range other {
		all[round] = own[round].rate / other[round].rate
	}
	return all
}

func spreadOf(all []float64) string {
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("%.3f (%.3f to %.3f)", median(all), slices.Min(all), slices.Max(all))
}

func verdict(budget float64, all []float64) string {
	switch {
	case budget == 0:
		return ""
	case median(all) < budget:
		return fmt.Sprintf("%.2f: missed", budget)
	}
	return fmt.Sprintf("%.2f: met", budget)
}

// hundredThousand requests are what counts are told of.
const hundredThousand = 100_000

// processorTime is what Caddy and, where it is asked, Redis took.
func processorTime(own []sample) string {
	var caddy, redis float64
	var requests int64
	for _, s := range own {
		caddy += s.caddyCPU.Seconds()
		redis += s.redisCPU.Seconds()
		requests += s.requests
	}
	each := hundredThousand / float64(requests)
	if redis == 0 {
		return fmt.Sprintf("%.2f", caddy*each)
	}
	return fmt.Sprintf("%.2f + %.2f", caddy*each, redis*each)
}

// scriptCalls are fewer than requests where calls are merged or refusals are known
// locally.
func scriptCalls(own []sample) string {
	var calls, requests int64
	for _, s := range own {
		if s.scriptCalls < 0 {
			return ""
		}
		calls += s.scriptCalls
		requests += s.requests
	}
	return fmt.Sprintf("%.0f", hundredThousand*float64(calls)/float64(requests))
}

func medianOf[T ~int64 | ~float64](samples []sample, of func(sample) T) T {
	all := make([]T, len(samples))
	for i, s := range samples {
		all[i] = of(s)
	}
	return median(all)
}

// median returns the middle value, or the mean of the two in the middle; of
// none, zero.
func median[T ~int64 | ~float64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
