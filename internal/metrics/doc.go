// Package metrics holds every metric of Tollgate: its name, its help text and its
// labels stand in collectors.go, and nowhere else. The packages that know the
// numbers count here.
//
// The collectors are made once per process and registered with the registry that
// Caddy makes for each configuration, so they go on over reloads, whether those
// succeed or fail.
//
// Labels are bounded. No label is ever the key of a bucket, an API key or an
// address: zone and tier are names that the operator gave, everything else is one
// of a few words.
package metrics
