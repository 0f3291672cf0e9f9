package main

import (
	"fmt"
	"strings"
)

// caddyfile is the configuration of every instance of a profile. Redis and
// PostgreSQL may take long, because a busy machine must not change what comes out:
// then a decision would be made without Redis, and be counted as such.
func (p *profile) caddyfile(redis, prefix, database string) string {
	return fmt.Sprintf(`{
	admin off
	auto_https off
	servers {
		trusted_proxies static 127.0.0.1/32 ::1/128
	}
	rate_limit {
		backend redis %s {
			timeout 10s
			key_prefix %s
		}
		%s
	}
}

http://:{$PORT} {
	%s
	respond "passed"
}

http://:{$PORT2} {
	handle /metrics {
		metrics
	}
	%s
}
`, redis, prefix, provider(database), p.site, admin(database))
}

func provider(database string) string {
	if database == "" {
		return ""
	}
	return fmt.Sprintf("provider postgres %s {\n\t\t\tlookup_timeout 10s\n\t\t}", database)
}

func admin(database string) string {
	if database == "" {
		return ""
	}
	return strings.ReplaceAll(`handle {
		rate_limit_admin {
			jwt {
				secret SECRET
			}
		}
	}`, "SECRET", tokenSecret)
}
