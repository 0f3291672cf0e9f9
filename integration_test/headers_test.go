package integration_test

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
)

// wantSeconds checks whole seconds that a header gives for a duration which
// was exact at some moment since start: rounded up, and never by one more.
func wantSeconds(t *testing.T, what string, got int64, exact time.Duration, start time.Time) {
	t.Helper()
	least := int64(math.Ceil((exact - time.Since(start)).Seconds()))
	most := int64(math.Ceil(exact.Seconds()))
	if got < least || got > most {
		t.Errorf("%s: got %d s, want %d to %d", what, got, least, most)
	}
}

// wantReset checks X-RateLimit-Reset, a Unix time.
func wantReset(t *testing.T, a answer, exact time.Duration, start time.Time) {
	t.Helper()
	got := a.number(t, "X-RateLimit-Reset")
	least := start.Add(exact).Unix()
	most := time.Now().Add(exact).Unix() + 1
	if got < least || got > most {
		t.Errorf("X-RateLimit-Reset: got %d, want %d to %d", got, least, most)
	}
}

// A ledger of 2/1h: a unit comes back every 30 minutes.
func TestTheHeadersTellWhatIsLeftAndWhenItIsBack(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit 2/1h login
	respond "welcome"
}`, backend)
		ledger := []struct {
			status    int
			remaining int64
			reset     time.Duration
		}{
			{200, 1, 30 * time.Minute},
			{200, 0, time.Hour},
			{429, 0, time.Hour},
			{429, 0, time.Hour},
		}
		start := time.Now()
		for i, row := range ledger {
			a := c.get("/").wantStatus(t, row.status)
			a.wantNumber(t, "X-RateLimit-Limit", 2)
			a.wantNumber(t, "X-RateLimit-Remaining", row.remaining)
			wantReset(t, a, row.reset, start)
			policy, state := a.quota(t, "RateLimit-Policy", "login"), a.quota(t, "RateLimit", "login")
			if policy["q"] != 2 || policy["w"] != 3600 || state["r"] != row.remaining {
				t.Errorf("request %d: policy %v, state %v", i+1, policy, state)
			}
			wantSeconds(t, "RateLimit t", state["t"], row.reset, start)
			if row.status == 200 {
				a.wantNoHeader(t, "Retry-After")
			} else {
				wantSeconds(t, "Retry-After", a.number(t, "Retry-After"), 30*time.Minute, start)
			}
		}
	})
}

func TestTheAnswerAsBytesOnTheWire(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 1/1h login
	respond "welcome"
}`)
	const request = "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n"
	allowed, refused := c.raw(request), c.raw(request)
	wantLines(t, allowed, "HTTP/1.1 200 OK", "x-ratelimit-limit: 1", "x-ratelimit-remaining: 0", `x-ratelimit-reset: \d{10}`,
		`ratelimit-policy: "login";q=1;w=3600`, `ratelimit: "login";r=0;t=3600`)
	wantLines(t, refused, "HTTP/1.1 429 Too Many Requests", "x-ratelimit-limit: 1", "x-ratelimit-remaining: 0", `x-ratelimit-reset: \d{10}`,
		`ratelimit-policy: "login";q=1;w=3600`, `ratelimit: "login";r=0;t=3(600|5\d\d)`, `retry-after: 3(600|5\d\d)`,
		"content-type: application/problem[+]json", "x-correlation-id: [0-9a-f-]{36}", `content-length: \d+`)
}

// wantLines checks the first line of an answer, and that each of the others
// stands in its head once. Names of headers have no case.
func wantLines(t *testing.T, reply, first string, lines ...string) {
	t.Helper()
	if !strings.HasPrefix(reply, first+"\r\n") {
		t.Errorf("got %.60q, want %q first", reply, first)
	}
	head, _, _ := strings.Cut(reply, "\r\n\r\n")
	for _, line := range lines {
		if n := len(regexp.MustCompile("(?im)^"+line+"\r?$").FindAllString(head, -1)); n != 1 {
			t.Errorf("want the line %q once, found it %d times in:\n%s", line, n, head)
		}
	}
}

