package static_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tollgate/ratelimit/policy/static"
)

// Two hashes, well-formed and different.
const (
	acmeSum   = "98bb1f4ca6e0aab9cb8b0dcd4d2a5fa1cb9b1f6e0a0ba1d8c1a1e9e5d6f1a0b2"
	globexSum = "abcdefabcdefabcdefabcdefabcdefabcdefabcdefabcdefabcdefabcdefabcd"
)

// adapt parses "static { ... }" as the provider option does: with the
// dispenser standing on the provider's name, inside another block.
func adapt(t *testing.T, input string) (string, error) {
	t.Helper()
	d := caddyfile.NewTestDispenser("provider " + input)
	if !d.Next() || !d.NextArg() {
		t.Fatalf("no provider in %q", input)
	}
	module, err := caddyfile.UnmarshalModule(d, "rate_limit.providers.static")
	if err != nil {
		return "", err
	}
	if d.Next() && d.Val() != "}" {
		t.Errorf("the parser left %q behind", d.Val())
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetIndent("", "  ")
	if err := enc.Encode(module.(*static.Provider)); err != nil {
		t.Fatal(err)
	}
	return out.String(), nil
}

func TestTheWholeSyntaxAdaptsToJSON(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, input, want string }{
		{
			name: "one tier, one policy",
			input: `static {
				tier anonymous {
					policy * 30/1m
				}
			}`,
			want: `{"tiers":[{"name":"anonymous","policies":[{"route":"*","limit":30,"window":60000000000}]}]}`,
		},
		{
			name: "methods, every option, in any order",
			input: `static {
				tier FREE {
					policy /login POST PUT 5/1m burst 2 algorithm token_bucket cost 2 mode shadow on_error closed
					policy /search 10r/s on_error open cost 0 burst 50
				}
			}`,
			want: `{"tiers":[{"name":"FREE","policies":[
				{"route":"/login","methods":["POST","PUT"],"limit":5,"window":60000000000,"burst":2,"algorithm":"token_bucket","cost":2,"mode":"shadow","on_error":"closed"},
				{"route":"/search","limit":10,"window":1000000000,"burst":50,"cost":0,"on_error":"open"}]}]}`,
		},
		{
			name: "a limit of 0 and a window of days",
			input: `static {
				tier FREE {
					policy /admin/* 0/1m
					policy * 5/1d
				}
			}`,
			want: `{"tiers":[{"name":"FREE","policies":[
				{"route":"/admin/*","limit":0,"window":60000000000},
				{"route":"*","limit":5,"window":86400000000000}]}]}`,
		},
		{
			name: "keys, above the tier they name too, and of a tier nobody defined but everybody has",
			input: `static {
				api_key acme ` + acmeSum + ` PRO
				tier PRO {
					policy * 600/1m
				}
				api_key globex ` + strings.ToUpper(globexSum) + ` anonymous
			}`,
			want: `{"tiers":[{"name":"PRO","policies":[{"route":"*","limit":600,"window":60000000000}]}],
				"api_keys":[{"name":"acme","sha256":"` + acmeSum + `","tier":"PRO"},{"name":"globex","sha256":"` + globexSum + `","tier":"anonymous"}]}`,
		},
		{
			name:  "blocks opened and closed on a line of their own",
			input: "static {\n tier A {\n policy * 1/1s\n }\n\n # a comment\n tier B {\n policy * 2/1s\n }\n}",
			want: `{"tiers":[{"name":"A","policies":[{"route":"*","limit":1,"window":1000000000}]},
				{"name":"B","policies":[{"route":"*","limit":2,"window":1000000000}]}]}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := adapt(t, tt.input)
			if err != nil {
				t.Fatal(err)
			}
			if want := indent(t, tt.want); got != want {
				t.Errorf("got %s\nwant %s", got, want)
			}
			load(t, got) // what adapts also loads
		})
	}
}

func indent(t *testing.T, compact string) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(strings.ReplaceAll(strings.ReplaceAll(compact, "\n", ""), "\t", "")), "", "  "); err != nil {
		t.Fatal(err)
	}
	return out.String() + "\n"
}

// mistake is a block that is wrong, and the whole of what the user reads. The
// first line of the block is line 1.
type mistake struct{ name, input, want string }

func TestEveryMistakeInTheBlockNamesItsLineAndWhatToWrite(t *testing.T) {
	t.Parallel()
	checkMistakes(t, []mistake{
		{
			"no block", "static",
			"the static provider has no tiers; write at least one, like tier anonymous { policy * 30/1m }, at Testfile:1",
		},
		{
			"an empty block", "static {\n}",
			"the static provider has no tiers; write at least one, like tier anonymous { policy * 30/1m }, at Testfile:1",
		},
		{
			"keys without tiers", "static {\n api_key acme " + acmeSum + " anonymous\n}",
			"the static provider has no tiers; write at least one, like tier anonymous { policy * 30/1m }, at Testfile:1",
		},
		{
			"an argument", "static tiers.json {\n tier A {\n policy * 1/1s\n }\n}",
			`static takes no argument "tiers.json"; write its tiers in a block: static { ... }, at Testfile:1`,
		},
		{
			"an unknown word", "static {\n tier A {\n policy * 1/1s\n }\n cache_ttl 5s\n}",
			`unknown word "cache_ttl" in static; write tier or api_key, at Testfile:5`,
		},
		{
			"a policy outside of a tier", "static {\n policy * 1/1s\n}",
			`unknown word "policy" in static; write tier or api_key, at Testfile:2`,
		},
		{
			"a tier without a name", "static {\n tier {\n policy * 1/1s\n }\n}",
			"tier takes one name and a block, not 0 words; write tier FREE { ... }, at Testfile:2",
		},
		{
			"a tier with two names", "static {\n tier FREE PRO {\n policy * 1/1s\n }\n}",
			"tier takes one name and a block, not 2 words; write tier FREE { ... }, at Testfile:2",
		},
		{
			"a tier's name with a space", "static {\n tier \"FREE tier\" {\n policy * 1/1s\n }\n}",
			`tier "FREE tier": a name is printable ASCII without spaces, quotes and backslashes, like FREE, at Testfile:2`,
		},
		{
			"a tier's name that is too long", "static {\n tier " + strings.Repeat("x", 65) + " {\n policy * 1/1s\n }\n}",
			`tier "` + strings.Repeat("x", 65) + `": a name has 1 to 64 characters, like FREE, at Testfile:2`,
		},
		{
			"a tier twice", "static {\n tier A {\n policy * 1/1s\n }\n tier B {\n policy * 1/1s\n }\n tier A {\n policy /x 1/1s\n }\n}",
			"tier A is defined twice; write all its policies in one place, at Testfile:8",
		},
		{
			"a tier without a block", "static {\n tier A\n tier B {\n policy * 1/1s\n }\n}",
			"tier A has no policies; write at least one, like policy * 600/1m, at Testfile:2",
		},
		{
			"a tier with an empty block", "static {\n tier A {\n }\n tier B {\n policy * 1/1s\n }\n}",
			"tier A has no policies; write at least one, like policy * 600/1m, at Testfile:2",
		},
		{
			"an unknown word in a tier", "static {\n tier A {\n policy * 1/1s\n limit 5/1m\n }\n}",
			`unknown word "limit" in tier A; write policy, at Testfile:4`,
		},
		{
			"a word behind a tier's closing brace", "static {\n tier A {\n policy * 1/1s\n } api_key acme " + acmeSum + " A\n}",
			`unknown word "api_key" in tier A; write policy, at Testfile:4`,
		},
	})
}

func TestEveryMistakeInAPolicyNamesItsLineAndWhatToWrite(t *testing.T) {
	t.Parallel()
	var mistakes []mistake
	for _, tt := range []struct{ name, line, want string }{
		{"nothing", `policy`, `tier A: policy has no route and no limit; write policy <route> [<METHOD>...] <count>/<window>, like policy /login POST 5/1m`},
		{"no route", `policy 5/1m`, `tier A: policy 5/1m has no route; write policy * 5/1m for every route, or a path in place of the asterisk`},
		{"an empty route", `policy "" 5/1m`, `tier A: policy : route is empty; write a path like /orders/*, or * for every route`},
		{"a route without a slash", `policy login 5/1m`, `tier A: policy login: route "login" must start with a slash, like /login; or write * for every route`},
		{"a route with a placeholder", `policy /{id} 5/1m`, `tier A: policy /{id}: route "/{id}": paths are matched decoded and cleaned, so a pattern takes no %, braces or double slashes; write the plain path`},
		{"a method before the route", `policy POST /login 5/1m`, `tier A: policy POST: the route comes before its methods; write policy /login POST 5/1m`},
		{"a method in small letters", `policy /login post 5/1m`, `tier A: policy /login post: route /login: "post" is not a method; write one in capitals, like POST`},
		{"two routes", `policy /a /b 5/1m`, `tier A: policy /a: /b is a second route or a limit without a count; a policy takes one route, so give /b a line of its own, or write the limit like 100/1m`},
		{"no limit", `policy /login POST`, `tier A: policy /login has no limit; write <count>/<window> behind the route and its methods, like policy /login 100/1m`},
		{"an option in place of the limit", `policy /login burst 5`, `tier A: policy /login has no limit; write <count>/<window> behind the route and its methods, like policy /login 100/1m`},
		{"a limit without a window", `policy /login 5`, `tier A: policy /login: limit "5" has no window; write <count>/<window>, like 5/1m`},
		{"a limit without a count", `policy /login /1m`, `tier A: policy /login: /1m is a second route or a limit without a count; a policy takes one route, so give /1m a line of its own, or write the limit like 100/1m`},
		{"a count that is not a number", `policy /login five/1m`, `tier A: policy /login: limit "five/1m": count "five" is not a whole number; write <count>/<window>, like 100/1m`},
		{"a negative count", `policy /login -5/1m`, `tier A: policy /login: limit: count -5 is negative; write 0 to deny everything`},
		{"a window of zero", `policy /login 5/0s`, `tier A: policy /login: limit: window 0s must be positive, like 1s or 1m`},
		{"a limit that cannot be counted exactly", `policy * 1/366d burst 1000`, `tier A: policy *: limit 1/366d burst 1000 cannot be counted exactly: its burst of 1000 times 31622400000000 (the window in microseconds, reduced by the count) reaches 2^53; write a smaller burst, a shorter window, or a count that shares more factors with the window`},
		{"a word behind the limit", `policy /login 5/1m POST`, `tier A: policy /login: unknown word "POST" behind the limit; write burst, max_delay, algorithm, cost, mode or on_error`},
		{"a second limit", `policy /login 5/1m 10/1h`, `tier A: policy /login: unknown word "10/1h" behind the limit; write burst, max_delay, algorithm, cost, mode or on_error`},
		{"a delay of another bucket", `policy /login 5/1m max_delay 1s`, `tier A: policy /login: max_delay goes with algorithm leaky_bucket only, not with token_bucket; leave it out`},
		{"a delay that is none", `policy /login 5/1m algorithm leaky_bucket max_delay soon`, `tier A: policy /login: max_delay "soon" is not a duration; write one like max_delay 500ms`},
		{"an option without a value", `policy /login 5/1m burst`, `tier A: policy /login: burst has no value; write burst 50`},
		{"an option with an empty value", `policy /login 5/1m mode ""`, `tier A: policy /login: mode has no value; write mode shadow`},
		{"on_error without a value", `policy /login 5/1m on_error`, `tier A: policy /login: on_error has no value; write on_error open, closed or local`},
		{"an option twice", `policy /login 5/1m burst 5 burst 6`, `tier A: policy /login: burst is written twice; write it once`},
		{"a burst of zero", `policy /login 5/1m burst 0`, `tier A: policy /login: burst "0" is not a whole number from 1; write one, like burst 50`},
		{"a burst with a sign", `policy /login 5/1m burst +6`, `tier A: policy /login: burst "+6" is not a whole number from 1; write one, like burst 50`},
		{"a burst that is too large", `policy /login 5/1m burst 2000000000000`, `tier A: policy /login: limit: burst 2000000000000 is too large; the most is 1000000000000`},
		{"a burst for a limit of 0", `policy /login 0/1m burst 5`, `tier A: policy /login: limit: a count of 0 denies everything, so it takes no burst`},
		{"a cost that is not a number", `policy /login 5/1m cost {size}`, `tier A: policy /login: cost "{size}" is not a whole number from 0; write one, like cost 1`},
		{"a negative cost", `policy /login 5/1m cost -1`, `tier A: policy /login: cost "-1" is not a whole number from 0; write one, like cost 1`},
		{"a cost above the limit", `policy /login 5/1m cost 6`, `tier A: policy /login: cost 6 can never be granted: the limit 5/1m gives at most 5 at once; raise the burst or lower the cost`},
		{"an unknown algorithm", `policy /login 5/1m algorithm gcra`, `tier A: policy /login: unknown algorithm "gcra"; write token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log`},
		{"an unknown mode", `policy /login 5/1m mode dry_run`, `tier A: policy /login: unknown mode "dry_run"; write enforce or shadow`},
		{"an unknown on_error", `policy /login 5/1m on_error pass`, `tier A: policy /login: unknown on_error "pass"; write open, closed or local`},
		{"a block", "policy /login 5/1m {\n burst 5\n }", `policy takes no block; write it on one line`},
		{"an empty block", "policy /login 5/1m {\n }", `policy takes no block; write it on one line`},
		{"a route twice", `policy /FIRST 6/1m`, `tier A: two policies for /first; a route takes one, so merge them or make one route more specific`},
		{"a route and its methods twice", "policy /login POST 6/1m", `tier A: two policies for /login POST; a route takes one, so merge them or make one route more specific`},
	} {
		mistakes = append(mistakes, mistake{
			name:  tt.name,
			input: "static {\n tier A {\n policy /first 1/1s\n policy /login POST 1/1s\n " + tt.line + "\n policy /last 1/1s\n }\n}",
			want:  tt.want + ", at Testfile:5",
		})
	}
	checkMistakes(t, mistakes)
}

func TestEveryMistakeInAnAPIKeyNamesItsLineAndWhatToWrite(t *testing.T) {
	t.Parallel()
	const (
		how     = `printf %s "$KEY" | sha256sum and write the 64 hexadecimal digits it prints`
		ofEmpty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
		notHash = `api_key acme: what should be its SHA-256 is not one; write a hash, never the key: hash the key with ` + how
	)
	var mistakes []mistake
	for _, tt := range []struct{ name, line, want string }{
		{"nothing", `api_key`, `api_key takes a name, a hash and a tier, not 0 words; write api_key <name> <sha256 of the key, hex> <tier>`},
		{"no tier", `api_key acme ` + acmeSum, `api_key takes a name, a hash and a tier, not 2 words; write api_key <name> <sha256 of the key, hex> <tier>`},
		{"what sha256sum prints behind the hash", `api_key acme ` + acmeSum + ` - A`, `api_key takes a name, a hash and a tier, not 4 words; write api_key <name> <sha256 of the key, hex> <tier>`},
		{"an empty name", `api_key "" ` + acmeSum + ` A`, `api_key "": a name is 1 to 64 printable ASCII characters without spaces, like acme`},
		{"a name with a space", `api_key "acme inc" ` + acmeSum + ` A`, `api_key "acme inc": a name is 1 to 64 printable ASCII characters without spaces, like acme`},
		{"a name that is not ASCII", `api_key café ` + acmeSum + ` A`, `api_key "café": a name is 1 to 64 printable ASCII characters without spaces, like acme`},
		{"a name that is too long", `api_key ` + strings.Repeat("x", 65) + ` ` + acmeSum + ` A`, `api_key "` + strings.Repeat("x", 65) + `": a name is 1 to 64 printable ASCII characters without spaces, like acme`},
		{"a name twice", `api_key first ` + acmeSum + ` A`, `api_key first is defined twice; a second key of one client takes a name of its own, like first-2`},
		{"the key itself", `api_key acme tg_s3cret A`, notHash},
		{"a hash that is too short", `api_key acme ` + acmeSum[:62] + ` A`, notHash},
		{"a hash with a digit too many", `api_key acme ` + acmeSum + `0 A`, notHash},
		{"a hash with two digits too many", `api_key acme ` + acmeSum + `00 A`, notHash},
		{"a hash that is not hexadecimal", `api_key acme ` + acmeSum[:63] + `g A`, notHash},
		{"a placeholder", `api_key acme {env.ACME_SUM} A`, `api_key acme: a hash takes no placeholders; write it out, or {$NAME} in a Caddyfile for the environment variable NAME`},
		{"the hash of an unset variable", `api_key acme ` + ofEmpty + ` A`, `api_key acme: this is the SHA-256 of nothing, so the variable was empty when it was hashed; hash the key with ` + how},
		{"a hash twice", `api_key acme ` + globexSum + ` A`, `api_key acme has the same hash as api_key first; give each a key of its own, or delete one`},
		{"an unknown tier", `api_key acme ` + acmeSum + ` PRO`, `api_key acme: there is no tier "PRO"; define it, or write one of: A, B`},
		{"a tier in other letters", `api_key acme ` + acmeSum + ` a`, `api_key acme: there is no tier "a"; define it, or write one of: A, B`},
		{"a block", "api_key acme " + acmeSum + " A {\n }", `api_key takes no block; write it on one line`},
	} {
		mistakes = append(mistakes, mistake{
			name:  tt.name,
			input: "static {\n api_key first " + globexSum + " B\n tier A {\n policy * 1/1s\n }\n " + tt.line + "\n tier B {\n policy * 1/1s\n }\n}",
			want:  tt.want + ", at Testfile:6",
		})
	}
	checkMistakes(t, mistakes)
}

// A raw key in the place of its hash must not reach a log through the error.
func TestAnErrorNeverRepeatsWhatMayBeARawKey(t *testing.T) {
	t.Parallel()
	const secret = "tg_s3cret"
	for _, line := range []string{
		"api_key acme " + secret + " A",
		"api_key acme {" + secret + "} A",
		"api_key acme " + secret + " A extra",
		"api_key acme " + secret,
	} {
		_, err := adapt(t, "static {\n tier A {\n policy * 1/1s\n }\n "+line+"\n}")
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got error %v, want one without the key", line, err)
		}
	}
}

func checkMistakes(t *testing.T, mistakes []mistake) {
	t.Helper()
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			adapted, err := adapt(t, m.input)
			switch {
			case err == nil:
				t.Errorf("adapted to %s\nwant error %s", adapted, m.want)
			case err.Error() != m.want:
				t.Errorf("got error  %s\nwant error %s", err, m.want)
			}
		})
	}
}
