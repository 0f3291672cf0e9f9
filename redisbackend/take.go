package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Take asks Redis for every bucket of a request: see package policy for what a
// bucket and a decision are. It returns within the timeout. Every error wraps
// ErrUnavailable, and the decisions then mean nothing.
func (b *Backend) Take(ctx context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	if len(buckets) == 0 {
		return nil
	}
	if b.client.cluster != nil {
		return b.takeInCluster(ctx, buckets, decisions)
	}
	return b.takeTogether(ctx, buckets, decisions)
}

// takeTogether decides buckets of one server, and in a Cluster of one slot: in one call.
func (b *Backend) takeTogether(ctx context.Context, buckets []policy.Bucket, decisions []policy.Decision) error {
	f, err := b.client.admit(b.takeCall(buckets))
	if err != nil {
		return err
	}
	if err := f.send(ctx, b.timeout); err != nil {
		return nameScope(err, buckets)
	}
	f.call.decode(buckets, decisions)
	f.call.release()
	return nil
}

// takeCall encodes a call of lua/take.lua.
func (b *Backend) takeCall(buckets []policy.Bucket) *call {
	c := newCall(takeScript)
	for i := range buckets {
		c.addKey(b.prefix, &buckets[i])
	}
	c.addTime(b.clock)
	for i := range buckets {
		c.appendBucket(&buckets[i])
	}
	c.endPart()
	c.seal(len(buckets))
	c.want = numberSize + len(buckets)*decisionSize
	return c
}

// decode reads the reply of lua/take.lua, which has been checked.
func (c *call) decode(buckets []policy.Bucket, decisions []policy.Decision) {
	for i := range buckets {
		retry := c.micros(3 * i) // below zero: allowed, after a delay
		decisions[i] = policy.Decision{
			Allowed:    retry <= 0,
			Remaining:  c.number(3*i + 1),
			RetryAfter: max(0, retry),
			ResetAfter: c.micros(3*i + 2),
		}
		if !buckets[i].Shadow {
			decisions[i].Delay = max(0, -retry)
		}
	}
}

// nameScope says which bucket's key holds something else than a string; the
// script only knows its number.
func nameScope(err error, buckets []policy.Bucket) error {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return err
	}
	number, ok := strings.CutPrefix(reply.Error(), "WRONGTYPE ")
	if !ok {
		return err
	}
	i, _ := strconv.Atoi(number)
	if i < 1 || i > len(buckets) {
		return err
	}
	return failed(fmt.Errorf("%w: the key of the scope %s holds something else than a bucket; delete it, or write another key_prefix",
		reply, buckets[i-1].Scope))
}

func oneIdentity(buckets []policy.Bucket) bool {
	for i := range buckets {
		if buckets[i].Identity != buckets[0].Identity {
			return false
		}
	}
	return true
}