// What Retry-After says is enough, whatever fraction of a second is left.
func TestWaitingRetryAfterOutAdmitsAgain(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"1/1s", "1/2s", "1/1300ms", "3/2s", "1/100ms", "2/1500ms"} {
		t.Run(strings.ReplaceAll(limit, "/", " per "), func(t *testing.T) {
			t.Parallel()
			onEachBackend(t, func(t *testing.T, backend string) {
				c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit `+limit+` login
	respond "welcome"
}`, backend)
				a := c.untilRefused("/")
				wait := a.number(t, "Retry-After")
				if wait < 1 || wait > 2 {
					t.Errorf("Retry-After: got %d, want 1 or 2", wait)
				}
				enough := time.Now().Add(time.Duration(wait) * time.Second)
				for a.status == 429 {
					late := time.Now().After(enough)
					if a = c.get("/"); late && a.status == 429 {
						t.Fatalf("refused after waiting %d s", wait)
					}
				}
				a.wantStatus(t, 200)
			})
		})
	}
}

func TestRetryAfterIsExactForWindowsOfEveryLength(t *testing.T) {
	t.Parallel()
	cases := []struct {
		limit string
		next  time.Duration // when the next unit comes after all were taken
	}{
		{"1/1s", time.Second},
		{"1/2s", 2 * time.Second},
		{"1/1m", time.Minute},
		{"1/59s", 59 * time.Second},
		{"4/1m", 15 * time.Second},
		{"7/1m", 8571429 * time.Microsecond},
		{"1/1h", time.Hour},
		{"2/7d", 84 * time.Hour},
		{"1/30d", 720 * time.Hour},
		{"1/366d", 366 * 24 * time.Hour},
	}
	var file strings.Builder
	for i, tc := range cases {
		fmt.Fprintf(&file, "rate_limit /%d %s z%d\n", i, tc.limit, i)
	}
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+":{$PORT} {\n"+file.String()+"respond welcome\n}\n", backend)
		for i, tc := range cases {
			start := time.Now()
			a := c.untilRefused(fmt.Sprintf("/%d", i))
			wantSeconds(t, tc.limit+": Retry-After", a.number(t, "Retry-After"), tc.next, start)
			if problem := a.wantProblem(t, 429, "rate_limited", fmt.Sprintf("z%d", i)); problem.RetryAfter != a.number(t, "Retry-After") {
				t.Errorf("%s: retry_after in the body is %d, the header says %d", tc.limit, problem.RetryAfter, a.number(t, "Retry-After"))
			}
		}
	})
}

// The draft's w is whole seconds; a window below one has none to tell.
func TestAWindowBelowASecondStillGivesWellFormedHeaders(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 100/250ms quick
	respond "welcome"
}`)
	a := c.get("/").wantStatus(t, 200)
	a.wantNumber(t, "X-RateLimit-Limit", 100)
	policy := a.quota(t, "RateLimit-Policy", "quick")
	if w, there := policy["w"]; policy["q"] != 100 || there && w < 1 {
		t.Errorf("RateLimit-Policy: got %v, want q=100 and no w of 0", policy)
	}
	if left := a.quota(t, "RateLimit", "quick"); left["r"] != 99 || left["t"] != 1 {
		t.Errorf("RateLimit: got %v, want r=99 and t=1", left)
	}
}

func TestALimitOfZeroDeniesEverything(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit 0/1m never
	respond "welcome"
}`, backend)
		c.sequence(3, "/").want(t, tally{429: 3})
		a := c.get("/")
		a.wantProblem(t, 429, "rate_limited", "never")
		a.wantNumber(t, "X-RateLimit-Limit", 0)
		a.wantNumber(t, "X-RateLimit-Remaining", 0)
		if wait := a.number(t, "Retry-After"); wait < 1 {
			t.Errorf("Retry-After: got %d, want at least 1", wait)
		}
		if q := a.quota(t, "RateLimit-Policy", "never"); q["q"] != 0 || q["w"] != 60 {
			t.Errorf("RateLimit-Policy: got %v", q)
		}
	})
}

// A zone that denies everything must not let the others be charged either.
func TestALimitOfZeroBesideOthersChargesNobody(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone other {
			limit 5/1d
		}
		zone closed {
			match path /closed
			limit 0/1m
		}
	}
	respond "welcome"
}`, backend)
		c.sequence(10, "/closed").want(t, tally{429: 10})
		c.sequence(7, "/").want(t, tally{200: 5, 429: 2})
	})
}

func TestHeadersCanBeReducedToOneFamilyOrNone(t *testing.T) {
	t.Parallel()
	cases := []struct {
		line            string
		present, absent []string
	}{
		{"", limitFields, nil},
		{"headers x draft", limitFields, nil},
		{"headers x", xFields, draftFields},
		{"headers draft", draftFields, xFields},
		{"headers off", nil, limitFields},
	}
	for _, tc := range cases {
		t.Run(tc.line, func(t *testing.T) {
			t.Parallel()
			c := startCaddy(t, `
:{$PORT} {
	rate_limit {
		zone login {
			limit 1/1h
		}
		`+tc.line+`
	}
	respond "welcome"
}`)
			for _, status := range []int{200, 429} {
				a := c.get("/").wantStatus(t, status)
				for _, name := range tc.present {
					if len(a.header.Values(name)) != 1 {
						t.Errorf("%d: %s: got %q, want one value", status, name, a.header.Values(name))
					}
				}
				a.wantNoHeader(t, tc.absent...)
				if status == 429 {
					wantSeconds(t, "Retry-After", a.number(t, "Retry-After"), time.Hour, time.Now().Add(-patience))
				}
			}
		})
	}
}

