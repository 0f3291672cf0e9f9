package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/lua"
)

// StateChange says that Redis became unavailable or is back.
type StateChange struct {
	// Whether it is available now.
	Up bool

	// Since when.
	Since time.Time

	// Which server, without secrets.
	Address string

	// What made it unavailable; nil when it is available.
	Err error
}

// tenancy is which configurations have started and not ended: during a reload
// two. The last one hears of outages; if it fails to start, the one before does
// again.
type tenancy struct {
	mu      sync.Mutex
	tenants []*Backend
}

// currentLocked is the configuration that runs; nil if none does.
func (t *tenancy) currentLocked() *Backend {
	if len(t.tenants) == 0 {
		return nil
	}
	return t.tenants[len(t.tenants)-1]
}

// has reports whether a configuration has not ended yet.
func (t *tenancy) has(b *Backend) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.tenants, b)
}

// timeout is how long a request of the running configuration waits.
func (t *tenancy) timeout() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.currentLocked(); b != nil {
		return b.timeout
	}
	return defaultTimeout
}

// enter makes b the running configuration, tells it of an outage that is
// already on, and looks at the server in the background.
func (c *client) enter(b *Backend) {
	c.tenancy.mu.Lock()
	defer c.tenancy.mu.Unlock()
	c.tenancy.tenants = append(c.tenancy.tenants, b)
	for _, br := range c.breakers.all() {
		if o := br.outage.Load(); o != nil && br.told {
			b.hear(StateChange{Address: br.address, Since: o.since, Err: o.cause})
		}
	}
	c.spawn(func() { c.look(b) })
}

// leave ends what enter began. It is harmless without.
func (c *client) leave(b *Backend) {
	c.tenancy.mu.Lock()
	defer c.tenancy.mu.Unlock()
	c.tenancy.tenants = slices.DeleteFunc(c.tenancy.tenants, func(t *Backend) bool { return t == b })
}

// tell tells the running configuration of a change.
func (c *client) tell(br *breaker, change StateChange) {
	c.tenancy.mu.Lock()
	defer c.tenancy.mu.Unlock()
	br.told = !change.Up
	if b := c.tenancy.currentLocked(); b != nil {
		b.hear(change)
	}
}

// hear logs a change and passes it on.
func (b *Backend) hear(change StateChange) {
	if change.Up {
		b.logger.Info("redis is back", zap.String("address", change.Address))
	} else {
		b.logger.Error("redis is unavailable; requests are decided by on_error until it is back",
			zap.String("address", change.Address), zap.Time("since", change.Since), zap.Error(change.Err))
	}
	if b.observer != nil {
		b.observer(change)
	}
}

// health sums up the breakers.
func (c *client) health() (up bool, since time.Time, lastErr error) {
	up, since = true, c.created
	var latest time.Time
	for _, br := range c.breakers.all() {
		if f := br.last.Load(); f != nil && f.at.After(latest) {
			latest, lastErr = f.at, f.err
		}
		switch o := br.outage.Load(); {
		case o != nil && (up || o.since.Before(since)):
			up, since = false, o.since
		case o == nil && up:
			since = later(since, br.upSince())
		}
	}
	return up, since, lastErr
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// look examines the server when a configuration starts: whether it answers, is
// new enough, keeps what it is given, and knows the scripts.
func (c *client) look(b *Backend) {
	c.looking.Lock() // one look at a time, however fast configurations follow each other
	defer c.looking.Unlock()
	if !c.tenancy.has(b) {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.socketTimeout)
	defer cancel()
	info, err := c.rdb.Info(ctx).Result()
	if err == nil {
		b.judge(info)
		err = c.checkVersion(info)
	}
	switch {
	case c.ctx.Err() != nil:
	case redis.IsPermissionError(err):
		b.logger.Debug("redis does not show its settings to this user, so its version and maxmemory-policy are not checked", zap.Error(err))
		c.load(ctx, b)
	case err != nil:
		c.breakers.whole.trip(b.prefix+"probe}", err)
	default:
		c.load(ctx, b)
	}
}

// load gives the scripts to the server. It only saves the first call from
// bringing them itself, so a failure is nobody's loss.
func (c *client) load(ctx context.Context, b *Backend) {
	for _, text := range []string{lua.Take, lua.GiveBack} {
		if err := c.rdb.ScriptLoad(ctx, text).Err(); err != nil {
			b.logger.Debug("redis did not take the scripts in advance", zap.Error(err))
			return
		}
	}
}

// judge warns of settings under which limits do not hold.
func (b *Backend) judge(info string) {
	policy, memory := infoField(info, "maxmemory_policy"), infoField(info, "maxmemory")
	if policy != "" && policy != "noeviction" && memory != "" && memory != "0" {
		b.logger.Warn("redis may evict buckets, and an evicted bucket is full again: set maxmemory-policy noeviction",
			zap.String("maxmemory_policy", policy), zap.String("maxmemory", memory))
	}
	if infoField(info, "cluster_enabled") == "1" && b.client.cluster == nil {
		b.logger.Error("redis belongs to a Cluster: write two or more of its nodes as urls")
	}
}

// checkVersion reports a server that is too old, and remembers it.
func (c *client) checkVersion(info string) error {
	version := infoField(info, "redis_version")
	old := tooOld(version)
	c.tooOld.Store(old)
	if old {
		return fmt.Errorf("redis %s is too old; run 6.2 or later, or Valkey", version)
	}
	return nil
}

// probeVersion looks whether a server that was too old was replaced.
func (c *client) probeVersion(ctx context.Context) error {
	if !c.tooOld.Load() {
		return nil
	}
	info, err := c.rdb.Info(ctx).Result()
	if err != nil {
		return err
	}
	return c.checkVersion(info)
}

// tooOld reports whether a version is below 6.2. What cannot be read is not.
func tooOld(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	ma, err1 := strconv.Atoi(major)
	mi, err2 := strconv.Atoi(minor)
	return errors.Join(err1, err2) == nil && (ma < 6 || ma == 6 && mi < 2)
}

// infoField reads one line of the INFO command.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && key == name {
			return value
		}
	}
	return ""
}
