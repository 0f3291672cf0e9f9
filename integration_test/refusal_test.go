package integration_test

import (
	"strings"
	"testing"
)

func TestARefusalCarriesAProblemThatNamesTheLimit(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 1/1h search
	respond "welcome"
}`)
	c.get("/").wantStatus(t, 200)
	a := c.get("/")
	p := a.wantProblem(t, 429, "rate_limited", "search")
	if p.RetryAfter != a.number(t, "Retry-After") {
		t.Errorf("retry_after: got %d, the header says %d", p.RetryAfter, a.number(t, "Retry-After"))
	}
}

// Whoever looks, client or operator, learns which of several limits refused.
func TestARefusalNamesItsLimitEverywhere(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, strings.Replace(trusting, "{\n", "{\n\tmetrics\n\tdebug\n", 1)+`
:{$PORT} {
	log
	rate_limit {
		zone wide {
			limit 100/1d
		}
		zone narrow {
			limit 1/1d
		}
		zone other {
			limit 50/1d
		}
	}
	respond "welcome"
}`, backend)
		c.get("/").wantStatus(t, 200)
		a := c.get("/")
		if p := a.wantProblem(t, 429, "rate_limited", "narrow"); !strings.Contains(p.Detail, "narrow") {
			t.Errorf("the body says %q", p.Detail)
		}
		a.wantNumber(t, "X-RateLimit-Limit", 1)
		if left := a.remaining(t, "narrow"); left != 0 {
			t.Errorf("RateLimit: %d left of the limit that refused", left)
		}
		c.wantLogged([]any{"narrow", "allowed", 0, "anonymous"}, []any{"narrow", "blocked", 0, "anonymous"})
		for _, line := range [][]string{{"rate limit exceeded", `"zone":"narrow"`}, {`"name":"rate_limit_exceeded"`, `"zone":"narrow"`}} {
			eventually(t, "it is logged", func() bool { return len(c.log.lines(line...)) == 1 })
		}
		c.metrics().wantRequests(t, map[string]float64{"wide|anonymous|allowed": 1, "narrow|anonymous|allowed": 1, "other|anonymous|allowed": 1, "narrow|anonymous|blocked": 1})
	})
}

func TestTheCorrelationIDIsTheRequestsWhenItIsSaneElseMade(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 0/1h never
	respond "welcome"
}`)
	for _, sane := range []string{"0af7651916cd43dd8448eb211c80319c", "018f3b2c-7a4e-7c3e-9b1a-3f2d1c0b9a88", "req_42.A"} {
		a := c.get("/", with("X-Correlation-Id", sane))
		if got := a.problem(t).CorrelationID; got != sane {
			t.Errorf("correlation id: got %q, want %q", got, sane)
		}
	}
	made := make(map[string]bool)
	for _, bad := range []string{"", strings.Repeat("a", 5000), `"><script>alert(1)</script>`, "two words", "grüße", "a\tb", "quote\"d"} {
		var options []option
		if bad != "" {
			options = append(options, with("X-Correlation-Id", bad))
		}
		id := c.get("/", options...).problem(t).CorrelationID
		if id == bad || made[id] || len(id) < 16 || len(id) > 64 {
			t.Errorf("for %.40q: got the id %q, want a fresh one", bad, id)
		}
		made[id] = true
	}
}

func TestHandleErrorsWritesTheBodyOfTheSite(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 1/1h search
	respond "welcome"
	handle_errors {
		respond "own page: {err.status_code} zone={http.rate_limit.zone} exceeded={http.rate_limit.exceeded.name} wait={http.rate_limit.retry_after} limit={http.rate_limit.limit} left={http.rate_limit.remaining}"
	}
}`)
	c.get("/").wantStatus(t, 200)
	a := c.get("/").wantStatus(t, 429)
	if want := "own page: 429 zone=search exceeded=search wait=" + a.header.Get("Retry-After") + " limit=1 left=0"; a.body != want {
		t.Errorf("body: got %q, want %q", a.body, want)
	}
	if got := a.header.Get("Content-Type"); strings.Contains(got, "problem") {
		t.Errorf("Content-Type: got %q for the site's own text", got)
	}
	a.wantNumber(t, "X-RateLimit-Limit", 1)
}

// Sites of one port share a server, and with it Caddy's error routes; each
// must get what its own block says.
func TestHandleErrorsOfOneSiteDoesNotTakeTheBodyOfAnother(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
http://own.test:{$PORT} {
	rate_limit 0/1h own
	handle_errors {
		respond "own page"
	}
}
http://plain.test:{$PORT} {
	rate_limit 0/1h plain
}
http://later.test:{$PORT} {
	rate_limit 0/1h later
	handle_errors 5xx {
		respond "something broke"
	}
}
http://some.test:{$PORT} {
	rate_limit 0/1h some
	handle_errors 404 429 {
		respond "some page"
	}
}`)
	for site, body := range map[string]string{"own.test": "own page", "some.test": "some page"} {
		if a := c.get("/", host(site)).wantStatus(t, 429); a.body != body {
			t.Errorf("%s: body %q, want %q", site, a.body, body)
		}
	}
	c.get("/", host("plain.test")).wantProblem(t, 429, "rate_limited", "plain")
	c.get("/", host("later.test")).wantProblem(t, 429, "rate_limited", "later")
}