func TestTheHeadersDescribeTheBucketNearestItsEndAndListAll(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone wide {
			limit 100/1h
		}
		zone narrow {
			match path /narrow
			limit 3/1h
		}
	}
	respond "welcome"
}`, backend)
		a := c.get("/")
		a.wantNumber(t, "X-RateLimit-Limit", 100)
		a.wantNumber(t, "X-RateLimit-Remaining", 99)
		a = c.get("/narrow")
		a.wantNumber(t, "X-RateLimit-Limit", 3)
		a.wantNumber(t, "X-RateLimit-Remaining", 2)
		if wide, narrow := a.remaining(t, "wide"), a.remaining(t, "narrow"); wide != 98 || narrow != 2 {
			t.Errorf("RateLimit: got wide %d, narrow %d; want 98 and 2", wide, narrow)
		}
	})
}

// The headers of a refusal describe the limit that refused, not one that
// merely looks emptier.
func TestARefusalDescribesTheLimitThatRefused(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone nearly {
			limit 9/1h
		}
		zone heavy {
			match path /heavy
			limit 100/1h
			cost 60
		}
	}
	respond "welcome"
}`, backend)
		c.get("/heavy").wantStatus(t, 200)
		c.sequence(7, "/").want(t, tally{200: 7})
		a := c.get("/heavy")
		a.wantProblem(t, 429, "rate_limited", "heavy")
		a.wantNumber(t, "X-RateLimit-Limit", 100)
		a.wantNumber(t, "X-RateLimit-Remaining", 40)
		if left := a.remaining(t, "nearly"); left != 1 {
			t.Errorf("nearly: %d left, want 1", left)
		}
		wantSeconds(t, "Retry-After", a.number(t, "Retry-After"), 720*time.Second, time.Now().Add(-patience))
	})
}

func TestSeveralHandlersOfOneRouteDescribeTheNearestEndOfAll(t *testing.T) {
	t.Parallel()
	handlers := map[string]string{
		"wide":   "rate_limit {\n zone wide {\n limit 100/1h\n }\n }\n",
		"narrow": "rate_limit {\n zone narrow {\n limit 3/1h\n }\n }\n",
		"middle": "rate_limit 20/1h middle\n",
	}
	for _, order := range [][]string{{"wide", "middle", "narrow"}, {"narrow", "middle", "wide"}, {"middle", "narrow", "wide"}} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			t.Parallel()
			var route string
			for _, name := range order {
				route += handlers[name]
			}
			c := startCaddy(t, ":{$PORT} {\n route {\n"+route+"respond welcome\n }\n }\n")
			for left := int64(2); left >= 0; left-- {
				a := c.get("/").wantStatus(t, 200)
				a.wantNumber(t, "X-RateLimit-Limit", 3)
				a.wantNumber(t, "X-RateLimit-Remaining", left)
				for name, want := range map[string]int64{"narrow": left, "middle": left + 17, "wide": left + 97} {
					if got := a.remaining(t, name); got != want {
						t.Errorf("%s: %d left, want %d", name, got, want)
					}
				}
			}
			a := c.get("/")
			a.wantProblem(t, 429, "rate_limited", "narrow")
			a.wantNumber(t, "X-RateLimit-Limit", 3)
			a.wantNumber(t, "X-RateLimit-Remaining", 0)
		})
	}
}

// A zone may have any name: the headers stay well-formed, and two zones stay
// two members of the list.
func TestZoneNamesOfAnyTextGiveWellFormedHeaders(t *testing.T) {
	t.Parallel()
	names := []string{`say "please"`, `back\slash`, "grüße", "café", "cafè", "日本語", "a b", "semi;colon,comma=", "%22"}
	var zones strings.Builder
	for i, name := range names {
		fmt.Fprintf(&zones, "zone `%s` {\n limit %d/1h\n }\n", name, 100+i)
	}
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+":{$PORT} {\n rate_limit {\n"+zones.String()+"\n}\n respond welcome\n }\n", backend)
		a := c.get("/").wantStatus(t, 200)
		policies, states := a.quotas(t, "RateLimit-Policy"), a.quotas(t, "RateLimit")
		if len(policies) != len(names) || len(states) != len(names) {
			t.Fatalf("got %d policies and %d states, want %d of each", len(policies), len(states), len(names))
		}
		seen := make(map[string]bool)
		for i := range names {
			if policies[i].name != states[i].name || seen[states[i].name] {
				t.Errorf("zone %q: names %q and %q, want one that no other zone has", names[i], policies[i].name, states[i].name)
			}
			seen[states[i].name] = true
			if policies[i].params["q"] != int64(100+i) || states[i].params["r"] != int64(99+i) {
				t.Errorf("zone %q: policy %v, state %v", names[i], policies[i].params, states[i].params)
			}
		}
	})
}

func TestJitterOnlyEverLengthensRetryAfter(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit {
		zone login {
			limit 1/1000s
		}
		jitter 0.5
	}
	respond "welcome"
}`)
	start := time.Now()
	c.get("/").wantStatus(t, 200)
	seen := make(map[int64]bool)
	for range 40 {
		wait := c.get("/").wantStatus(t, 429).number(t, "Retry-After")
		least := int64(math.Ceil((1000*time.Second - time.Since(start)).Seconds()))
		if wait < least || wait > 1500 {
			t.Errorf("Retry-After: got %d, want %d to 1500", wait, least)
		}
		seen[wait] = true
	}
	if len(seen) < 5 {
		t.Errorf("40 refusals gave %d different Retry-After, want them spread", len(seen))
	}
}
