package integration_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

var observability = filepath.Join(repository, "examples", "observability")

// alertRules are examples/observability/alerts.yml.
type alertRules struct {
	Groups []struct {
		Rules []struct{ Alert, Expr string }
	}
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func TestEveryAlertFiresWhenItShouldAndNotBefore(t *testing.T) {
	t.Parallel()
	promtool, err := testserver.PrometheusProgram("promtool")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "config", "prometheus.yml"}, {"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		check := exec.CommandContext(t.Context(), promtool, args...)
		check.Dir = observability
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	var rules alertRules
	readYAML(t, filepath.Join(observability, "alerts.yml"), &rules)
	var tests struct {
		Tests []struct {
			Name  string
			Exprs []struct {
				Samples []any `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	readYAML(t, filepath.Join(observability, "alerts_test.yml"), &tests)
	var alerts, tested []string
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			alerts = append(alerts, rule.Alert)
		}
	}
	for _, test := range tests.Tests {
		tested = append(tested, test.Name)
		if n := len(test.Exprs); n != 3 || len(test.Exprs[0].Samples) != 0 || len(test.Exprs[1].Samples) == 0 || len(test.Exprs[2].Samples) != 0 {
			t.Errorf("the test of %s does not look before the alert, while it fires and after it has ended", test.Name)
		}
	}
	tested = slices.Compact(tested) // one alert may have several
	if len(alerts) == 0 || !slices.Equal(alerts, tested) {
		t.Errorf("alerts.yml has %q, and alerts_test.yml tests %q", alerts, tested)
	}
}

// query is one expression that an operator sees, and where.
type query struct{ where, expr string }

// dashboard is what of a Grafana dashboard asks something.
type dashboard struct {
	Panels []struct {
		Type, Title string
		Targets     []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

var labelValues = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)

// dashboardQueries are the expressions of the dashboard as Grafana would send them.
func dashboardQueries(t *testing.T) []query {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(observability, "grafana", "dashboards", "tollgate.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	variables := []string{"$__rate_interval", "1m", "$__range", "5m"}
	var all []query
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		variables = append(variables, "$"+v.Name, ".*")
		m := labelValues.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Fatalf("the variable %s is asked for by %q, which this test does not know", v.Name, v.Definition)
		}
		all = append(all, query{"variable " + v.Name, fmt.Sprintf(`%s{%s!=""}`, m[1], m[2])})
	}
	fill := strings.NewReplacer(variables...)
	for _, p := range d.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("the panel %q asks nothing", p.Title)
		}
		for _, target := range p.Targets {
			all = append(all, query{"panel " + p.Title, fill.Replace(target.Expr)})
		}
	}
	for _, q := range all {
		if strings.Contains(q.expr, "$") {
			t.Errorf("%s: an unknown variable in %s", q.where, q.expr)
		}
	}
	return all
}

var threshold = regexp.MustCompile(`\s[<>]\s[0-9.]+\s*$`)

// alertQueries are what the alerts watch, without the thresholds, beyond which a
// healthy run is not.
func alertQueries(t *testing.T) []query {
	t.Helper()
	var rules alertRules
	readYAML(t, filepath.Join(observability, "alerts.yml"), &rules)
	var all []query
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			watched := threshold.ReplaceAllString(rule.Expr, "")
			if watched == rule.Expr {
				t.Errorf("%s does not end in a comparison: %s", rule.Alert, rule.Expr)
			}
			all = append(all, query{"alert " + rule.Alert, watched})
		}
	}
	return all
}

// prometheusFor is the example's Prometheus, which reads one Caddy every second, with
// changes to its alerts: pairs of what stands there and what to put in its place.
func prometheusFor(t *testing.T, c *caddy, changes ...string) *testserver.Prometheus {
	t.Helper()
	files := make(map[string][]byte)
	for _, name := range []string{"prometheus.yml", "alerts.yml"} {
		text, err := os.ReadFile(filepath.Join(observability, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = text
	}
	own := strings.NewReplacer("localhost:2019", c.addr2(), "15s", "1s").Replace(string(files["prometheus.yml"]))
	if !strings.Contains(own, c.addr2()) || strings.Contains(own, "15s") {
		t.Fatalf("prometheus.yml is not as this test expects:\n%s", own)
	}
	files["prometheus.yml"] = []byte(own)
	files["alerts.yml"] = []byte(strings.NewReplacer(changes...).Replace(string(files["alerts.yml"])))
	return testserver.NewPrometheus(t, files)
}

// watchedSite is a site in which everything happens that has a metric.
const watchedSite = `{
	servers {
		trusted_proxies static 127.0.0.1/32 ::1/128
	}
	rate_limit {
		backend {$BACKEND}
		provider {$PROVIDER}
	}
}
http://:{$PORT} {
	rate_limit {
		zone address {
			limit 20/1h
		}
		zone stricter {
			limit 5/1h
			mode shadow
		}
		identify {
			api_key header X-API-Key
			unknown reject
		}
		tiers
	}
	respond "passed"
}
http://:{$PORT2} {
	handle /metrics {
		metrics
	}
	handle {
		rate_limit_admin {
			jwt {
				secret ` + adminSecret + `
			}
		}
	}
}`

func TestEveryQueryOfTheDashboardAndTheAlertsReturnsData(t *testing.T) {
	t.Parallel()
	queries := slices.Concat(dashboardQueries(t), alertQueries(t))
	if len(queries) < 30 {
		t.Fatalf("found only %d queries", len(queries))
	}
	redis := testserver.NewRedis(t)
	c := startCaddy(t, watchedSite, redisBackend(redis), postgresProvider(testserver.NewPostgres(t).NewDatabase(t)))
	prometheus := prometheusFor(t, c)
	eventually(t, "Prometheus reads the metrics", func() bool { return has(t, prometheus, `up{job="tollgate"} == 1`) })

	o := observe(t, c)
	o.traffic()
	eventually(t, "Prometheus has read what was decided", func() bool { return has(t, prometheus, `sum(caddy_rate_limit_requests_total) > 0`) })
	o.change()
	o.traffic()
	redis.Kill()
	o.traffic()
	eventually(t, "the breaker is open, and Prometheus knows it", func() bool {
		o.traffic()
		return has(t, prometheus, `caddy_rate_limit_breaker_state > 0 and on (instance) sum by (instance) (increase(caddy_rate_limit_fallback_total[5m])) > 0`)
	})
	for _, q := range queries {
		deadline := time.Now().Add(patience)
		for !has(t, prometheus, q.expr) {
			if time.Now().After(deadline) {
				t.Errorf("%s: no data for %s", q.where, q.expr)
				break
			}
			o.traffic()
		}
	}
}

// has reports whether an expression has a value that is a number.
func has(t *testing.T, prometheus *testserver.Prometheus, expression string) bool {
	t.Helper()
	samples, err := prometheus.Query(expression)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(samples, func(s testserver.Sample) bool { return !math.IsNaN(s.Value) })
}

// observation is the clients and the admin of that site.
type observation struct {
	t   *testing.T
	c   *caddy
	m   *manager
	key string
	n   int
}

func observe(t *testing.T, c *caddy) *observation {
	m := manage(c)
	return &observation{t: t, c: c, m: m, key: m.create("/api-keys", `{"client": "acme", "tier": "PRO"}`).Key}
}

// traffic is allowed, would be refused, is refused, and has keys that are known and
// unknown.
func (o *observation) traffic() {
	o.n++
	fresh := from(fmt.Sprintf("10.0.%d.%d", o.n/200, 1+o.n%200))
	for range 25 {
		o.c.get("/", fresh, apiKey(o.key))
	}
	o.c.get("/", from("10.1.0.1"), apiKey("nobody's key"))
}

// change is what an admin does.
func (o *observation) change() {
	o.m.patch("/policies/default-pro", `{"limit": %d}`, 100_000+o.n)
}
