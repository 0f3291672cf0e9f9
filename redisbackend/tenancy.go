package redisbackend

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// tenancy is which configurations that ask one server have started and not ended:
// during a reload two. The last one hears of outages; if it fails to start, the one
// before does again. It is shared by all clients for one server: a reload that changes
// another setting, like the password, makes another client, and the outage that the
// one before has told of goes on.
type tenancy struct {
	place   string // in tenancies
	clients int    // how many share it; protected by tenanciesMu

	mu      sync.Mutex
	tenants []*Backend
	told    map[string]*outage // those that a configuration knows of, by the address of the breaker
}

var (
	tenanciesMu sync.Mutex
	tenancies   = make(map[string]*tenancy)
)

// joinTenancy is the tenancy of a place, for one client more.
func joinTenancy(place string) *tenancy {
	tenanciesMu.Lock()
	defer tenanciesMu.Unlock()
	t := tenancies[place]
	if t == nil {
		t = &tenancy{place: place, told: make(map[string]*outage)}
		tenancies[place] = t
	}
	t.clients++
	return t
}

// quit is for a client that ends. The last one's tenancy is forgotten.
func (t *tenancy) quit() {
	tenanciesMu.Lock()
	defer tenanciesMu.Unlock()
	if t.clients--; t.clients == 0 {
		delete(tenancies, t.place)
	}
}

// place names the server and the database that settings lead to.
func (s *settings) place() string {
	return strings.Join([]string{s.Network, s.Sentinel, strconv.Itoa(s.DB), strings.Join(s.Addrs, " ")}, "|")
}

// currentLocked is the configuration that runs; nil if none does.
func (t *tenancy) currentLocked() *Backend {
	if len(t.tenants) == 0 {
		return nil
	}
	return t.tenants[len(t.tenants)-1]
}

// current is the configuration that runs; nil if none does.
func (t *tenancy) current() *Backend {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.currentLocked()
}

// has reports whether a configuration has not ended yet.
func (t *tenancy) has(b *Backend) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.tenants, b)
}

// timeout is how long a request of the running configuration waits.
func (t *tenancy) timeout() time.Duration {
	if b := t.current(); b != nil {
		return b.timeout
	}
	return defaultTimeout
}

// prefix is how keys of the client's running configuration begin; false if none runs.
func (c *client) prefix() (string, bool) {
	if b := c.tenancy.current(); b != nil && b.client == c {
		return b.prefix, true
	}
	return "", false
}

// inherit opens the breakers of servers of which is told already that they are down: a
// client that follows another one does not have to find out.
func (c *client) inherit() {
	c.tenancy.mu.Lock()
	defer c.tenancy.mu.Unlock()
	for address, o := range c.tenancy.told {
		c.breakers.at(address).resume(o)
	}
}

// enter makes b the running configuration, tells it how outages that were told stand
// now, and looks at the server in the background.
func (c *client) enter(b *Backend) {
	t := c.tenancy
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tenants = append(t.tenants, b)
	for address, o := range t.told {
		if br := c.breakers.at(address); br.outage.Load() == nil && !br.upSince().After(o.since) {
			br.resume(o) // it began after this client did
		}
	}
	t.settleLocked(b)
	for _, br := range c.breakers.all() {
		br.examined.Store(false) // for this configuration
	}
	c.spawn(func() { c.look(b) })
	c.idling.Do(func() { c.spawn(c.watchIdle) })
}

// settleLocked tells b, which runs from now on, of the outages that are on, and of the
// end of those that were told and are over for its client.
func (t *tenancy) settleLocked(b *Backend) {
	for _, br := range b.client.breakers.all() {
		o, known := br.outage.Load(), t.told[br.address]
		switch {
		case o != nil:
			change := br.downSince(o)
			change.Repeated = known != nil
			t.told[br.address] = o
			b.hear(change)
		case known != nil && br.upSince().After(known.since):
			t.tellUpLocked(b, br)
		case known != nil: // only a configuration that was given up has heard of it
			delete(t.told, br.address)
		}
	}
}

// leave ends what enter began. It is harmless without.
func (c *client) leave(b *Backend) {
	t := c.tenancy
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.currentLocked()
	t.tenants = slices.DeleteFunc(t.tenants, func(other *Backend) bool { return other == b })
	if now := t.currentLocked(); now != nil && now != before && now.client != c {
		t.settleLocked(now)
	}
}

// tellDown tells the running configuration that an outage has begun, if it asks this
// client and does not know.
func (c *client) tellDown(br *breaker, o *outage) {
	t := c.tenancy
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.currentLocked(); b != nil && b.client == c && t.told[br.address] == nil {
		t.told[br.address] = o
		b.hear(br.downSince(o))
	}
}

// tellUp tells it that the outage is over, if it knew of that.
func (c *client) tellUp(br *breaker) {
	t := c.tenancy
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.currentLocked(); b != nil && b.client == c && t.told[br.address] != nil {
		t.tellUpLocked(b, br)
	}
}

func (t *tenancy) tellUpLocked(b *Backend, br *breaker) {
	up, since := br.upSince(), t.told[br.address].since
	delete(t.told, br.address)
	b.hear(StateChange{Up: true, Address: br.address, Since: up, DownFor: up.Sub(since)})
}

// tellUnusable tells the running configuration why a server that answers again is not
// used. It is the same outage still.
func (c *client) tellUnusable(br *breaker, o *outage) {
	t := c.tenancy
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.currentLocked(); b != nil && b.client == c && t.told[br.address] != nil {
		t.told[br.address] = o
		b.hearUnusable(br.downSince(o))
	}
}
