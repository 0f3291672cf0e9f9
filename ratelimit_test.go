package ratelimit_test

import (
	"strings"
	"testing"
)

// handlerJSON is a configuration with one server whose only handler is the one
// given, and with the app given.
func handlerJSON(app, handler string) []byte {
	return []byte(`{"admin":{"disabled":true},"apps":{"rate_limit":` + app + `,"http":{"servers":{"s":{"listen":["127.0.0.1:0"],
		"routes":[{"handle":[` + handler + `]}]}}}}}`)
}

func TestEachMistakeInJSONIsAnErrorThatSaysWhatToWrite(t *testing.T) {
	for _, c := range []struct{ name, app, handler, want string }{
		{"nothing", `{}`, `{"handler":"rate_limit"}`, "rate_limit limits nothing; write a limit"},
		{"zone without a name", `{}`, `{"handler":"rate_limit","zones":[{"limit":1,"window":"1s"}]}`, "a zone needs a name"},
		{"zone without a limit", `{}`, `{"handler":"rate_limit","zones":[{"name":"a","window":"1s"}]}`, "zone a: limit is missing"},
		{"zone without a window", `{}`, `{"handler":"rate_limit","zones":[{"name":"a","limit":1}]}`, "zone a: limit: window 0s must be positive"},
		{"negative limit", `{}`, `{"handler":"rate_limit","zones":[{"name":"a","limit":-1,"window":"1s"}]}`, "count -1 is negative"},
		{"unknown field", `{}`, `{"handler":"rate_limit","zones":[{"name":"a","limits":1,"window":"1s"}]}`, `unknown field "limits"`},
		{"a name that a policy may have", `{}`, `{"handler":"rate_limit","zones":[{"name":"anonymous *","limit":1,"window":"1s"}]}`, "one that a policy may have"},
		{"a name that a key's policy may have", `{}`, `{"handler":"rate_limit","zones":[{"name":"api_key k1 /x GET","limit":1,"window":"1s"}]}`, "one that a policy may have"},
		{"a cost that is a fraction", `{}`, `{"handler":"rate_limit","zones":[{"name":"a","limit":1,"window":"1s","cost":1.5}]}`, "cost 1.5 is not a number of units; write a whole number"},
		{"a cost that is a list", `{}`, `{"handler":"rate_limit","zones":[{"name":"a","limit":1,"window":"1s","cost":[1]}]}`, "cost [1] is not a number of units"},
		{"a cost above the limit", `{}`, `{"handler":"rate_limit","zones":[{"name":"a","limit":1,"window":"1s","cost":3}]}`, "cost 3 can never be granted"},
		{"undefined reference", `{}`, `{"handler":"rate_limit","zones":[{"name":"a"}]}`, "zone a has no limit here"},
		{"zone twice", `{}`, `{"handler":"rate_limit","zones":[{"name":"a","limit":1,"window":"1s"},{"name":"a","limit":1,"window":"1s"}]}`, "zone a stands here twice"},
		{
			"zones that differ in two handlers", `{}`,
			`{"handler":"rate_limit","zones":[{"name":"a","limit":1,"window":"1s"}]},{"handler":"rate_limit","zones":[{"name":"a","limit":2,"window":"1s"}]}`,
			"zone a is defined differently in two places (rate_limit handler 1; rate_limit handler 2): they have limit 1 and 2. ",
		},
		{
			"zone that differs from the app's", `{"zones":[{"name":"a","limit":1,"window":"1s"}]}`,
			`{"handler":"rate_limit","zones":[{"name":"a","limit":2,"window":"1s"}]}`,
			"(the global option rate_limit; rate_limit handler 1)",
		},
		{"app's zone without a limit", `{"zones":[{"name":"a"}]}`, `{"handler":"rate_limit","zones":[{"name":"a"}]}`, "the global option defines zones, so this one needs a limit"},
		{"jitter", `{}`, `{"handler":"rate_limit","jitter":2,"zones":[{"name":"a","limit":1,"window":"1s"}]}`, "jitter 2 is out of range"},
		{"headers", `{}`, `{"handler":"rate_limit","headers":["y"],"zones":[{"name":"a","limit":1,"window":"1s"}]}`, `headers "y" is not known`},
		{"on_error", `{}`, `{"handler":"rate_limit","on_error":"panic","zones":[{"name":"a","limit":1,"window":"1s"}]}`, `unknown on_error "panic"`},
		{"source of two kinds", `{}`, `{"handler":"rate_limit","identify":{"sources":[{"placeholder":"{a}","api_key":{"in":"header","name":"X"}}]},"zones":[{"name":"a","limit":1,"window":"1s"}]}`, "a source of identify is one of"},
		{"unknown backend", `{"backend":{"backend":"memcached"}}`, `{"handler":"rate_limit","zones":[{"name":"a","limit":1,"window":"1s"}]}`, "rate_limit.backends.memcached"},
		{"other limiter's zone without a window", `{}`, `{"handler":"rate_limit","rate_limits":{"a":{"max_events":0}}}`, "zone a: window is missing"},
		{"other limiter's zone that is null", `{}`, `{"handler":"rate_limit","rate_limits":{"a":null}}`, "zone a: it is null"},
		{"other limiter's zone of the same name", `{}`, `{"handler":"rate_limit","zones":[{"name":"a","limit":1,"window":"1s"}],"rate_limits":{"a":{"max_events":0,"window":"1m"}}}`, "zone a stands here twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := provision(handlerJSON(c.app, c.handler))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant something with %s", err, c.want)
			}
		})
	}
}

func TestACostMayBeANumberOrTextInJSON(t *testing.T) {
	for _, cost := range []string{`3`, `"3"`, `"{http.request.header.Cost}"`, `0`} {
		if err := provision(handlerJSON(`{}`, `{"handler":"rate_limit","zones":[{"name":"a","limit":5,"window":"1s","cost":`+cost+`}]}`)); err != nil {
			t.Errorf("cost %s: %v", cost, err)
		}
	}
}

func TestTheOtherLimitersJSONLoadsUnchanged(t *testing.T) {
	err := provision(handlerJSON(`{}`, `{"handler":"rate_limit","rate_limits":{"static":{"match":[{"method":["GET"]}],"key":"static","window":"1m","max_events":10}},
		"jitter":0.2,"sweep_interval":"1m","distributed":{"read_interval":"5s","write_interval":"5s"},"storage":{"module":"file_system","root":"/tmp"},"log_key":true}`))
	if err != nil {
		t.Error(err)
	}
}
