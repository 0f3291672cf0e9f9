package ratelimit

import (
	"crypto/tls"
	"crypto/x509"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-tollgate/ratelimit/policy"
)

func TestAPlaceholderThatNeverHasAValueIsAnErrorThatNamesTheRightOne(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"{http.request.headre.X-Client}":        "write {http.request.header.X-Client}",
		"{http.request.headers.X-Client}":       "write {http.request.header.X-Client}",
		"{http.request.cokie.session}":          "write {http.request.cookie.session}",
		"{http.request.uri.qery.user}":          "write {http.request.uri.query.user}",
		"{http.request.remote.hst}":             "write {http.request.remote.host}",
		"{http.request.remote_host}":            "write {http.request.remote.host}",
		"{http.request.tls.client.fingerprnt}":  "write {http.request.tls.client.fingerprint}",
		"{http.request.client_ip}":              "write one that Caddy knows",
		"{http.request.uri.path.first}":         "write one that Caddy knows",
		"{http.request.host.labels.-1}":         "write one that Caddy knows",
		"{http.request.tls.client.san.ips.one}": "write one that Caddy knows",
		"{http.request.header.}":                "lacks the name",
		"{http.request.header.X Client}":        "lacks the name",
		"{http.request.cookie.a;b}":             "lacks the name",
		"{http.request.uri.query.}":             "lacks the name",
		"{http.vars.}":                          "lacks the name",
		"{http.rate_limit.identty}":             "write {http.rate_limit.identity} or {http.rate_limit.tier}",
		"{remote_hst}":                          "write {http.request.remote.host}",
		"{client-ip}":                           "write {http.vars.client_ip}",
		"{Client_IP}":                           "write {http.vars.client_ip}",
		"{client_ip}":                           "write {http.vars.client_ip}", // as in JSON, where Caddy expands nothing
		"{header.X-Client}":                     "write {http.request.header.X-Client}",
		"{headre.X-Client}":                     "write {http.request.header.X-Client}",
		"{query.user}":                          "write {http.request.uri.query.user}",
		"{}":                                    "names no placeholder",
		"{a{b}}":                                "names no placeholder",
		strings.Repeat("{a ", 200):              "write placeholders like {client_ip}",
	} {
		err := checkPlaceholders(text)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60s: got %v, want that it says %q", text, err, says)
		}
	}
}

func TestPlaceholdersThatMayHaveAValueLoad(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"http.vars.client_ip", "http.vars.tenant", "http.auth.user.id", "http.regexp.tenant.1", "http.matchers.file.relative",
		"http.request.header.X-Client", "http.request.header.X.Client", "http.request.cookie.session", "http.request.uri.query.my key", "http.request.uri.path.0",
		"http.request.remote", "http.request.remote.host/24,64", "http.request.local", "http.request.local.host", "http.request.local.port", "http.request.uuid", "http.request.body",
		"http.request.duration", "http.request.duration_ms", "http.request.orig_uri.path", "http.request.host.labels.1", "http.request.tls.server_name",
		"http.request.tls.client.fingerprint", "http.request.tls.client.san.dns_names.0", "http.request.tls.client.subject",
		"http.rate_limit.identity", "http.rate_limit.exceeded.name", "http.reverse_proxy.header.Remote-User", "http.error.status_code", "env.HOME", "file./etc/hostname", "system.hostname", "time.now.year",
	} {
		if err := checkPlaceholders("{" + name + "}"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if foreign := foreignPlaceholders("{" + name + "}"); len(foreign) > 0 {
			t.Errorf("%s: taken for foreign", name)
		}
	}
}

// Every placeholder that is suggested is one that Caddy knows.
func TestEverySuggestionIsRight(t *testing.T) {
	t.Parallel()
	for _, right := range shorthands {
		if strings.HasSuffix(right, ".") {
			right += "0"
		}
		meant := expand(right)
		if meant == "" {
			t.Errorf("Caddy has no shorthand {%s}", right)
		} else if err := checkPlaceholder(meant); err != nil {
			t.Errorf("{%s} becomes {%s}: %v", right, meant, err)
		}
	}
	for _, right := range requestNames {
		if strings.HasSuffix(right, "san.") {
			right += "ips"
		} else if strings.HasSuffix(right, ".") {
			right += "0"
		}
		if err := checkPlaceholder(requestPlaceholders + right); err != nil {
			t.Error(err)
		}
	}
}

