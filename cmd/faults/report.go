package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// report prints the table, in Markdown.
func report(w io.Writer, outcomes []*outcome) error {
	var out strings.Builder
	out.WriteString("| fault | `open` | `closed` | `local` | logged | added before the breaker opens: p50, p99, max | added after | used again after |\n")
	out.WriteString("|---|---|---|---|---|---:|---:|---:|\n")
	for _, o := range outcomes {
		out.WriteString(o.row() + "\n")
	}
	fmt.Fprintf(&out, "\n%d clients, one request every %s each, the default timeout of 50 ms. Added is to the median without the fault.\n", clients, pause)
	_, err := io.WriteString(w, out.String())
	return err
}

// row is one fault's.
func (o *outcome) row() string {
	var before, after []sample
	for _, s := range o.samples {
		if s.begun.Before(o.opened) {
			before = append(before, s)
		} else {
			after = append(after, s)
		}
	}
	cells := []string{o.fault.Name}
	for _, mode := range modes {
		cells = append(cells, statuses(o.samples, mode))
	}
	normal := quantile(latencies(o.normal), 0.5)
	cells = append(cells, tripLine(o.log), added(before, normal), added(after, normal), o.recovered())
	return "| " + strings.Join(cells, " | ") + " |"
}

func (o *outcome) recovered() string {
	if o.fault.Passing {
		return "by itself"
	}
	return round(o.recovery)
}

// statuses lists how requests of a mode were answered, by share.
func statuses(samples []sample, mode string) string {
	count, total := make(map[int]int), 0
	for _, s := range samples {
		if s.mode == mode {
			count[s.status]++
			total++
		}
	}
	var texts []string
	for _, status := range slices.Sorted(maps.Keys(count)) {
		texts = append(texts, fmt.Sprintf("%s %.1f %%", name(status), 100*float64(count[status])/float64(total)))
	}
	if len(texts) == 1 {
		for status := range count {
			return name(status)
		}
	}
	return strings.Join(texts, ", ")
}

func name(status int) string {
	if status == 0 {
		return "no answer"
	}
	return strconv.Itoa(status)
}

// tripLine is what the log says of the trip: level and kind.
func tripLine(log string) string {
	said := ""
	for line := range strings.Lines(log) {
		var entry struct{ Level, Msg, Kind string }
		if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(entry.Msg, tripText) {
			said = fmt.Sprintf("%s, kind `%s`", entry.Level, entry.Kind) // the last one is this fault's
		}
	}
	return said
}

// added sums up how much longer than normal requests took.
func added(samples []sample, normal time.Duration) string {
	if len(samples) == 0 {
		return "no request"
	}
	sorted := latencies(samples)
	var texts []string
	for _, q := range []float64{0.5, 0.99, 1} {
		texts = append(texts, round(max(0, quantile(sorted, q)-normal)))
	}
	return strings.Join(texts, ", ")
}

func latencies(samples []sample) []time.Duration {
	list := make([]time.Duration, len(samples))
	for i, s := range samples {
		list[i] = s.took
	}
	slices.Sort(list)
	return list
}

// quantile is the smallest value that a share of the sorted ones does not exceed.
func quantile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(share*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// round shows a duration in milliseconds.
func round(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
