package postgres

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/jackc/pgx/v5/pgxpool"
)

const exampleDSN = "postgres://tollgate@localhost:5432/tollgate, or {env.DATABASE_URL}"

// The errors about a connection string repeat nothing of it. Where it is malformed,
// any part of it may be a part of the password, also what was read as a host or as
// the name of a setting; a log, or what a server answers, would show it.
var (
	errNoDSN    = errors.New("a connection string is missing; write one like " + exampleDSN)
	errEmptyDSN = errors.New("the connection string is empty; set the variable, or write one like " + exampleDSN)
	errNotDSN   = errors.New("the connection string is neither a URL that begins with postgres:// nor words like host=localhost; write one like " + exampleDSN)
	errEscapes  = errors.New("the connection string has a character before its host that means something else in a URL; " +
		"write in the user and the password @ as %40, / as %2F, ? as %3F, # as %23, % as %25 and a space as %20 (and @ elsewhere as %40 too), " +
		"or write words like host=localhost password='...'")
	errNotHost = errors.New("the connection string has no host and port that could be; write one like " + exampleDSN + " (special characters percent-encoded)")
	errSetting = errors.New("the connection string has a setting that is not known, or a password with a space or & in it: write that in quotes (password='...'), " +
		"or percent-encoded in a URL; further settings of the server go into options, like options='-c geqo=off'")
	errPlaceholder = errors.New("the connection string has a placeholder that is unknown; " +
		"write one like {env.DATABASE_URL}, and braces of a password as %7B and %7D in a URL")
)

// resolve replaces placeholders in the connection string and reads it.
func (p *Provider) resolve() (*pgxpool.Config, error) {
	if p.DSN == "" {
		return nil, errNoDSN
	}
	dsn, err := fillIn(p.DSN)
	if err != nil {
		return nil, err
	}
	config, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(p.MaxConnections)
	return config, nil
}

// fillIn replaces placeholders.
func fillIn(dsn string) (string, error) {
	filled, err := caddy.NewReplacer().ReplaceOrErr(dsn, true, true)
	switch {
	case err != nil && !ownPlaceholder.MatchString(err.Error()):
		return "", errPlaceholder
	case err != nil:
		return "", fmt.Errorf("the connection string: %w; set it, or write the value itself", err)
	}
	return filled, nil
}

// ownPlaceholder is one whose name is no secret: other braces may be a password's.
var ownPlaceholder = regexp.MustCompile(`\{(env|file)\.[^{}]+\}`)

// parseDSN reads a connection string: a URL, or words like host=localhost.
func parseDSN(dsn string) (*pgxpool.Config, error) {
	if err := checkForm(dsn); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, unreadable(err)
	}
	for name := range config.ConnConfig.RuntimeParams {
		if !slices.Contains(serverSettings, name) {
			return nil, errSetting
		}
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "tollgate"
	}
	return config, nil
}

// checkForm reports a connection string that the library would read as another one
// than was meant.
func checkForm(dsn string) error {
	scheme, rest, isURL := strings.Cut(dsn, "://")
	switch {
	case strings.TrimSpace(dsn) == "":
		return errEmptyDSN
	case isURL && (scheme == "postgres" || scheme == "postgresql"):
		return checkURL(rest)
	case isURL && !strings.Contains(scheme, "="), !strings.Contains(dsn, "="):
		return errNotDSN
	}
	return nil
}

var (
	// userForm is a user and a password as a URL may have them.
	userForm = regexp.MustCompile(`^([^@/?#%\s[:cntrl:]]|%[0-9A-Fa-f]{2})*$`)

	// hostForm is hosts and ports, without a query.
	hostForm = regexp.MustCompile(`^([A-Za-z0-9._,:\[\]-]|%[0-9A-Fa-f]{2})*$`)
)

// checkURL checks what stands behind the scheme, up to the database.
func checkURL(rest string) error {
	place := rest
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if !userForm.MatchString(rest[:at]) {
			return errEscapes
		}
		place = rest[at+1:]
	}
	if end := strings.IndexAny(place, "/?"); end >= 0 {
		place = place[:end]
	}
	if !hostForm.MatchString(place) {
		return errNotHost
	}
	return nil
}

// serverSettings are those that the library hands on to the server. The server
// repeats the names of others in its errors.
var serverSettings = []string{
	"application_name", "client_encoding", "datestyle", "default_transaction_isolation", "default_transaction_read_only",
	"idle_in_transaction_session_timeout", "idle_session_timeout", "lock_timeout", "options", "role", "search_path",
	"statement_timeout", "tcp_keepalives_count", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_user_timeout", "timezone", "work_mem",
}

// librarySettings are those that the library objects to by themselves, the longer of
// two that begin alike first.
var librarySettings = []string{
	"sslcertmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslmode", "CA file", "connect_timeout", "port", "service",
	"target_session_attrs", "channel_binding", "require_auth", "min_protocol_version", "max_protocol_version",
	"pool_max_conns", "pool_min_conns", "pool_min_idle_conns", "pool_max_conn_lifetime_jitter", "pool_max_conn_lifetime",
	"pool_max_conn_idle_time", "pool_health_check_period", "pool_ping_timeout",
	"statement_cache_capacity", "description_cache_capacity", "default_query_exec_mode",
}

// unreadable says what the library objects to, in no words of the connection string.
func unreadable(err error) error {
	_, objection, _ := strings.Cut(err.Error(), "`: ") // behind the connection string, of which the library hides what it can
	for _, name := range librarySettings {
		if strings.Contains(objection, name) {
			return fmt.Errorf("the connection string cannot be read (%s is wrong); write one like %s", name, exampleDSN)
		}
	}
	return errors.New("the connection string cannot be read; write one like " + exampleDSN + ", a password with special characters percent-encoded, or in words in quotes")
}
