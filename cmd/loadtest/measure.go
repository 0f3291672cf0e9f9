package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// outcome is what a profile has come to.
type outcome struct {
	profile    profile
	client     counts
	prometheus counts
	load       vegeta.Metrics
}

// measure runs a profile from a new start.
func (s *servers) measure(ctx context.Context, p profile) (outcome, error) {
	fmt.Fprintf(os.Stderr, "running: %s\n", p.name)
	caddyfile, keys, err := s.prepare(ctx, p)
	if err != nil {
		return outcome{}, err
	}
	// Instances that start now know all that was prepared.
	instances, stop, err := s.startCaddies(p.instances, caddyfile)
	if err != nil {
		return outcome{}, err
	}
	defer stop()
	out := outcome{profile: p, client: make(counts), prometheus: make(counts)}
	for _, ph := range p.phases {
		if err := attack(ctx, ph, sites(instances), keys, out.client, &out.load); err != nil {
			return out, err
		}
	}
	out.load.Close()
	for _, c := range instances {
		if err := scrape(ctx, c.URL2(), out.prometheus); err != nil {
			return out, err
		}
	}
	return out, nil
}

// prepare returns a profile's configuration and the API keys of its clients. What
// it keeps in PostgreSQL is made by the admin API of an instance that then ends.
func (s *servers) prepare(ctx context.Context, p profile) (caddyfile string, keys map[string]string, err error) {
	name := fmt.Sprintf("tollgate_load_%s_%d", s.run, s.runs)
	if len(p.tiers) == 0 {
		return p.caddyfile(s.redis, name, ""), nil, nil
	}
	database, err := s.newDatabase(ctx, name)
	if err != nil {
		return "", nil, err
	}
	caddyfile = p.caddyfile(s.redis, name, database)
	instances, stop, err := s.startCaddies(1, caddyfile)
	if err != nil {
		return "", nil, err
	}
	defer stop()
	keys, err = adminAPI{instances[0].URL2(), adminToken()}.setUp(ctx, p)
	return caddyfile, keys, err
}

func sites(instances []*testserver.Caddy) []string {
	urls := make([]string, len(instances))
	for i, c := range instances {
		urls[i] = c.URL()
	}
	return urls
}

// line is one row of the table. Counts are -1 where they do not apply.
type line struct {
	row
	want, client, prometheus int
}

// lines compares the three counts, row by row, in order of zones. Nothing that
// anybody counted is left out.
func (o outcome) lines() []line {
	want := o.profile.want()
	union := make(counts)
	for _, c := range []counts{want, o.client, o.prometheus} {
		union.add(c)
	}
	var all []line
	for r := range union {
		l := line{r, want[r], o.client[r], o.prometheus[r]}
		switch {
		case r == exempt:
			l.prometheus = -1
		case o.profile.shadow != "" && r.zone == o.profile.shadow:
			l.client = -1
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.zone, b.zone), cmp.Compare(a.status, b.status))
	})
	return all
}

// agrees reports whether all counts that apply are what must come out.
func (l line) agrees() bool {
	return (l.client < 0 || l.client == l.want) && (l.prometheus < 0 || l.prometheus == l.want)
}

// reconciled reports whether every line agrees.
func (o outcome) reconciled() bool {
	return !slices.ContainsFunc(o.lines(), func(l line) bool { return !l.agrees() })
}
