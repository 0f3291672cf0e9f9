package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxBody is the most bytes that a request's body may have.
const MaxBody = 64 << 10

// nullable are the fields for which null is a value; each other field is left
// out instead.
var nullable = map[string]bool{"expires_at": true}

// readBody reads the body of a request and puts it back, unless it is one that a
// lenient reader would take for something that its sender did not mean: fields
// given twice, in another case, or null; numbers that are cut off or rounded;
// escapes that stand for no character.
func readBody(r *http.Request) *Problem {
	if r.ContentLength > MaxBody {
		return tooLarge()
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxBody+1))
	switch {
	case len(body) > MaxBody:
		return tooLarge()
	case err != nil:
		return newProblem(http.StatusBadRequest, "incomplete_body", "the body ended early; send it again")
	}
	if r.Method != http.MethodPost && r.Method != http.MethodPatch {
		body = nil // it says nothing there
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if len(body) == 0 {
		return nil
	}
	if p := checkMediaType(r.Header.Get("Content-Type")); p != nil {
		return p
	}
	r.Header.Set("Content-Type", "application/json") // in the one spelling that huma knows
	return checkJSON(body)
}

func tooLarge() *Problem {
	return newProblem(http.StatusRequestEntityTooLarge, "body_too_large", fmt.Sprintf("the body is larger than %d bytes; no request here needs that many", MaxBody))
}

// checkMediaType wants JSON: other types of body are mistakes that would read as
// broken JSON at best. Without a type the body is taken to be JSON.
func checkMediaType(header string) *Problem {
	media, _, err := mime.ParseMediaType(header)
	if header == "" || err == nil && (media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")) {
		return nil
	}
	p := newProblem(http.StatusUnsupportedMediaType, "unsupported_media_type",
		fmt.Sprintf("the body is of type %q; send JSON, with the header Content-Type: application/json", header))
	p.header("Accept", "application/json")
	return p
}

func checkJSON(body []byte) *Problem {
	var whole json.RawMessage
	err := json.Unmarshal(body, &whole)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return newProblem(http.StatusBadRequest, "invalid_json", fmt.Sprintf("the body is not JSON: %v, at byte %d", err, syntax.Offset))
	case err != nil || !utf8.Valid(body):
		return newProblem(http.StatusBadRequest, "invalid_json", "the body is not JSON in UTF-8; send it so")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	return (&bodyChecker{d, body}).value("body")
}

// bodyChecker walks over JSON that is well-formed.
type bodyChecker struct {
	*json.Decoder
	body []byte
}

// value checks the next value, which stands at the location.
func (c *bodyChecker) value(location string) *Problem {
	before := c.InputOffset()
	token, err := c.Token()
	if err != nil {
		return newProblem(http.StatusBadRequest, "invalid_json", "the body is not JSON: "+err.Error())
	}
	switch v := token.(type) {
	case json.Delim:
		if v == '{' {
			return c.object(location)
		}
		return c.array(location)
	case json.Number:
		return checkNumber(location, v.String())
	case string:
		if half := halfCharacter(c.body[before:c.InputOffset()]); half != "" {
			return wrongAt(location, half+" is half of a pair, and no character by itself; write the whole character")
		}
	case nil:
		if !nullable[fieldOf(location)] {
			return wrongAt(location, "null is no value here; leave the field out")
		}
	}
	return nil
}

func (c *bodyChecker) object(location string) *Problem {
	seen := make(map[string]bool)
	for c.More() {
		token, err := c.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return newProblem(http.StatusBadRequest, "invalid_json", "the body is not JSON: a field has no name")
		}
		at := location
		if len(name) <= 64 { // longer ones are not worth repeating
			at += "." + name
		}
		switch {
		case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || name == "":
			return wrongAt(at, fmt.Sprintf("there is no field %.64q; names are in lower case, like api_key_id", name))
		case seen[name]:
			return wrongAt(at, "it is given twice; write it once")
		}
		seen[name] = true
		if p := c.value(at); p != nil {
			return p
		}
	}
	_, _ = c.Token() // the closing brace, known to be there
	return nil
}

func (c *bodyChecker) array(location string) *Problem {
	for i := 0; c.More(); i++ {
		if p := c.value(location + "[" + strconv.Itoa(i) + "]"); p != nil {
			return p
		}
	}
	_, _ = c.Token() // the closing bracket
	return nil
}

// halfCharacter returns the first escape of a text in JSON that is half of a
// surrogate pair without the other; empty if there is none.
func halfCharacter(text []byte) string {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		first := escaped(text[i:])
		switch {
		case !utf16.IsSurrogate(first):
			i++ // what is escaped is no backslash
		case utf16.DecodeRune(first, escaped(text[i+6:])) == utf8.RuneError:
			return string(text[i : i+6])
		default:
			i += 11
		}
	}
	return ""
}

// escaped is the 16 bits of an escape like \u00e9 at the start of a text; -1 if
// there is none.
func escaped(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// checkNumber refuses what no field holds: all numbers here are whole ones.
func checkNumber(location, number string) *Problem {
	_, err := strconv.ParseInt(number, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return wrongAt(location, number+" is far out of range; the most of any number here is 1000000000000")
	case err != nil:
		return wrongAt(location, number+" is not a whole number; write one in digits only, like 100")
	}
	return nil
}

func wrongAt(location, detail string) *Problem {
	field := fieldOf(location)
	p := wrongField("body", field, detail)
	p.Fields[0].Location = location
	return p
}

// fieldOf is the last name of a location: limit of body.limit, methods of
// body.methods[0].
func fieldOf(location string) string {
	name, _, _ := strings.Cut(location[strings.LastIndexByte(location, '.')+1:], "[")
	return name
}