func TestWhatOnlyOtherModulesSetIsToldAndLoads(t *testing.T) {
	t.Parallel()
	const text = "{tenant} {geo.country} {http.auth.session.id} {http.auth.user.id} {http.vars.client_ip}"
	if err := checkPlaceholders(text); err != nil {
		t.Error(err)
	}
	want := []string{"{tenant}", "{geo.country}", "{http.auth.session.id}"}
	if got := foreignPlaceholders(text); !slices.Equal(got, want) {
		t.Errorf("foreign: got %q, want %q", got, want)
	}
}

// Caddy describes an empty certificate for those who show none, which would be one client.
func TestClientsWithoutACertificateAreNotOneClient(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fingerprint", "serial", "subject", "issuer", "certificate_pem", "san.dns_names", "public_key_sha256"} {
		for _, beginning := range []string{certificatePlaceholders, "http.request.tls.CLIENT."} {
			key := "{" + beginning + name + "}"
			first, second := request(t, "192.0.2.7", nil), request(t, "192.0.2.8", nil)
			first.r.TLS, second.r.TLS = &tls.ConnectionState{HandshakeComplete: true}, &tls.ConnectionState{HandshakeComplete: true}
			for e, want := range map[*evaluation]string{first: "192.0.2.7", second: "192.0.2.8"} {
				if got, _ := identityOf(t, key, "", e); got != want {
					t.Errorf("zone by %s: got %q, want %q", key, got, want)
				}
				if f, present := sourceOf(t, key)(t.Context(), e.r, e.repl); present {
					t.Errorf("identify by %s: got %q, want that it is not present", key, f.client.Identity)
				}
			}
		}
	}
	shown := request(t, "192.0.2.7", nil)
	shown.r.TLS = &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{{Raw: []byte("acme")}}}
	if got, _ := identityOf(t, "{http.request.tls.client.fingerprint}", "", shown); got == "192.0.2.7" {
		t.Error("a certificate that was shown names nobody")
	}
}

func sourceOf(t *testing.T, text string) clientSource {
	t.Helper()
	k, err := newSourceTemplate(text)
	if err != nil {
		t.Fatal(err)
	}
	return placeholderSource(k)
}

func TestAPlaceholderOfIdentifyKeepsItsPartsApart(t *testing.T) {
	t.Parallel()
	const text = "user-{http.request.header.X}{http.request.header.Y}"
	identity := func(address, x, y string) string {
		e := request(t, address, map[string]string{"X": x, "Y": y})
		f, _ := sourceOf(t, text)(t.Context(), e.r, e.repl)
		return f.client.Identity
	}
	for _, c := range []struct {
		name, got, want string
	}{
		{"all parts", identity("192.0.2.7", "ab", "c"), policy.HashIdentity("ab", "c")},
		{"the same letters, cut elsewhere", identity("192.0.2.7", "a", "bc"), policy.HashIdentity("a", "bc")},
		{"the address joins what is empty in part", identity("192.0.2.7", "a", ""), policy.HashIdentity("a", "", "192.0.2.7")},
		{"text alone names nobody", identity("192.0.2.7", "", ""), ""},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, c.got, c.want)
		}
	}
}

// FuzzPlaceholders looks for a text that cannot be judged, and for a suggestion that would itself
// be refused.
func FuzzPlaceholders(f *testing.F) {
	for _, text := range []string{
		"{http.request.headre.X}", "{client-ip}", "{http.request.remote.host/x,y}", "{http.request.tls.client.san.ips.9}", `\{a}{`, "{header.}", "{}", "{http.request.uri.path.-1}",
	} {
		f.Add(text)
	}
	suggestion := regexp.MustCompile(`; write \{([^}]+)\}`)
	f.Fuzz(func(t *testing.T, text string) {
		err := checkPlaceholders(text)
		foreignPlaceholders(text)
		if err == nil {
			return
		}
		for _, m := range suggestion.FindAllStringSubmatch(err.Error(), -1) {
			if m[1] != "client_ip" && checkPlaceholder(m[1]) != nil {
				t.Errorf("%q: %v: {%s} is refused too", text, err, m[1])
			}
		}
	})
}
