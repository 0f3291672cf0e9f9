package redisbackend_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tollgate/ratelimit/redisbackend"
)

func TestACaddyfileMeansThisJSON(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ input, want string }{
		"nothing":           {`redis`, `{}`},
		"a url":             {`redis redis://localhost:6379`, `{"urls":["redis://localhost:6379"]}`},
		"urls in two forms": {"redis redis://a {\nurl redis://b redis://c\nurl redis://d\n}", `{"urls":["redis://a","redis://b","redis://c","redis://d"]}`},
		"a placeholder":     {`redis {env.REDIS_URL}`, `{"urls":["{env.REDIS_URL}"]}`},
		"tls alone":         {"redis {\ntls\n}", `{"tls":{}}`},
		"everything": {
			`redis rediss://localhost {
				timeout         20ms
				key_prefix      shop
				username        limiter
				password        {env.REDIS_PASSWORD}
				db              3
				max_connections 8
				tls {
					ca          ca.pem
					cert        cert.pem
					key         key.pem
					server_name redis.example
					insecure_skip_verify
				}
			}`,
			`{"urls":["rediss://localhost"],"timeout":20000000,"key_prefix":"shop","username":"limiter","password":"{env.REDIS_PASSWORD}","db":3,` +
				`"tls":{"ca":"ca.pem","cert":"cert.pem","key":"key.pem","server_name":"redis.example","insecure_skip_verify":true},"max_connections":8}`,
		},
		"a sentinel": {"redis redis://a redis://b {\nsentinel mymaster\ndb 2\n}", `{"urls":["redis://a","redis://b"],"sentinel":"mymaster","db":2}`},
	} {
		b := new(redisbackend.Backend)
		if err := b.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := json.Marshal(b)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", name, got, err, tt.want)
		}
	}
}

