package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// report prints one table of all profiles, in Markdown.
func report(w io.Writer, all []outcome) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s\n\n", time.Now().UTC().Format("2006-01-02 15:04 UTC"), machine())
	b.WriteString("| profile | requests | per second | p50 | p99 | zone or policy | outcome | must be | client | Prometheus | |\n")
	b.WriteString("|---|--:|--:|--:|--:|---|---|--:|--:|--:|---|\n")
	for _, out := range all {
		for i, l := range out.lines() {
			if i == 0 {
				b.WriteString(out.speed())
			} else {
				b.WriteString("| | | | | ")
			}
			b.WriteString(l.String())
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// speed is the beginning of a profile's first line.
func (o outcome) speed() string {
	l := o.load.Latencies
	return fmt.Sprintf("| %s | %d | %.0f | %s | %s ", o.profile.name, o.load.Requests, o.load.Rate, milliseconds(l.P50), milliseconds(l.P99))
}

// String is the rest of a line.
func (l line) String() string {
	verdict := "exact"
	if !l.agrees() {
		verdict = "WRONG"
	}
	zone := l.zone
	if zone == "" {
		zone = "(none)"
	}
	return fmt.Sprintf("| %s | %s | %d | %s | %s | %s |\n", zone, l.status, l.want, count(l.client), count(l.prometheus), verdict)
}

func count(n int) string {
	if n < 0 {
		return "–"
	}
	return fmt.Sprint(n)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// machine says what all of it ran on.
func machine() string {
	name := runtime.GOARCH
	info, _ := os.ReadFile("/proc/cpuinfo") // where there is none, the architecture is all we say
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			name = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%d cores (%s), %s, %s", runtime.NumCPU(), name, runtime.GOOS, runtime.Version())
}
