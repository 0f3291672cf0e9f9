package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/lua"
)

// What a server says of itself is looked at when a configuration starts, in every
// probe of an outage, since who returns may be another server, and within about a
// second for what has not been looked at since: a server that did not answer then,
// or a master that a Cluster has made meanwhile.

// look examines the servers when a configuration starts: whether they answer, are
// new enough, keep what they are given, and know the scripts.
func (c *client) look(b *Backend) {
	c.looking.Lock() // one look at a time, however fast configurations follow each other
	defer c.looking.Unlock()
	if !c.tenancy.has(b) {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.socketTimeout)
	defer cancel()
	err := c.examineAll(ctx, b)
	if err != nil && ctx.Err() == nil && !isReply(err) && !errors.Is(err, errTooOld) {
		err = c.examineAll(ctx, b) // one lost connection is no outage
	}
	switch {
	case c.ctx.Err() != nil:
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

// examineAll examines every server for a configuration. Of a Cluster, masters that
// do not answer are left out if others do: their breakers tell.
func (c *client) examineAll(ctx context.Context, b *Backend) error {
	if c.cluster == nil {
		return c.breakers.whole.examine(ctx, c.rdb, b)
	}
	var (
		mu      sync.Mutex
		answers int
		faults  []error
	)
	err := c.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		// Which is looked after from here on.
		err := c.breakers.forNode(node.Options().Addr).examine(ctx, node, b)
		if err != nil && !errors.Is(err, errTooOld) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		answers++
		faults = append(faults, err)
		return nil
	})
	if answers > 0 {
		return errors.Join(faults...)
	}
	return err
}

// examine has a configuration judge what the server of a breaker says of itself. It
// fails if the server is too old, or says nothing. That the user may not ask is told,
// and no failure.
func (br *breaker) examine(ctx context.Context, rdb redis.Cmdable, b *Backend) error {
	info, err := rdb.Info(ctx).Result()
	switch err = notNil(err); {
	case redis.IsPermissionError(err), redis.HasErrorPrefix(err, "unknown command"):
		b.judgeUnseen(br.address, err)
	case err != nil:
		return err
	default:
		b.judge(br.address, info)
		if version := infoField(info, "redis_version"); tooOld(version) {
			return fmt.Errorf("redis %s at %s is too old; %w", version, br.address, errTooOld)
		}
	}
	br.examined.Store(true)
	return nil
}

// reexamine examines what a probe is about to ask, unless that was done. An error
// reply is no failure of the probe, which shows by itself what it means.
func (br *breaker) reexamine(ctx context.Context, key string) error {
	b := br.client.tenancy.current()
	if b == nil || br.examined.Load() {
		return nil
	}
	err := br.examineFor(ctx, key, b)
	if isReply(err) && !errors.Is(err, errTooOld) {
		return nil
	}
	return err
}

// examineFor examines the server that has a key, in a Cluster whoever that is now.
func (br *breaker) examineFor(ctx context.Context, key string, b *Backend) error {
	c := br.client
	switch {
	case c.cluster == nil:
		return br.examine(ctx, c.rdb, b)
	case br == c.breakers.whole:
		return c.examineAll(ctx, b)
	}
	node, err := c.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil // the probe will say so
	}
	return c.breakers.forNode(node.Options().Addr).examine(ctx, node, b)
}

// catchUp examines a server that works and was not examined yet. If that is in vain, it
// is tried again the next time.
func (br *breaker) catchUp(prefix string) {
	key, rdb := br.client.at(br, prefix)
	if rdb == nil {
		return
	}
	ctx, cancel := context.WithTimeout(br.client.ctx, br.client.patience())
	defer cancel()
	if err := br.reexamine(ctx, key); errors.Is(err, errTooOld) {
		br.trip(key, err)
	}
}

// judge warns of settings under which limits do not hold.
func (b *Backend) judge(address, info string) {
	policy, memory := infoField(info, "maxmemory_policy"), infoField(info, "maxmemory")
	evicts := policy != "" && policy != "noeviction" && memory != "" && memory != "0"
	foreign := infoField(info, "cluster_enabled") == "1" && b.client.cluster == nil
	if !b.judged.changes(address, judgement{evicts: evicts, foreign: foreign, policy: policy}) {
		return
	}
	if evicts {
		b.logger.Warn("redis may evict buckets, and an evicted bucket is full again: set maxmemory-policy noeviction",
			zap.String("address", address), zap.String("maxmemory_policy", policy), zap.String("maxmemory", memory))
	}
	if foreign {
		b.logger.Error("redis belongs to a Cluster: write two or more of its nodes as urls", zap.String("address", address))
	}
}

// judgeUnseen says of a server that it could not be judged.
func (b *Backend) judgeUnseen(address string, err error) {
	if b.judged.changes(address, judgement{unseen: true}) {
		b.logger.Debug("redis does not show its settings to this user, so its version and maxmemory-policy are not checked",
			zap.String("address", address), zap.Error(err))
	}
}

// judgement is what was found out of a server.
type judgement struct {
	evicts, foreign, unseen bool
	policy                  string
}

// judgements is what a configuration has said of servers, so that it says the same of
// the same server once, however often that is examined.
type judgements struct {
	mu   sync.Mutex
	last map[string]judgement // by address
}

func newJudgements() *judgements { return &judgements{last: make(map[string]judgement)} }

// changes notes a judgement, and reports whether it is another than the last one.
func (j *judgements) changes(address string, now judgement) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if before, known := j.last[address]; known && before == now {
		return false
	}
	j.last[address] = now
	return true
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
