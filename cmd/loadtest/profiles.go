package main

import (
	"fmt"
	"slices"
)

// profiles are the loads, in the order in which they run. Where a comment counts,
// it says why the numbers are what they are.
var profiles = []profile{
	addressOnly(),
	accountOnly(),
	validAndInvalidTokens(),
	addressAndToken(),
	healthBypass(),
	mixedTiers(),
	race(),
	fullPipeline(),
}

// addresses makes n of them, in a network of their own.
func addresses(network, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("10.%d.%d.%d", network, i/250, 1+i%250)
	}
	return all
}

// Twenty addresses send 80 requests each; each may send 50.
func addressOnly() profile {
	return profile{
		name:      "address only",
		instances: 1,
		site: `rate_limit {
			zone address {
				limit 50/30d
			}
		}`,
		phases: []phase{{
			rate:     800,
			requests: each(addresses(1, 20), func(a string) request { return request{times: 80, address: a} }),
			want:     counts{{"address", allowed}: 20 * 50, {"address", blocked}: 20 * 30},
		}},
	}
}

// Four accounts send 100 requests each, from five addresses by turns; each account
// may send 60, wherever from.
func accountOnly() profile {
	var requests []request
	var keys []apiKey
	for i := range 4 {
		client := fmt.Sprintf("account-%d", i)
		keys = append(keys, apiKey{client, "LOAD"})
		for _, a := range addresses(2, 5) {
			requests = append(requests, request{times: 20, address: a, key: client})
		}
	}
	return profile{
		name:      "account only",
		instances: 1,
		site: `rate_limit {
			tiers
		}`,
		tiers: []tier{{"LOAD", []tierPolicy{{"*", 60}}}},
		keys:  keys,
		phases: []phase{{
			rate:     400,
			requests: requests,
			want:     counts{{"LOAD *", allowed}: 4 * 60, {"LOAD *", blocked}: 4 * 40},
		}},
	}
}

const tokenSite = `rate_limit {
			zone address {
				limit %d/30d
			}
			identify {
				jwt {
					secret ` + tokenSecret + `
				}
			}
			tiers
		}`

// Five accounts send 40 requests each with good tokens and may send 30. Bad tokens
// of every kind come from addresses of their own: they are refused with 401, and
// count against their address and what is anonymous, until the 100 of an address
// are used: then it is refused without a look at the token.
func validAndInvalidTokens() profile {
	var good []request
	for i, a := range addresses(3, 5) {
		good = append(good, request{times: 40, address: a, token: goodToken(fmt.Sprint("account-", i), "LOAD")})
	}
	bad := badTokens()
	var each50, one []request
	for i, token := range bad {
		each50 = append(each50, request{times: 50, address: addresses(4, len(bad))[i], token: token})
		one = append(one, request{times: 40, address: "10.5.0.1", token: token})
	}
	return profile{
		name:      "JWT valid and invalid",
		instances: 1,
		site:      fmt.Sprintf(tokenSite, 100),
		tiers:     []tier{{"LOAD", []tierPolicy{{"*", 30}}}, {"anonymous", []tierPolicy{{"*", 1000}}}},
		phases: []phase{
			{
				rate:     500,
				requests: slices.Concat(good, each50),
				want: counts{
					{"address", allowed}: 5*30 + 50*len(bad), {"LOAD *", allowed}: 5 * 30,
					{"LOAD *", blocked}: 5 * 10,
					{"", invalid}:       50 * len(bad), {"anonymous *", allowed}: 50 * len(bad),
				},
			},
			{
				rate:     500,
				requests: one,
				want:     counts{{"address", allowed}: 100, {"anonymous *", allowed}: 100, {"", invalid}: 100, {"address", blocked}: 40*len(bad) - 100},
			},
		},
	}
}

// Limits by address and by account hold at once, and what one of them refuses takes
// nothing from the other.
func addressAndToken() profile {
	a, b := goodToken("a", "LOAD"), goodToken("b", "LOAD")
	const first, second = "10.6.0.1", "10.6.0.2"
	return profile{
		name:      "address and JWT together",
		instances: 1,
		site:      fmt.Sprintf(tokenSite, 50),
		tiers:     []tier{{"LOAD", []tierPolicy{{"*", 30}}}, {"anonymous", []tierPolicy{{"*", 1000}}}},
		phases: []phase{
			{ // both accounts use 25 of their 30, which are all 50 of the first address
				rate:     200,
				requests: []request{{times: 25, address: first, token: a}, {times: 25, address: first, token: b}},
				want:     counts{{"address", allowed}: 50, {"LOAD *", allowed}: 50},
			},
			{ // the address is used up, and takes nothing from the accounts
				rate:     400,
				requests: []request{{times: 100, address: first, token: a}, {times: 100, address: first, token: b}},
				want:     counts{{"address", blocked}: 200},
			},
			{ // elsewhere, 5 of each account are left; what they refuse takes nothing from the address
				rate:     400,
				requests: []request{{times: 60, address: second, token: a}, {times: 60, address: second, token: b}},
				want:     counts{{"address", allowed}: 10, {"LOAD *", allowed}: 10, {"LOAD *", blocked}: 110},
			},
			{ // so that others have 40 there
				rate:     400,
				requests: []request{{times: 100, address: second}},
				want:     counts{{"address", allowed}: 40, {"anonymous *", allowed}: 40, {"address", blocked}: 60},
			},
		},
	}
}

// The health check answers from an address that has nothing left.
func healthBypass() profile {
	return profile{
		name:      "health bypass, address exhausted",
		instances: 1,
		site: `rate_limit {
			zone address {
				limit 40/30d
			}
			exempt path /healthz
		}`,
		phases: []phase{{
			rate: 600,
			requests: []request{
				{times: 400, address: "10.7.0.1"},
				{times: 800, address: "10.7.0.1", path: "/healthz"},
			},
			want: counts{{"address", allowed}: 40, {"address", blocked}: 360, exempt: 800},
		}},
	}
}

