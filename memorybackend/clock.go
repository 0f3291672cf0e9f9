package memorybackend

import "time"

// started carries the wall clock and the monotonic clock of one moment.
var started = time.Now()

// Now returns the time that buckets in this process are counted by: microseconds
// since the epoch by the wall clock as it was when the process started, and by
// the monotonic clock since. It never steps, in either direction, when somebody
// sets the clock.
func Now() int64 {
	return started.UnixMicro() + time.Since(started).Microseconds()
}