// Each mistake has its place and says what to write instead.
func TestAMistakeInACaddyfileIsAnErrorWithItsPlaceAndARemedy(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		"redis {\nhost localhost\n}":                    "unknown option \"host\" of backend redis; write url, timeout, key_prefix, username, password, db, sentinel, tls or max_connections, at Testfile:2",
		"redis {\ntimeout\n}":                           "timeout has no value; write a duration like 50ms, at Testfile:2",
		"redis {\ntimeout 0\n}":                         "timeout 0s is out of range; write a duration from 1ms to 10s, like 50ms, at Testfile:2",
		"redis {\ntimeout -5ms\n}":                      "timeout -5ms is out of range; write a duration from 1ms to 10s, like 50ms, at Testfile:2",
		"redis {\ntimeout 1h\n}":                        "timeout 1h0m0s is out of range; write a duration from 1ms to 10s, like 50ms, at Testfile:2",
		"redis {\ntimeout 500us\n}":                     "timeout 500µs is out of range; write a duration from 1ms to 10s, like 50ms, at Testfile:2",
		"redis {\ntimeout 50\n}":                        "timeout \"50\" is not a duration; write one like 50ms, at Testfile:2",
		"redis {\ntimeout 50ms\ntimeout 60ms\n}":        "timeout is written twice; write it once, at Testfile:3",
		"redis {\ntimeout 50ms 60ms\n}":                 "timeout takes one value; write a duration like 50ms, in quotes if it has spaces, at Testfile:2",
		"redis {\ntimeout 50ms {\nx\n}\n}":              "timeout takes no block; end the line after its value, at Testfile:2",
		"redis {\npassword\n}":                          "password has no value; write a password, like {env.REDIS_PASSWORD}, at Testfile:2",
		"redis {\npassword \"\"\n}":                     "password has no value; write a password, like {env.REDIS_PASSWORD}, at Testfile:2",
		"redis {\ndb one\n}":                            "db \"one\" is not possible; write the number of a database, like 0, at Testfile:2",
		"redis {\ndb -1\n}":                             "db \"-1\" is not possible; write the number of a database, like 0, at Testfile:2",
		"redis {\nmax_connections 0\n}":                 "max_connections \"0\" is not possible; write a number from 1, like 8, at Testfile:2",
		"redis {\nmax_connections 20000\n}":             "max_connections 20000 is out of range; write a number from 1 to 10000, like 8, at Testfile:3",
		"redis {\nkey_prefix a{b}\n}":                   "",
		"redis {\nkey_prefix \"a b\"\n}":                "key_prefix \"a b\": spaces and braces have a meaning in keys; write a word like ratelimit, at Testfile:3",
		"redis {\nurl\n}":                               "url has no value; write one like redis://localhost:6379, at Testfile:2",
		"redis {\nurl redis://a {\nx\n}\n}":             "url takes no block; end the line after its value, at Testfile:2",
		"redis localhost:6379":                          "url \"localhost:6379\" has no scheme; write redis://localhost:6379, at Testfile:1",
		"redis http://localhost":                        "url \"http://localhost\": unknown scheme; write redis://, rediss:// for TLS, or unix:// for a socket, at Testfile:1",
		"redis redis://":                                "url \"redis://\" has no host; write one like redis://localhost:6379, at Testfile:1",
		"redis redis://:6379":                           "url \"redis://:6379\" has no host; write one like redis://localhost:6379, at Testfile:1",
		"redis redis://localhost:0":                     "url \"redis://localhost:0\": port 0 is out of range; write one from 1 to 65535, at Testfile:1",
		"redis redis://localhost:99999":                 "url \"redis://localhost:99999\": port 99999 is out of range; write one from 1 to 65535, at Testfile:1",
		"redis redis://localhost/x":                     "url \"redis://localhost/x\": the path \"/x\" is not a database number; write one like /0, or leave it out, at Testfile:1",
		"redis redis://localhost?db=1":                  "url \"redis://localhost?***\" carries options; write them into the block instead, at Testfile:1",
		"redis unix://redis.sock":                       "url \"unix://redis.sock\" has no absolute path; write one like unix:///run/redis/redis.sock, at Testfile:1",
		"redis unix:///a redis://b":                     "url \"unix:///a\": a socket leads to one server, not to a Cluster or Sentinel; write redis:// urls, at Testfile:1",
		"redis redis://a redis://a":                     "url \"redis://a\" is written twice; write each node once, at Testfile:1",
		"redis redis://a/1 redis://b":                   "url \"redis://a/1\": a database number goes with one plain server; leave the path out (with sentinel, use the option db), at Testfile:1",
		"redis redis://a/1 {\ndb 2\n}":                  "url \"redis://a/1\" and db 2 name different databases; write one of them, at Testfile:3",
		"redis redis://a redis://b {\ndb 2\n}":          "db 2: a Cluster has only database 0; leave db out, at Testfile:3",
		"redis {\nsentinel mymaster\n}":                 "sentinel mymaster: no sentinel is named; write their urls, like redis://localhost:26379, at Testfile:3",
		"redis {\nsentinel a b\n}":                      "sentinel takes one value; write the name of the master, like mymaster, in quotes if it has spaces, at Testfile:2",
		"redis {\ntls x\n}":                             "tls takes no value, but a block: write tls { ca <pem file> } in lines of their own, or tls alone, at Testfile:2",
		"redis {\ntls {\nfile x\n}\n}":                  "unknown option \"file\" of tls; write ca, cert, key, server_name or insecure_skip_verify, at Testfile:3",
		"redis {\ntls {\nca\n}\n}":                      "ca has no value; write the path of a PEM file, at Testfile:3",
		"redis {\ntls {\nca a\nca b\n}\n}":              "ca is written twice; write it once, at Testfile:4",
		"redis {\ntls {\ncert a\n}\n}":                  "tls: cert and key belong together; write both or neither, at Testfile:5",
		"redis {\ntls {\ninsecure_skip_verify on\n}\n}": "insecure_skip_verify takes no value; write the word alone, or leave it out, at Testfile:3",
		"redis unix:///a {\ntls\n}":                     "url \"unix:///a\": a socket takes no tls; leave it out, at Testfile:3",
		"redis redis://u:s3cret@localhost:x":            "url \"redis://***@localhost:x\" cannot be read; write redis://[<username>:<password>@]<host>:<port>, special characters percent-encoded, or use the options username and password, at Testfile:1",
		"redis redis://:s3/cret@localhost":              "url \"redis://***@localhost\" cannot be read; write redis://[<username>:<password>@]<host>:<port>, special characters percent-encoded, or use the options username and password, at Testfile:1",
		"redis {\npassword s3cret\npassword s3cret\n}":  "password is written twice; write it once, at Testfile:3",
		"redis {\npassword redis://u:s3cret@x extra\n}": "password takes one value; write a password, like {env.REDIS_PASSWORD}, in quotes if it has spaces, at Testfile:2",
	} {
		err := new(redisbackend.Backend).UnmarshalCaddyfile(caddyfile.NewTestDispenser(input))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q\n got: %s\nwant: %s", input, got, want)
		}
		if strings.Contains(got, "s3") {
			t.Errorf("%q: a secret is in %s", input, got)
		}
	}
}
