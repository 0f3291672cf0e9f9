package admin_test

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tollgate/ratelimit/admin"
)

// ranking is a Ranker that always says the same.
type ranking struct {
	clients []admin.ActiveClient
	asked   []string
}

func (r *ranking) Top(window time.Duration, n int) (allowed, refused []admin.ActiveClient) {
	r.asked = append(r.asked, fmt.Sprint(window, " ", n))
	return r.clients[:min(n, len(r.clients))], nil
}

func (r *ranking) Since() time.Time { return time.Unix(1_700_000_000, 0) }

func TestTheMostActiveClientsAreShownWithTheNamesOfTheirKeys(t *testing.T) {
	eachStore(t, func(t *testing.T, s *service) {
		created := s.do("POST", "/api-keys", `{"client":"acme","tier":"FREE"}`).want(t, 201)
		id, prefix := created.text("id"), created.text("prefix")
		r := &ranking{clients: []admin.ActiveClient{
			{APIKeyID: id, Tier: "FREE", AtLeast: 12, AtMost: 13},
			{APIKeyID: "k-gone", Tier: "PRO", AtLeast: 5, AtMost: 5},
			{Account: "h_x", Tier: "PRO", AtLeast: 4, AtMost: 4},
			{Address: "203.0.113.7", Tier: "anonymous", AtLeast: 3, AtMost: 3},
		}}
		s.handler = admin.New(admin.Settings{Provider: s.provider, ProviderName: "embedded", Ranker: r, Authenticator: tokens{}, Logger: zap.NewNop()})
		viewer := s.as("bob=VIEWER")
		viewer.do("GET", "/top?window=1h&limit=3", "").want(t, 200,
			`"window":"1h"`, `"counting_since":"2023-11-14T22:13:20Z"`, `"refused":[]`,
			fmt.Sprintf(`"allowed":[{"api_key_id":%q,"client":"acme","prefix":%q,"tier":"FREE","at_least":12,"at_most":13},`+
				`{"api_key_id":"k-gone","tier":"PRO","at_least":5,"at_most":5},`+
				`{"account":"h_x","tier":"PRO","at_least":4,"at_most":4}]`, id, prefix))
		viewer.do("GET", "/top", "").want(t, 200, `"window":"5m"`, `{"address":"203.0.113.7","tier":"anonymous","at_least":3,"at_most":3}`)
		if got, want := fmt.Sprint(r.asked), "[1h0m0s 3 5m0s 10]"; got != want {
			t.Errorf("asked for %s, want %s", got, want)
		}
		viewer.do("GET", "/top?window=2m", "").want(t, 422, "1m", "5m", "1h").wantField(t, "window")
		viewer.do("GET", "/top?limit=101", "").want(t, 422).wantField(t, "limit")
		viewer.do("GET", "/top?window=", "").want(t, 422, "empty").wantField(t, "window")
		viewer.do("GET", "/top?window=5m&limit=", "").want(t, 422, "empty").wantField(t, "limit")
		viewer.do("GET", "/top?window=1m&window=1h", "").want(t, 422, "once").wantField(t, "window")
		viewer.do("GET", "/api-keys?limit=1&limit=2", "").want(t, 422, "once").wantField(t, "limit")
		viewer.do("GET", "/top?window=%zz", "").want(t, 422, "percent-encode")
		s.as("").do("GET", "/top", "").want(t, 401)
		s.as("eve=CLERK").do("GET", "/top", "").want(t, 403)
	})
}
