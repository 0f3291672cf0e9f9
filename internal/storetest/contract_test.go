package storetest

import "github.com/caddy-tollgate/ratelimit/admin"

// The suite tests what the admin API asks for.
var _ admin.Store = Store(nil)
