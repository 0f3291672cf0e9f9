package memorybackend

import (
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func TestTheCaddyfileSetsTheBound(t *testing.T) {
	for input, want := range map[string]int{
		"memory":                         0,
		"memory {\n}":                    0,
		"memory {\n\tmax_keys 1\n}":      1,
		"memory {\n\tmax_keys 250000\n}": 250_000,
	} {
		var b Backend
		if err := b.UnmarshalCaddyfile(caddyfile.NewTestDispenser(input)); err != nil || b.MaxKeys != want {
			t.Errorf("%q: max_keys %d, error %v; want %d", input, b.MaxKeys, err, want)
		}
	}
}

func TestAMistakeInTheCaddyfileIsAnErrorThatSaysWhatToWrite(t *testing.T) {
	for _, row := range []struct{ input, want string }{
		{"memory 1000", `memory takes no "1000" here; write its settings in a block: memory { max_keys <n> }, at Testfile:1`},
		{"memory {\n\tkeys 5\n}", `memory has no setting "keys"; the only one is max_keys <n>, at Testfile:2`},
		{"memory {\n\tmax_keys\n}", `max_keys needs a number; write max_keys <n>, like max_keys 1000000, at Testfile:2`},
		{"memory {\n\tmax_keys many\n}", `max_keys "many" is not a whole number, or too large; write one like 1000000, at Testfile:2`},
		{"memory {\n\tmax_keys 1e6\n}", `max_keys "1e6" is not a whole number, or too large; write one like 1000000, at Testfile:2`},
		{"memory {\n\tmax_keys 99999999999999999999\n}", `max_keys "99999999999999999999" is not a whole number, or too large; write one like 1000000, at Testfile:2`},
		{"memory {\n\tmax_keys 0\n}", `memory backend: max_keys 0 would keep no counters and so switch every limit off; write a whole number from 1, or leave it out for 1000000, at Testfile:2`},
		{"memory {\n\tmax_keys -1\n}", `memory backend: max_keys -1 would keep no counters and so switch every limit off; write a whole number from 1, or leave it out for 1000000, at Testfile:2`},
		{"memory {\n\tmax_keys 5 6\n}", `max_keys takes one number, and "6" is one too many; write max_keys 5, at Testfile:2`},
		{"memory {\n\tmax_keys 5 {\n\t\tper_zone\n\t}\n}", `max_keys takes no block, and "per_zone" is in one; write max_keys 5, at Testfile:3`},
		{"memory {\n\tmax_keys 5\n\tmax_keys 5\n}", `max_keys is written twice; write it once, at Testfile:3`},
	} {
		err := new(Backend).UnmarshalCaddyfile(caddyfile.NewTestDispenser(row.input))
		if err == nil || err.Error() != row.want {
			t.Errorf("%q:\n got %v\nwant %s", row.input, err, row.want)
		}
	}
}