// Each tier gets what it has, all at the same time.
func mixedTiers() profile {
	return profile{
		name:      "mixed tiers",
		instances: 2,
		site: `rate_limit {
			tiers
		}`,
		tiers: []tier{
			{"anonymous", []tierPolicy{{"*", 30}}},
			{"FREE", []tierPolicy{{"*", 60}}},
			{"PRO", []tierPolicy{{"*", 600}, {"/reports/*", 100}}},
			{"ENTERPRISE", []tierPolicy{{"*", 6000}}},
		},
		keys: []apiKey{{"free-1", "FREE"}, {"free-2", "FREE"}, {"pro-1", "PRO"}, {"pro-2", "PRO"}, {"enterprise-1", "ENTERPRISE"}},
		phases: []phase{
			{ // reports first: they count against the route and the ceiling of PRO
				rate:     500,
				requests: []request{{times: 150, key: "pro-2", address: "10.8.0.1", path: "/reports/1"}},
				want: counts{
					{"PRO /reports/*", allowed}: 100, {"PRO *", allowed}: 100, {"PRO /reports/*", blocked}: 50,
				},
			},
			{ // pro-2 has 500 left; a key that nobody knows counts by its address
				rate: 1000,
				requests: []request{
					{times: 100, key: "free-1", address: "10.8.0.1"},
					{times: 100, key: "free-2", address: "10.8.0.1"},
					{times: 900, key: "pro-1", address: "10.8.0.1"},
					{times: 900, key: "pro-2", address: "10.8.0.1"},
					{times: 1500, key: "enterprise-1", address: "10.8.0.1"},
					{times: 50, address: "10.8.0.2"},
					{times: 50, key: unknownKey, address: "10.8.0.3"},
				},
				want: counts{
					{"FREE *", allowed}: 2 * 60, {"FREE *", blocked}: 2 * 40,
					{"PRO *", allowed}: 600 + 500, {"PRO *", blocked}: 300 + 400,
					{"ENTERPRISE *", allowed}: 1500,
					{"anonymous *", allowed}:  2 * 30, {"anonymous *", blocked}: 2 * 20,
				},
			},
		},
	}
}

// One address against one limit, at two instances at once.
func race() profile {
	return profile{
		name:      "race, 3000/s against one address",
		instances: 2,
		site: `rate_limit {
			zone address {
				limit 500/30d
			}
		}`,
		phases: []phase{{
			rate:     3000,
			requests: []request{{times: 9000, address: "10.9.0.1"}},
			want:     counts{{"address", allowed}: 500, {"address", blocked}: 8500},
		}},
	}
}

const fullSite = `rate_limit {
			zone address {
				limit 2000/30d
			}
			zone login {
				match path /login
				limit 5/30d
				algorithm sliding_log
			}
			identify {
				api_key header X-API-Key
				jwt {
					secret ` + tokenSecret + `
				}
			}
			tiers
			zone quota {
				key {http.rate_limit.identity}
				limit 400/30d
				algorithm sliding_log
			}
			zone stricter {
				limit 100/30d
				mode shadow
			}
			exempt path /healthz
		}`

// Everything at once: exempt paths, the limit of an address, of a login, API keys
// and tokens, tiers, a quota by account, and a limit in the shadow.
func fullPipeline() profile {
	token := goodToken("full", "PRO")
	return profile{
		name:      "full pipeline",
		instances: 2,
		site:      fullSite,
		tiers: []tier{
			{"anonymous", []tierPolicy{{"*", 30}}},
			{"FREE", []tierPolicy{{"*", 60}}},
			{"PRO", []tierPolicy{{"*", 600}}},
		},
		keys:   []apiKey{{"free-1", "FREE"}, {"pro-1", "PRO"}},
		shadow: "stricter",
		// The shadow counts what passes: its first 100 of each address.
		phases: []phase{
			{ // five logins of the 30 that nobody in particular has
				rate:     200,
				requests: []request{{times: 40, address: "10.10.0.1", path: "/login"}},
				want: counts{
					{"login", allowed}: 5, {"address", allowed}: 5, {"anonymous *", allowed}: 5, {"quota", allowed}: 5, {"stricter", allowed}: 5,
					{"login", blocked}: 35,
				},
			},
			{ // each from its own address; PRO ends at the quota of 400, and bad tokens at what anonymous has
				rate: 1000,
				requests: []request{
					{times: 100, address: "10.10.0.1"},
					{times: 150, address: "10.10.0.2", key: "free-1"},
					{times: 900, address: "10.10.0.3", key: "pro-1"},
					{times: 900, address: "10.10.0.4", token: token},
					{times: 500, address: "10.10.0.5", token: badTokens()[0]},
					{times: 450, address: "10.10.0.3", path: "/healthz"},
				},
				want: counts{
					{"anonymous *", allowed}: 25 + 30, {"anonymous *", blocked}: 75 + 470,
					{"", invalid}:       30,
					{"FREE *", allowed}: 60, {"FREE *", blocked}: 90,
					{"PRO *", allowed}: 2 * 400, {"quota", blocked}: 2 * 500,
					{"quota", allowed}:          25 + 30 + 60 + 2*400,
					{"address", allowed}:        25 + 30 + 60 + 2*400,
					{"stricter", allowed}:       25 + 30 + 60 + 2*100,
					{"stricter", shadowBlocked}: 2 * 300,
					exempt:                      450,
				},
			},
		},
	}
}
