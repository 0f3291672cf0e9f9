package ratelimit

import "github.com/caddy-tollgate/ratelimit/internal/jwtauth"

// identify reads how clients are told apart. Syntax:
//
//	identify {
//	    api_key     header|query|cookie <name>
//	    jwt         { ... }
//	    placeholder <text with placeholders>
//	    unknown     anonymous|reject
//	}
func (p *handlerParser) identify() error {
	start := p.Token()
	if err := p.noMore("write identify { api_key header X-API-Key }"); err != nil {
		return err
	}
	i := &identifyParser{reader: newReader(p.Dispenser, "identify"), how: new(Identify)}
	for nesting := p.Nesting(); p.NextBlock(nesting); {
		if err := i.word(); err != nil {
			return err
		}
	}
	p.h.Identify = i.how
	if err := i.how.Validate(); err != nil {
		return errAt(start, err)
	}
	return nil
}

type identifyParser struct {
	*reader
	how *Identify
}

func (p *identifyParser) word() error {
	switch p.Val() {
	case "api_key":
		return p.apiKey()
	case "placeholder":
		return p.placeholder()
	case "unknown":
		return p.unknown()
	case "jwt":
		return p.jwt()
	}
	return p.unknownWord([]string{"api_key", "jwt", "placeholder", "unknown"})
}

func (p *identifyParser) apiKey() error {
	source := &APIKeySource{}
	if !p.AllArgs(&source.In, &source.Name) {
		return p.Err("api_key needs a place and a name; write api_key header X-API-Key, api_key query <name> or api_key cookie <name>")
	}
	return p.add(&Source{APIKey: source})
}

// jwt reads jwt { ... }, which jwtauth.Parse describes.
func (p *identifyParser) jwt() error {
	config, err := jwtauth.Parse(p.Dispenser, jwtauth.ForClients)
	if err != nil {
		return err
	}
	return p.add(&Source{JWT: config})
}

func (p *identifyParser) placeholder() error {
	text, err := p.value("text with placeholders, like {http.request.tls.client.fingerprint}")
	if err != nil {
		return err
	}
	if text == "" {
		return p.Err("placeholder is empty; write text with placeholders, like {http.request.tls.client.fingerprint}")
	}
	return p.add(&Source{Placeholder: text})
}

func (p *identifyParser) add(s *Source) error {
	p.how.Sources = append(p.how.Sources, s)
	return p.wrap(s.validate())
}

func (p *identifyParser) unknown() (err error) {
	if err := p.once(); err != nil {
		return err
	}
	if p.how.Unknown, err = p.value("anonymous or reject"); err != nil {
		return err
	}
	return p.wrap(validateUnknown(p.how.Unknown))
}
