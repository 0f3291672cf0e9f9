package integration_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// The windows here are long, so that nothing comes back while a test runs and
// the numbers are exact on a machine of any speed.

func TestFiftyConcurrentRequestsAgainstALimitOfTenAdmitExactlyTen(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit 10/1d login
	respond "welcome"
}`, backend)
		burst(t, 50, "/", nil, c).want(t, tally{200: 10, 429: 40})
		burst(t, 50, "/", []option{from("203.0.113.7")}, c).want(t, tally{200: 10, 429: 40})
	})
}

func TestABurstOfItsOwnIsWhatConcurrentRequestsCanHave(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone api {
			limit 10/1d burst 25
		}
	}
	respond "welcome"
}`, backend)
		burst(t, 50, "/", nil, c).want(t, tally{200: 25, 429: 25})
	})
}

func TestThreeProcessesOnOneRedisAdmitExactlyAHundredOfSixHundred(t *testing.T) {
	t.Parallel()
	backend := redisBackend(testserver.NewRedis(t))
	var processes []*caddy
	for range 3 {
		processes = append(processes, startCaddy(t, trusting+`
:{$PORT} {
	rate_limit 100/1d login
	respond "welcome"
}`, backend))
	}
	burst(t, 600, "/", nil, processes...).want(t, tally{200: 100, 429: 500})
}

// A request that one zone refuses takes from none: the first zone is charged
// for the five that passed, not for the fifty that came. A path that only the
// first zone limits shows what is left of it.
func TestARefusedRequestTakesFromNoZone(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name     string
		first    string
		comesIn  time.Duration // how long one unit of the first zone takes to come back
		zones    string
		parallel bool
	}{
		{"100 a minute, at once", "100/1m", 600 * time.Millisecond, "zone first\nzone second", true},
		{"100 a day, at once", "100/1d", 864 * time.Second, "zone first\nzone second", true},
		{"100 a day, one by one", "100/1d", 864 * time.Second, "zone first\nzone second", false},
		{"the narrow zone stands first", "100/1d", 864 * time.Second, "zone second\nzone first", true},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			onEachBackend(t, func(t *testing.T, backend string) {
				c := startCaddy(t, `
{
	rate_limit {
		backend {$BACKEND}
		zone first {
			limit `+tc.first+`
		}
		zone second {
			limit 5/1h
		}
	}
}
:{$PORT} {
	rate_limit /both {
		`+tc.zones+`
	}
	rate_limit /first {
		zone first
	}
	respond "welcome"
}`, backend)
				start := time.Now()
				if tc.parallel {
					burst(t, 50, "/both", nil, c).want(t, tally{200: 5, 429: 45})
				} else {
					c.sequence(50, "/both").want(t, tally{200: 5, 429: 45})
				}
				left := c.get("/first").wantStatus(t, 200).remaining(t, "first")
				most := min(99, 94+int64(time.Since(start)/tc.comesIn))
				if left < 94 || left > most {
					t.Errorf("first zone: %d left after one more, want 94 to %d", left, most)
				}
			})
		})
	}
}

func TestManyClientsAtOnceEachGetTheirWholeLimit(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit 7/1d login
	respond "welcome"
}`, backend)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				client := from(fmt.Sprintf("203.0.113.%d", i))
				burst(t, 20, "/", []option{client}, c).want(t, tally{200: 7, 429: 13})
			})
		}
		wg.Wait()
	})
}

// Zones of one name, defined alike, are one counter wherever they stand.
func TestAZoneOfOneNameInTwoSitesIsOneCounter(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit /a 10/1d shared
	rate_limit /b 10/1d other
	respond "first"
}
:{$PORT2} {
	rate_limit 10/1d shared
	respond "second"
}`, backend)
		burst(t, 60, "/a", nil, c, c.at("tcp", c.addr2())).want(t, tally{200: 10, 429: 50})
		burst(t, 20, "/b", nil, c).want(t, tally{200: 10, 429: 10})
	})
}

// Two limits that look alike are two counters: a name is what identifies one.
func TestTwoShortFormsWithoutNamesDoNotShareACounter(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit /a 3/1d
	rate_limit /b 3/1d
	respond "welcome"
}`, backend)
		c.sequence(5, "/a").want(t, tally{200: 3, 429: 2})
		c.sequence(5, "/b").want(t, tally{200: 3, 429: 2})
	})
}

func TestACostTakesSeveralUnitsAtOnce(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone heavy {
			limit 10/1d
			cost 3
		}
	}
	respond "welcome"
}`, backend)
		burst(t, 20, "/", nil, c).want(t, tally{200: 3, 429: 17})
		if left := c.get("/").remaining(t, "heavy"); left != 1 {
			t.Errorf("left: got %d, want 1", left)
		}
	})
}

func TestAShadowZoneCountsAndNeverRefuses(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone trial {
			limit 2/1d
			mode shadow
		}
		zone real {
			limit 10/1d
		}
	}
	respond "{http.rate_limit.decision}"
}`, backend)
		for i, want := range []string{"allowed", "allowed", "shadow_blocked", "shadow_blocked"} {
			if a := c.get("/").wantStatus(t, 200); a.body != want {
				t.Errorf("request %d: got %q, want %q", i+1, a.body, want)
			}
		}
		burst(t, 30, "/", nil, c).want(t, tally{200: 6, 429: 24})
	})
}
