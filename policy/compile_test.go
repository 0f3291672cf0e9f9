package policy

import (
	"slices"
	"testing"
	"time"
)

func row(id, tier, route string, count int64, methods ...string) PolicyRecord {
	return PolicyRecord{Version: 1, Policy: Policy{
		ID: id, Tier: tier, Route: route, Methods: methods, Limit: Limit{Count: count, Window: time.Minute}, Cost: 1, Algorithm: TokenBucket, Mode: Enforce,
	}}
}

func spoilt(p PolicyRecord) PolicyRecord {
	p.Limit = Limit{Count: 301, Window: MaxWindow}
	return p
}

// What applies to a tier on a path before and after rows were changed into ones
// that cannot be used.
func TestARefusedRowNeverLoosensALimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, stored []PolicyRecord
		path           string
		want           []string
		refused        int
	}{
		"all can be used":                       {nil, []PolicyRecord{row("a", "T", "*", 9), row("b", "T", "/x", 5)}, "/x", []string{"5/1m", "9/1m"}, 0},
		"a ceiling, which was never used":       {nil, []PolicyRecord{spoilt(row("a", "T", "*", 9))}, "/x", []string{"30/1m"}, 1},
		"a ceiling, which was used":             {[]PolicyRecord{row("a", "T", "*", 9)}, []PolicyRecord{spoilt(row("a", "T", "*", 9))}, "/x", []string{"9/1m"}, 1},
		"a ceiling with a method in small":      {nil, []PolicyRecord{row("a", "T", "*", 9, "get")}, "/x", []string{"30/1m"}, 1},
		"a route, which was never used":         {nil, []PolicyRecord{row("a", "T", "*", 9), spoilt(row("b", "T", "/x", 5))}, "/x", []string{"30/1m", "9/1m"}, 1},
		"a route, which was used":               {[]PolicyRecord{row("b", "T", "/x", 5)}, []PolicyRecord{row("a", "T", "*", 9), spoilt(row("b", "T", "/x", 5))}, "/x", []string{"5/1m", "9/1m"}, 1},
		"a route that became another":           {[]PolicyRecord{row("b", "T", "/x", 5)}, []PolicyRecord{row("b", "T", "/[", 5)}, "/x", []string{"5/1m"}, 1},
		"a route that became one that is taken": {[]PolicyRecord{row("b", "T", "/x", 5)}, []PolicyRecord{row("b", "T", "/[", 5), row("c", "T", "/x", 4)}, "/x", []string{"4/1m"}, 1},
		"a row that replaced one for its route": {[]PolicyRecord{row("b", "T", "/x", 5)}, []PolicyRecord{spoilt(row("c", "T", "/x", 5))}, "/x", []string{"5/1m"}, 1},
		"a route that can match nothing":        {nil, []PolicyRecord{row("a", "T", "*", 9), row("b", "T", "/[", 5)}, "/[", []string{"9/1m"}, 1},
		"a second policy for a route":           {[]PolicyRecord{row("b", "T", "/x", 5)}, []PolicyRecord{row("a", "T", "/X", 50), row("b", "T", "/x", 5)}, "/x", []string{"5/1m"}, 1},
		"a tier that was renamed meanwhile":     {[]PolicyRecord{row("a", "OLD", "*", 9)}, []PolicyRecord{spoilt(row("a", "T", "*", 9))}, "/x", []string{"9/1m"}, 1},
	} {
		s, err := CompileSound([]TierRecord{{Name: "T"}}, c.stored, c.before)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, p := range s.Snapshot.AppendMatches(nil, Client{Tier: "T"}, "GET", c.path) {
			got = append(got, p.Limit.String())
		}
		if len(s.Refused) != c.refused || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v apply, want %v; refused: %v", name, got, c.want, s.Refused)
		}
		for _, r := range s.Refused {
			if r.ID == "" || r.Version != 1 || r.Err == nil || r.Instead == "" {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
}
