package redisbackend

// SetClock makes scripts use the given time, in microseconds, in place of the
// server's own.
func (b *Backend) SetClock(clock func() int64) { b.clock = clock }
