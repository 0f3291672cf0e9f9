package jwtauth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// payload is what a token claims, read strictly: every name once, numbers as they
// are written, times that are times.
type payload struct {
	values    map[string]any
	expires   *jwt.NumericDate
	notBefore *jwt.NumericDate
	audience  jwt.ClaimStrings
	issuer    string
}

// UnmarshalJSON reads the claims of a token.
func (p *payload) UnmarshalJSON(text []byte) (err error) {
	if p.values, err = strictObject(text); err != nil {
		return err
	}
	if p.expires, err = p.date("exp"); err != nil {
		return err
	}
	if p.notBefore, err = p.date("nbf"); err != nil {
		return err
	}
	if p.issuer, err = p.optionalText("iss"); err != nil {
		return err
	}
	p.audience, err = p.texts("aud")
	return err
}

// endOfTime is the year 10000, in Unix seconds: later times are no times.
const endOfTime = 253402300800

// date reads a time in Unix seconds, nil if there is none.
func (p *payload) date(claim string) (*jwt.NumericDate, error) {
	value, ok := p.values[claim]
	if !ok {
		return nil, nil
	}
	number, ok := value.(json.Number)
	if !ok {
		return nil, fmt.Errorf("%s is not a number", claim)
	}
	seconds, err := strconv.ParseFloat(number.String(), 64)
	if err != nil || !(seconds >= 0 && seconds < endOfTime) {
		return nil, fmt.Errorf("%s is not a time", claim)
	}
	whole, fraction := math.Modf(seconds)
	return &jwt.NumericDate{Time: time.Unix(int64(whole), int64(fraction*1e9))}, nil
}

// optionalText reads a text, empty if there is none.
func (p *payload) optionalText(claim string) (string, error) {
	value, ok := p.values[claim]
	if !ok {
		return "", nil
	}
	text, ok := value.(string)
	if !ok || !distinct(text) {
		return "", fmt.Errorf("%s is not text", claim)
	}
	return text, nil
}

// distinct reports whether a text is the only one that is read as it. What is no text, invalid
// UTF-8 or half of a surrogate pair, is read as U+FFFD, whichever it was.
func distinct(text string) bool { return !strings.ContainsRune(text, utf8.RuneError) }

// texts reads a text or a list of them.
func (p *payload) texts(claim string) ([]string, error) {
	switch value := p.values[claim].(type) {
	case nil:
		return nil, nil
	case string:
		return []string{value}, nil
	case []any:
		if list, ok := allTexts(value); ok {
			return list, nil
		}
	}
	return nil, fmt.Errorf("%s is not text or a list of texts", claim)
}

func allTexts(values []any) (list []string, ok bool) {
	for _, v := range values {
		text, ok := v.(string)
		if !ok {
			return nil, false
		}
		list = append(list, text)
	}
	return list, true
}

// find returns the claim at a path: the one of that whole name, else the one to
// which the dots lead.
func (p *payload) find(path string) any {
	if value, ok := p.values[path]; ok {
		return value
	}
	var value any = p.values
	for name := range strings.SplitSeq(path, ".") {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[name]
	}
	return value
}

// name reads a claim that names something: distinct text or a whole number; empty if it
// is neither.
func (p *payload) name(path string) string {
	switch value := p.find(path).(type) {
	case string:
		if distinct(value) {
			return value
		}
	case json.Number:
		if _, err := value.Int64(); err == nil {
			return value.String()
		}
	}
	return ""
}

// words reads a list of texts, or one text with spaces between the words.
func (p *payload) words(path string) []string {
	switch value := p.find(path).(type) {
	case string:
		return strings.Fields(value)
	case []any:
		list, _ := allTexts(value)
		return list
	}
	return nil
}

// GetExpirationTime returns the claim exp.
func (p *payload) GetExpirationTime() (*jwt.NumericDate, error) { return p.expires, nil }

// GetNotBefore returns the claim nbf.
func (p *payload) GetNotBefore() (*jwt.NumericDate, error) { return p.notBefore, nil }

// GetIssuedAt returns nothing: RFC 7519 draws no conclusion from iat.
func (p *payload) GetIssuedAt() (*jwt.NumericDate, error) { return nil, nil }

// GetIssuer returns the claim iss.
func (p *payload) GetIssuer() (string, error) { return p.issuer, nil }

// GetSubject returns the claim sub.
func (p *payload) GetSubject() (string, error) { return p.optionalText("sub") }

// GetAudience returns the claim aud.
func (p *payload) GetAudience() (jwt.ClaimStrings, error) { return p.audience, nil }

// maxDepth is how deep objects and lists of a token may be nested.
const maxDepth = 16

var (
	errNotObject = errors.New("not a JSON object")
	errTwice     = errors.New("a name stands twice in one object")
	errTooDeep   = errors.New("nested too deep")
)

// strictObject reads a JSON object in which no object has a name twice: of two
// values, different readers would believe different ones.
func strictObject(text []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	value, err := strictValue(d, maxDepth)
	if err != nil {
		return nil, err
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, errNotObject
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errNotObject
	}
	return object, nil
}

func strictValue(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := token.(json.Delim)
	switch {
	case !ok:
		return token, nil
	case depth == 0:
		return nil, errTooDeep
	case delim == '{':
		return strictMembers(d, depth-1)
	case delim == '[':
		return strictElements(d, depth-1)
	}
	return nil, errNotObject
}

func strictMembers(d *json.Decoder, depth int) (map[string]any, error) {
	object := make(map[string]any)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, ok := token.(string)
		if !ok {
			return nil, errNotObject
		}
		if _, ok := object[name]; ok {
			return nil, errTwice
		}
		if object[name], err = strictValue(d, depth); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return object, err
}

func strictElements(d *json.Decoder, depth int) ([]any, error) {
	list := []any{}
	for d.More() {
		value, err := strictValue(d, depth)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	_, err := d.Token()
	return list, err
}

// Interface guards
var (
	_ jwt.Claims       = (*payload)(nil)
	_ json.Unmarshaler = (*payload)(nil)
)
