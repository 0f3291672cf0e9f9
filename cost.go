package ratelimit

import (
	"encoding/json"
	"fmt"
)

// Cost is how many units a request takes: a whole number, or text with
// placeholders that becomes one. In JSON a number may stand as itself. Empty is 1.
type Cost string

// UnmarshalJSON reads text or a whole number.
func (c *Cost) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		*c = Cost(text)
		return nil
	}
	if _, err := parseCost(string(b)); err != nil {
		return fmt.Errorf("cost %.40s is not a number of units; write a whole number from 0, or text with a placeholder that becomes one, like \"{http.request.header.Cost}\"", b)
	}
	*c = Cost(b)
	return nil
}

// Interface guards
var _ json.Unmarshaler = (*Cost)(nil)
