package static

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// policyOptions are the words that may follow a policy's limit.
var policyOptions = []string{"burst", "max_delay", "algorithm", "cost", "mode", "on_error"}

// parsePolicy reads the words behind "policy". Syntax:
//
//	<route> [<METHOD>...] <count>/<window> [burst <n>] [max_delay <duration>] [algorithm <name>] [cost <n>] [mode <mode>] [on_error <mode>]
func parsePolicy(words []string) (Policy, error) {
	if len(words) == 0 {
		return Policy{}, errors.New("policy has no route and no limit; write policy <route> [<METHOD>...] <count>/<window>, like policy /login POST 5/1m")
	}
	p := Policy{Route: words[0]}
	if _, err := policy.ParseLimit(p.Route); err == nil {
		return p, fmt.Errorf("policy %s has no route; write policy * %s for every route, or a path in place of the asterisk", p.Route, p.Route)
	}
	if _, err := policy.NewRoute("/", p.Route); err == nil {
		return p, fmt.Errorf("policy %s: the route comes before its methods; write policy /login %s 5/1m", p.Route, p.Route)
	}
	words = p.takeMethods(words[1:])
	if len(words) == 0 || slices.Contains(policyOptions, words[0]) {
		return p, fmt.Errorf("policy %s has no limit; write <count>/<window> behind the route and its methods, like policy %s 100/1m", p.Route, p.Route)
	}
	if err := p.parseLimit(words[0]); err != nil {
		return p, fmt.Errorf("policy %s: %w", p.Route, err)
	}
	if err := p.parseOptions(words[1:]); err != nil {
		return p, fmt.Errorf("policy %s: %w", p.Route, err)
	}
	return p, nil
}

// takeMethods takes the words before the limit, which is the first one that
// has a slash or starts with a digit or a sign. It returns the rest.
func (p *Policy) takeMethods(words []string) []string {
	for i, w := range words {
		if slices.Contains(policyOptions, w) || strings.Contains(w, "/") || strings.ContainsAny(w[:min(1, len(w))], "0123456789+-") {
			return words[i:]
		}
		p.Methods = append(p.Methods, w)
	}
	return nil
}

func (p *Policy) parseLimit(word string) error {
	if strings.HasPrefix(word, "/") {
		return fmt.Errorf("%s is a second route or a limit without a count; a policy takes one route, so give %s a line of its own, or write the limit like 100/1m", word, word)
	}
	l, err := policy.ParseLimit(word)
	if err != nil {
		return err
	}
	p.Limit, p.Window = &l.Count, caddy.Duration(l.Window)
	return nil
}

func (p *Policy) parseOptions(words []string) error {
	seen := make(map[string]bool)
	for i := 0; i < len(words); i += 2 {
		option := words[i]
		switch {
		case !slices.Contains(policyOptions, option):
			return fmt.Errorf("unknown word %q behind the limit; write burst, max_delay, algorithm, cost, mode or on_error", option)
		case seen[option]:
			return fmt.Errorf("%s is written twice; write it once", option)
		case i+1 == len(words) || words[i+1] == "":
			return fmt.Errorf("%s has no value; write %s", option, exampleOption(option))
		}
		seen[option] = true
		if err := p.setOption(option, words[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// setOption takes one option of the line; whether words and numbers make sense
// together is checked when the policy is compiled.
func (p *Policy) setOption(option, value string) (err error) {
	switch option {
	case "burst":
		p.Burst, err = parseUnits(option, value, 1)
	case "max_delay":
		p.MaxDelay, err = parseDelay(value)
	case "cost":
		p.Cost = new(int64)
		*p.Cost, err = parseUnits(option, value, 0)
	case "algorithm":
		p.Algorithm, err = policy.ParseAlgorithm(value)
	case "mode":
		p.Mode, err = policy.ParseMode(value)
	case "on_error":
		p.OnError, err = policy.ParseOnError(value)
	}
	return err
}

func parseDelay(value string) (caddy.Duration, error) {
	d, err := policy.ParseWindow(value)
	if err != nil {
		return 0, fmt.Errorf("max_delay %q is not a duration; write one like %s", value, exampleOption("max_delay"))
	}
	return caddy.Duration(d), nil
}

func parseUnits(option, value string, least int64) (int64, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < least || value[0] == '+' {
		return 0, fmt.Errorf("%s %q is not a whole number from %d; write one, like %s", option, value, least, exampleOption(option))
	}
	return n, nil
}

func exampleOption(option string) string {
	return map[string]string{
		"burst":     "burst 50",
		"max_delay": "max_delay 500ms",
		"algorithm": "algorithm token_bucket",
		"cost":      "cost 1",
		"mode":      "mode shadow",
		"on_error":  "on_error open, closed or local",
	}[option]
}
