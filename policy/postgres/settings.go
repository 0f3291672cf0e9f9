package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Defaults and bounds of the settings.
const (
	defaultCacheTTL       = 5 * time.Second
	defaultLookupTimeout  = 50 * time.Millisecond
	defaultMaxKeys        = 100_000
	defaultMaxConnections = 8

	minCacheTTL       = 100 * time.Millisecond
	maxCacheTTL       = time.Hour
	minLookupTimeout  = time.Millisecond
	maxLookupTimeout  = 10 * time.Second
	maxMaxKeys        = 10_000_000
	maxMaxConnections = 1000
	minAuditRetention = 24 * time.Hour

	connectTimeout = 3 * time.Second
)

// check reports the first setting that is wrong.
func (p *Provider) check() error {
	ttl, timeout, retention := time.Duration(p.CacheTTL), time.Duration(p.LookupTimeout), time.Duration(p.AuditRetention)
	switch {
	case ttl != 0 && (ttl < minCacheTTL || ttl > maxCacheTTL):
		return fmt.Errorf("cache_ttl %s is out of range; write a duration from %s to %s, like %s", ttl, minCacheTTL, maxCacheTTL, defaultCacheTTL)
	case timeout != 0 && (timeout < minLookupTimeout || timeout > maxLookupTimeout):
		return fmt.Errorf("lookup_timeout %s is out of range; write a duration from %s to %s, like %s", timeout, minLookupTimeout, maxLookupTimeout, defaultLookupTimeout)
	case retention != 0 && retention < minAuditRetention:
		return fmt.Errorf("audit_retention %s is too short; write a duration of 1d or more, like 400d", retention)
	case p.MaxKeys < 0 || p.MaxKeys > maxMaxKeys:
		return fmt.Errorf("max_keys %d is out of range; write a number from 1 to %d, like %d", p.MaxKeys, maxMaxKeys, defaultMaxKeys)
	case p.MaxConnections < 0 || p.MaxConnections > maxMaxConnections:
		return fmt.Errorf("max_connections %d is out of range; write a number from 1 to %d, like %d", p.MaxConnections, maxMaxConnections, defaultMaxConnections)
	}
	return nil
}

func (p *Provider) setDefaults() {
	set := func(value *caddy.Duration, standard time.Duration) {
		if *value == 0 {
			*value = caddy.Duration(standard)
		}
	}
	set(&p.CacheTTL, defaultCacheTTL)
	set(&p.LookupTimeout, defaultLookupTimeout)
	set(&p.AuditRetention, policy.DefaultAuditRetention)
	if p.MaxKeys == 0 {
		p.MaxKeys = defaultMaxKeys
	}
	if p.MaxConnections == 0 {
		p.MaxConnections = defaultMaxConnections
	}
}

// poolKey names what shapes a client, without revealing it.
func poolKey(config *pgxpool.Config) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %d", config.ConnString(), config.MaxConns))
	return hex.EncodeToString(sum[:])
}

// place names the database in the key of the saved policies: equal for all
// instances that use it, whoever connects.
func place(config *pgxpool.Config) string {
	c := config.ConnConfig
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %d %q %q", c.Host, c.Port, c.Database, c.RuntimeParams["search_path"]))
	return hex.EncodeToString(sum[:8])
}