func TestAHandlerWithinHandleAndHandlePathAnswersAsOutside(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	handle_path /api/* {
		rate_limit 1/1h api
		respond "api"
	}
	handle {
		respond "site"
	}
}`)
	c.get("/api/x").wantStatus(t, 200)
	c.get("/api/y").wantProblem(t, 429, "rate_limited", "api")
	c.get("/").wantStatus(t, 200).wantNoHeader(t, limitFields...)
}

func TestHeadersSetBeforeTheLimitSurviveARefusal(t *testing.T) {
	t.Parallel()
	for name, errors := range map[string]string{"problem": "", "own page": "handle_errors {\n respond \"own page\"\n }\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCaddy(t, `
:{$PORT} {
	header Access-Control-Allow-Origin https://app.example.com
	header Vary Origin
	rate_limit 0/1h never
	respond "welcome"
	`+errors+`
}`)
			a := c.get("/", with("Origin", "https://app.example.com")).wantStatus(t, 429)
			if got := a.header.Get("Access-Control-Allow-Origin"); got != "https://app.example.com" {
				t.Errorf("Access-Control-Allow-Origin: got %q", got)
			}
			if got := a.header.Get("Vary"); got != "Origin" {
				t.Errorf("Vary: got %q", got)
			}
		})
	}
}

func TestPreflightRequestsCanBeExempt(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit {
		zone api {
			limit 2/1h
		}
		exempt {
			method OPTIONS
			header Access-Control-Request-Method *
		}
	}
	respond "welcome"
}`)
	preflight := []option{method("OPTIONS"), with("Origin", "https://app.example.com"), with("Access-Control-Request-Method", "PUT")}
	c.sequence(10, "/", preflight...).want(t, tally{200: 10})
	c.get("/", preflight...).wantNoHeader(t, limitFields...)
	c.sequence(3, "/").want(t, tally{200: 2, 429: 1})
	c.get("/", method("OPTIONS")).wantStatus(t, 429)
	c.get("/", preflight...).wantStatus(t, 200)
}

func TestSeveralExemptionsAreAlternatives(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit {
		zone api {
			limit 0/1h
		}
		exempt {
			path /healthz
		}
		exempt {
			header X-Internal yes
		}
	}
	respond "welcome"
}`)
	c.get("/healthz").wantStatus(t, 200)
	c.get("/", with("X-Internal", "yes")).wantStatus(t, 200)
	c.get("/").wantStatus(t, 429)
}

func TestPlaceholdersTellTheDecisionToLaterHandlers(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, tiered+`
:{$PORT} {
	route {
		rate_limit {
			tiers
			zone search {
				limit 5/1h
			}
		}
		header X-Seen "{http.rate_limit.decision} {http.rate_limit.zone} {http.rate_limit.limit} {http.rate_limit.remaining} {http.rate_limit.reset} {http.rate_limit.identity} {http.rate_limit.tier}"
		header X-Refused "[{http.rate_limit.retry_after}{http.rate_limit.exceeded.name}]"
		respond "welcome"
	}
}`, backend)
		a := c.get("/", with("X-API-Key", acmeKey)).wantStatus(t, 200)
		want := "allowed search 5 4 " + a.header.Get("X-RateLimit-Reset") + " k_acme FREE"
		if got := a.header.Get("X-Seen"); got != want {
			t.Errorf("placeholders: got %q, want %q", got, want)
		}
		if got := a.header.Get("X-Refused"); got != "[]" {
			t.Errorf("placeholders of a refusal: got %q, want none", got)
		}
	})
}

func TestPlaceholdersOfARefusalTellTheZoneThatRefused(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit {
		zone wide {
			limit 100/1h
		}
		zone narrow {
			limit 1/1h
		}
	}
	respond "welcome"
	handle_errors {
		respond "{http.rate_limit.decision} {http.rate_limit.zone} {http.rate_limit.exceeded.name} {http.rate_limit.limit} {http.rate_limit.remaining} {http.rate_limit.reset} {http.rate_limit.retry_after}"
	}
}`, backend)
		c.get("/", from("203.0.113.9")).wantStatus(t, 200)
		a := c.get("/", from("203.0.113.9")).wantStatus(t, 429)
		want := "blocked narrow narrow 1 0 " + a.header.Get("X-RateLimit-Reset") + " " + a.header.Get("Retry-After")
		if a.body != want {
			t.Errorf("placeholders: got %q, want %q", a.body, want)
		}
	})
}

func TestAClientThatNothingElseIdentifiesHasItsAddressAsIdentity(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, trusting+`
:{$PORT} {
	rate_limit 5/1h search
	respond "{http.rate_limit.identity}"
}`)
	if a := c.get("/", from("203.0.113.9")); a.body != "203.0.113.9" {
		t.Errorf("identity: got %q, want the address", a.body)
	}
}

func TestTheLimitStandsBeforeAuthentication(t *testing.T) {
	t.Parallel()
	// The hash is of the word "hiccup", by bcrypt at its cheapest.
	c := startCaddy(t, `
:{$PORT} {
	basic_auth {
		bob $2a$04$sGh9vbA.TA2kyoEwXezvLOmNX4PLs1uaNy9iqSSzFBJrfksgwJjTy
	}
	rate_limit 3/1h login
	respond "welcome"
}`)
	c.sequence(5, "/").want(t, tally{401: 3, 429: 2})
}

func TestHeadRequestsGetTheHeadersAndNoBody(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `
:{$PORT} {
	rate_limit 1/1h login
	respond "welcome"
}`)
	c.get("/", method("HEAD")).wantStatus(t, 200)
	a := c.get("/", method("HEAD")).wantStatus(t, 429)
	if a.body != "" {
		t.Errorf("body: got %q", a.body)
	}
	a.wantNumber(t, "X-RateLimit-Limit", 1)
}
