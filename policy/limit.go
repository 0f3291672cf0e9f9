package policy

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bounds of a Limit. They are far beyond practical use; within them, the
// arithmetic of both backends is exact whenever NewRule accepts the limit.
const (
	MaxCount  = int64(1_000_000_000_000)
	MinWindow = time.Millisecond
	MaxWindow = 366 * 24 * time.Hour

	// LongestDelay bounds how long a request may wait for its turn.
	LongestDelay = 10 * time.Minute
)

// Limit is how much one client may have: Count units per Window, and up to
// Burst units at once.
type Limit struct {
	// Units per window, 0 to MaxCount. Zero denies everything.
	Count int64

	// Length of the window: whole microseconds, MinWindow to MaxWindow. A
	// window is a duration, never a calendar period: 30d is 720 hours.
	Window time.Duration

	// The most that can be had at once, 1 to MaxCount; of a token bucket alone.
	// Zero means Count.
	Burst int64

	// How long a request may wait for its turn, whole microseconds up to
	// LongestDelay; of a leaky bucket alone. Zero means that none waits.
	MaxDelay time.Duration
}

// Capacity is the most units that can be had at once: Burst, else Count.
func (l Limit) Capacity() int64 {
	if l.Count == 0 {
		return 0
	}
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Count
}

// String writes the limit as ParseLimit reads it, with its burst if it has one
// of its own: "100/1m", "10/1s burst 50".
func (l Limit) String() string {
	s := strconv.FormatInt(l.Count, 10) + "/" + formatWindow(l.Window)
	if l.Burst > 0 && l.Burst != l.Count {
		s += " burst " + strconv.FormatInt(l.Burst, 10)
	}
	return s
}

// Validate reports the first bound that the limit breaks.
func (l Limit) Validate() error {
	switch {
	case l.Count < 0:
		return fmt.Errorf("limit: count %d is negative; write 0 to deny everything", l.Count)
	case l.Count > MaxCount:
		return fmt.Errorf("limit: count %d is too large; the most is %d", l.Count, MaxCount)
	case l.Window <= 0:
		return fmt.Errorf("limit: window %s must be positive, like 1s or 1m", formatWindow(l.Window))
	case l.Window < MinWindow || l.Window > MaxWindow:
		return fmt.Errorf("limit: window %s is out of range; write a duration from %s to %s",
			formatWindow(l.Window), formatWindow(MinWindow), formatWindow(MaxWindow))
	case l.Window%time.Microsecond != 0:
		return fmt.Errorf("limit: window %s is not a whole number of microseconds", l.Window)
	case l.Burst < 0:
		return fmt.Errorf("limit: burst %d is negative; write a whole number from 1, or leave it out for %d", l.Burst, l.Count)
	case l.Burst > MaxCount:
		return fmt.Errorf("limit: burst %d is too large; the most is %d", l.Burst, MaxCount)
	case l.MaxDelay < 0 || l.MaxDelay > LongestDelay || l.MaxDelay%time.Microsecond != 0:
		return fmt.Errorf("limit: max_delay %s is out of range; write a duration up to %s, like 500ms", l.MaxDelay, formatWindow(LongestDelay))
	case l.Count == 0 && l.Burst > 0:
		return errors.New("limit: a count of 0 denies everything, so it takes no burst")
	}
	return nil
}

// ParseLimit reads "<count>/<window>", like 100/1m. The count may carry the
// unit r (10r/s), and the window may be a bare unit (10/s). The burst is left
// zero. Errors say what to write instead.
func ParseLimit(s string) (Limit, error) {
	count, window, ok := strings.Cut(s, "/")
	switch {
	case s == "":
		return Limit{}, errors.New("limit is empty; write <count>/<window>, like 100/1m")
	case !ok:
		return Limit{}, fmt.Errorf("limit %q has no window; write <count>/<window>, like %s", s, exampleLimit(count))
	case window == "":
		return Limit{}, fmt.Errorf("limit %q has nothing behind the slash; write <count>/<window>, like %s", s, exampleLimit(count))
	case count == "" || count == "r":
		return Limit{}, fmt.Errorf("limit %q has no count; write <count>/<window>, like 100/1m", s)
	}
	n, err := parseCount(strings.TrimSuffix(count, "r"))
	if err != nil {
		return Limit{}, fmt.Errorf("limit %q: %w", s, err)
	}
	d, err := ParseWindow(window)
	if err != nil {
		return Limit{}, fmt.Errorf("limit %q: %w", s, err)
	}
	l := Limit{Count: n, Window: d}
	if err := l.Validate(); err != nil {
		return Limit{}, err
	}
	return l, nil
}

// exampleLimit completes a count to a limit that could stand in its place.
func exampleLimit(count string) string {
	if _, err := parseCount(strings.TrimSuffix(count, "r")); err != nil {
		count = "100"
	}
	return count + "/1m"
}

func parseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) && n > 0:
		return 0, fmt.Errorf("count %s is too large; the most is %d", s, MaxCount)
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("count %s is negative; write 0 to deny everything", s)
	case err != nil || s[0] == '+':
		return 0, fmt.Errorf("count %q is not a whole number; write <count>/<window>, like 100/1m", s)
	}
	return n, nil
}

// ParseWindow reads a duration like 1s, 1m30s or 7d; a bare unit (s, m, h, d)
// is one of it. A day is 24 hours, and days come first. It does not check the
// bounds of a Limit's window; Limit.Validate does.
func ParseWindow(s string) (time.Duration, error) {
	switch s {
	case "ms", "s", "m", "h", "d":
		return ParseWindow("1" + s)
	}
	days, rest, err := cutDays(s)
	if err != nil {
		return 0, badWindow(s)
	}
	d, err := time.ParseDuration(rest)
	signed := days > 0 && d < 0 || strings.HasPrefix(rest, "+")
	if err != nil || signed || d > math.MaxInt64-days {
		return 0, badWindow(s)
	}
	return days + d, nil
}

// cutDays takes the days off the front of a duration, since time.ParseDuration
// knows none. Sixteen bits of days are far beyond MaxWindow and cannot overflow.
func cutDays(s string) (days time.Duration, rest string, err error) {
	count, rest, ok := strings.Cut(s, "d")
	if !ok {
		return 0, s, nil
	}
	if rest == "" {
		rest = "0s"
	}
	n, err := strconv.ParseUint(count, 10, 16)
	return time.Duration(n) * 24 * time.Hour, rest, err
}

func badWindow(s string) error {
	return fmt.Errorf("window %q is not a duration up to %s; write one like 1s, 1m, 1h30m or 7d", s, formatWindow(MaxWindow))
}

// formatWindow writes d in the shortest form that ParseWindow reads: 1m, not
// 1m0s.
func formatWindow(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
