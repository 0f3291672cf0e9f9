package redisbackend

import (
	"context"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Reset makes buckets as if they were never seen. It is not for requests: it waits
// for Redis as long as ctx does, and an error wraps ErrUnavailable.
func (b *Backend) Reset(ctx context.Context, buckets []policy.Bucket) error {
	pipe := b.client.rdb.Pipeline() // in a Cluster, each key goes to its own master
	for i := range buckets {
		pipe.Del(ctx, b.key(&buckets[i]))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return failed(err)
	}
	return nil
}

// key is the key of a bucket: see addKey.
func (b *Backend) key(bucket *policy.Bucket) string {
	return b.prefix + bucket.Identity + "}:" + bucket.Scope
}
