package ratelimit

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tollgate/ratelimit/internal/jwtauth"
)

// parseAdmin reads the directive. Syntax:
//
//	rate_limit_admin [<matcher>] {
//	    jwt { ... }
//	}
func parseAdmin(helper httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	helper.Next()
	p := &adminParser{reader: newReader(helper.Dispenser, "rate_limit_admin"), h: new(AdminHandler)}
	if err := p.noMore("write rate_limit_admin, or rate_limit_admin { jwt { ... } }"); err != nil {
		return nil, err
	}
	for nesting := p.Nesting(); p.NextBlock(nesting); {
		if err := p.word(); err != nil {
			return nil, err
		}
	}
	return p.h, nil
}

type adminParser struct {
	*reader
	h *AdminHandler
}

func (p *adminParser) word() (err error) {
	if p.Val() != "jwt" {
		return p.unknownWord([]string{"jwt"})
	}
	if err := p.once(); err != nil {
		return err
	}
	p.h.JWT, err = jwtauth.Parse(p.Dispenser, jwtauth.ForAdmins)
	return err
}
