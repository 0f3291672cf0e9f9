package main

import (
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// requestsMetric counts decisions by zone, tier and status.
const requestsMetric = "caddy_rate_limit_requests_total"

// scrape reads what an instance has counted, as Prometheus would, over all tiers:
// a policy's name has its tier in it.
func scrape(ctx context.Context, url string, into counts) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /metrics: %s", resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return fmt.Errorf("GET /metrics: %w", err)
	}
	into.addFamily(families[requestsMetric])
	return nil
}

// addFamily adds the series that have ever counted.
func (c counts) addFamily(family *dto.MetricFamily) {
	for _, m := range family.GetMetric() {
		n := int(m.GetCounter().GetValue())
		if n == 0 {
			continue
		}
		var r row
		for _, l := range m.GetLabel() {
			switch l.GetName() {
			case "zone":
				r.zone = l.GetValue()
			case "status":
				r.status = l.GetValue()
			}
		}
		c[r] += n
	}
}
