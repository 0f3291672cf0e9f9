package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// adminTimeout bounds one request to the admin API or for metrics.
const adminTimeout = 30 * time.Second

// window is that of all limits of tiers, so long that nothing comes back.
const window = "30d"

// adminAPI sets a profile's tiers, policies and API keys up.
type adminAPI struct{ url, token string }

// setUp makes what a profile needs and returns the API keys, by client.
func (a adminAPI) setUp(ctx context.Context, p profile) (map[string]string, error) {
	for _, t := range p.tiers {
		if err := a.makeTier(ctx, t); err != nil {
			return nil, err
		}
	}
	keys := map[string]string{unknownKey: unknownKey}
	for _, k := range p.keys {
		var made struct{ Key string }
		if err := a.send(ctx, "POST", "/api-keys", map[string]any{"client": k.client, "tier": k.tier}, &made); err != nil {
			return nil, err
		}
		keys[k.client] = made.Key
	}
	return keys, nil
}

// makeTier makes a tier, or gives one that a new store has other policies.
func (a adminAPI) makeTier(ctx context.Context, t tier) error {
	if !isBuiltIn(t.name) {
		if err := a.send(ctx, "POST", "/tiers", map[string]any{"name": t.name}, nil); err != nil {
			return err
		}
	}
	for _, p := range t.policies {
		method, path := "POST", "/policies"
		body := map[string]any{"tier": t.name, "route": p.route, "limit": p.limit, "window": window}
		if id := builtIn[t.name]; id != "" && p.route == "*" {
			method, path, body = "PATCH", "/policies/"+id, map[string]any{"limit": p.limit, "window": window}
		}
		if err := a.send(ctx, method, path, body, nil); err != nil {
			return err
		}
	}
	return nil
}

// builtIn are the tiers of a new store, and the ids of their policies for *.
var builtIn = map[string]string{
	"anonymous":  "default-anonymous",
	"FREE":       "default-free",
	"PRO":        "default-pro",
	"ENTERPRISE": "default-enterprise",
}

func isBuiltIn(tier string) bool { return builtIn[tier] != "" }

func (a adminAPI) send(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("If-Match", "*")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}
