package testserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// prometheusTimeout bounds one question to Prometheus.
const prometheusTimeout = 10 * time.Second

// Prometheus is a running Prometheus.
type Prometheus struct {
	dir  string
	port int
	proc *process
}

// NewPrometheus starts a Prometheus for a test, with the named files in its
// folder, of which prometheus.yml is its configuration, and stops it at the
// test's end. It fails the test if that is not possible.
func NewPrometheus(tb testing.TB, files map[string][]byte) *Prometheus {
	tb.Helper()
	p := &Prometheus{dir: tb.TempDir()}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(p.dir, name), content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	if err := p.start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.proc.stop)
	return p
}

// PrometheusProgram finds prometheus or promtool.
func PrometheusProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is not installed; run `make deps` or apt-get install prometheus (%w)", name, err)
	}
	return path, nil
}

func (p *Prometheus) start() error {
	bin, err := PrometheusProgram("prometheus")
	if err != nil {
		return err
	}
	for range startAttempts {
		if p.port, err = freePort(); err != nil {
			return err
		}
		if err = p.spawn(bin); err == nil {
			return nil
		}
	}
	return err
}

func (p *Prometheus) spawn(bin string) error {
	proc, err := startProcess(bin, "--config.file="+filepath.Join(p.dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(p.dir, "data"),
		"--web.listen-address="+p.addr(), "--log.level=warn")
	if err != nil {
		return err
	}
	if err := proc.waitReady(p.ready); err != nil {
		proc.kill()
		return err
	}
	p.proc = proc
	return nil
}

func (p *Prometheus) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

func (p *Prometheus) ready() error { return p.get("/-/ready", nil) }

// Sample is one series of an answer, at one time.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query evaluates an expression now. What has no value now is not in the answer.
func (p *Prometheus) Query(expression string) ([]Sample, error) {
	var answer struct {
		Data struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Value  [2]any // seconds, text
			}
		}
	}
	if err := p.get("/api/v1/query?query="+url.QueryEscape(expression), &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", expression, err)
	}
	var all []Sample
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", expression, err)
		}
		all = append(all, Sample{r.Metric, value})
	}
	return all, nil
}

// get asks for a path; into may be nil.
func (p *Prometheus) get(path string, into any) error {
	ctx, cancel := context.WithTimeout(context.Background(), prometheusTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr()+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("prometheus: %s", resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
