package main

// profile is one load on one configuration.
type profile struct {
	name      string
	instances int    // of Caddy, all counting in one Redis
	site      string // the directive rate_limit, as the Caddyfile has it
	tiers     []tier // kept in PostgreSQL; none: no provider is asked
	keys      []apiKey
	shadow    string // a zone in the shadow, which clients are not told about
	phases    []phase
}

// tier is a service level and its policies, made by the admin API.
type tier struct {
	name     string
	policies []tierPolicy
}

// tierPolicy allows so many requests on a route.
type tierPolicy struct {
	route string
	limit int
}

// apiKey is a client, made by the admin API. Requests name it by its client.
type apiKey struct{ client, tier string }

// phase is what is sent together, in a random order. Phases follow each other, so
// that one may rely on what the last has used.
type phase struct {
	rate     int // requests per second, if the machine can
	requests []request
	want     counts
}

// request is sent so many times, by one client.
type request struct {
	times   int
	path    string // default: /
	address string
	key     string // the client of an API key
	token   string // a JSON Web Token
}

// row is one count of the table. Its words are those of the labels zone and status
// of caddy_rate_limit_requests_total.
type row struct{ zone, status string }

// counts is how many requests had which outcome. One that was counted by several
// zones is in several rows.
type counts map[row]int

const (
	allowed       = "allowed"
	blocked       = "blocked"
	shadowBlocked = "shadow_blocked"
	invalid       = "invalid"
)

// exempt is the row of requests that no limit was asked about: they have no
// metric.
var exempt = row{"(exempt)", "passed"}

// want is what must come out of all phases.
func (p *profile) want() counts {
	sum := make(counts)
	for _, ph := range p.phases {
		sum.add(ph.want)
	}
	return sum
}

func (c counts) add(other counts) {
	for r, n := range other {
		c[r] += n
	}
}

// each makes a request for every one of a list, like addresses.
func each(names []string, makeOne func(name string) request) []request {
	all := make([]request, len(names))
	for i, name := range names {
		all[i] = makeOne(name)
	}
	return all
}
