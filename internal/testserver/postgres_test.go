package testserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestPostgresKeepsWhatWasCommittedOverACrashAndStandsStillWhenPaused(t *testing.T) {
	t.Parallel()
	p := NewPostgres(t)
	url := p.NewDatabase(t)
	if other := p.NewDatabase(t); other == url {
		t.Fatalf("two databases at %s", url)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 7 AS n"); err != nil {
		t.Fatal(err)
	}

	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := conn.Ping(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused server answered on an open connection, or the connection broke: %v", err)
	}
	if err := p.Resume(); err != nil {
		t.Fatal(err)
	}

	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
	if conn, err = pgx.Connect(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT n FROM kept").Scan(&n); err != nil || n != 7 {
		t.Errorf("after a crash the table holds %d, %v", n, err)
	}
	p.Kill()
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a killed server answers")
	}
	p.Stop() // again, harmlessly
}
