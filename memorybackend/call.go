package memorybackend

import "github.com/caddy-tollgate/ratelimit/policy"

// call is one Take, with all its shards locked.
type call struct {
	now       int64
	buckets   []policy.Bucket
	decisions []policy.Decision
	slots     []slot
}

// slot is what a call knows of one of its buckets.
type slot struct {
	shard *shard
	entry *entry // nil while it is not stored
	after state  // once the cost is taken; of a refusal, as it is
}

func (c *call) take() {
	for i := range c.buckets {
		b, s := &c.buckets[i], &c.slots[i]
		s.entry = s.shard.stateLocked(b, c.now, &s.after)
		c.decisions[i] = decide(&s.after, b.Rule, c.now, b.Cost)
		if b.Shadow {
			c.decisions[i].Delay = 0
		}
	}
	if policy.Allowed(c.buckets, c.decisions) {
		c.update()
	} else {
		c.untake()
	}
	c.insert()
}

// update writes the buckets that are stored. It comes before insert, which may
// forget any of them.
func (c *call) update() {
	for i := range c.slots {
		if s := &c.slots[i]; s.entry != nil && c.takes(i) {
			s.shard.updateLocked(s.entry, &s.after)
		}
	}
}

// untake describes the buckets that allowed a request which another one
// refused: as they are.
func (c *call) untake() {
	for i := range c.buckets {
		if !c.takes(i) {
			continue
		}
		b, s := &c.buckets[i], &c.slots[i]
		s.shard.stateLocked(b, c.now, &s.after)
		c.decisions[i] = decide(&s.after, b.Rule, c.now, 0)
		s.shard = nil // nothing to store
	}
}

// insert stores the newcomers: those that were charged, and those refused for
// the debt that newcomers are born with. The latter were charged nothing, but
// only a stored debt drains at the bucket's own rate: a newcomer that stays one
// would be in debt for as long as the slowest bucket forgotten.
func (c *call) insert() {
	for i := range c.slots {
		s := &c.slots[i]
		if s.entry != nil || s.shard == nil {
			continue
		}
		if b := &c.buckets[i]; b.Cost > 0 && s.after.idle > s.after.at {
			s.shard.insertLocked(key{b.Identity, b.Scope}, &s.after)
		}
	}
}

// takes reports whether a bucket has room for a cost that is not nothing.
func (c *call) takes(i int) bool {
	return c.decisions[i].Allowed && c.buckets[i].Cost > 0
}
