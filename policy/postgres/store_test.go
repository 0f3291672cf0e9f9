package postgres

import (
	"testing"

	"github.com/caddy-tollgate/ratelimit/internal/storetest"
)

func TestThePostgresStoreKeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Open {
		dsn, storage := server.NewDatabase(t), storageIn(t)
		return func(t *testing.T) storetest.Store {
			return started(t, &Provider{DSN: dsn, LookupTimeout: ms(5000), MaxConnections: 3}, storage)
		}
	})
}
