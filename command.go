package ratelimit

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/certmagic"
	"github.com/spf13/cobra"

	"github.com/caddy-tollgate/ratelimit/admin"
	"github.com/caddy-tollgate/ratelimit/internal/jwtauth"
	"github.com/caddy-tollgate/ratelimit/policy/postgres"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "rate-limit",
		Usage: "token|hash|migrate|check",
		Short: "Helps to run the rate limiter Tollgate",
		Long: `
Makes tokens for the admin API, hashes API keys, sets up Postgres, and checks
configurations. See the help of each command.`,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.AddCommand(tokenCommand(), hashCommand(), migrateCommand(), checkCommand())
		},
	})
}

// configFlags says which configuration a command reads.
type configFlags struct {
	file    string
	adapter string
}

func (f *configFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.file, "config", "c", "", "Configuration file (default: Caddyfile, if there is one)")
	cmd.Flags().StringVarP(&f.adapter, "adapter", "a", "", "Name of the config adapter to apply, for other files than Caddyfiles")
}

// load reads and adapts the configuration; an empty one if there is no file.
func (f *configFlags) load() (*loadedConfig, error) {
	text, file, _, err := caddycmd.LoadConfig(f.file, f.adapter)
	if err != nil {
		return nil, err
	}
	c := &loadedConfig{file: file, text: text}
	if len(text) == 0 {
		return c, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // they stay as they are written
	return c, d.Decode(&c.root)
}

// loadedConfig is a configuration in JSON, not provisioned.
type loadedConfig struct {
	file string // empty if there is none
	text []byte
	root any
}

// handlers returns all HTTP handlers of a name, wherever they stand, as JSON.
func (c *loadedConfig) handlers(name string) (found []json.RawMessage, err error) {
	walk(c.root, func(object map[string]any) {
		if object["handler"] != name {
			return
		}
		fields := make(map[string]any, len(object))
		for k, v := range object {
			if k != "handler" {
				fields[k] = v
			}
		}
		raw, failure := json.Marshal(fields)
		found, err = append(found, raw), errors.Join(err, failure)
	})
	return found, err
}

// walk calls visit for every object of a JSON value, in an order that does not
// change within lists.
func walk(value any, visit func(map[string]any)) {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			walk(element, visit)
		}
	case map[string]any:
		visit(v)
		for _, name := range sortedKeys(v) {
			walk(v[name], visit)
		}
	}
}

// app returns the app rate_limit of the configuration.
func (c *loadedConfig) app() (*App, error) {
	var config struct {
		Apps struct {
			RateLimit *App `json:"rate_limit"`
		} `json:"apps"`
	}
	if len(c.text) > 0 {
		if err := json.Unmarshal(c.text, &config); err != nil {
			return nil, err
		}
	}
	if config.Apps.RateLimit == nil {
		return new(App), nil
	}
	return config.Apps.RateLimit, nil
}

// storage returns the storage that Caddy would use with the configuration, until
// the context ends.
func (c *loadedConfig) storage(ctx caddy.Context) (certmagic.Storage, error) {
	var config struct {
		StorageRaw json.RawMessage `json:"storage,omitempty" caddy:"namespace=caddy.storage inline_key=module"`
	}
	if len(c.text) > 0 {
		if err := json.Unmarshal(c.text, &config); err != nil {
			return nil, err
		}
	}
	if config.StorageRaw == nil {
		return caddy.DefaultStorage, nil
	}
	module, err := ctx.LoadModule(&config, "StorageRaw")
	if err != nil {
		return nil, fmt.Errorf("loading the storage: %w", err)
	}
	return module.(caddy.StorageConverter).CertMagicStorage()
}

func tokenCommand() *cobra.Command {
	var config configFlags
	var grant jwtauth.Grant
	cmd := &cobra.Command{
		Use:   "token --role ADMIN [--ttl 15m] [--subject <name>] [--config <file>]",
		Short: "Makes a token for the admin API",
		Long: `
Prints a token that rate_limit_admin accepts: signed with the secret that its jwt
block configures, or with the one that was made on first start and is kept in
Caddy's storage. Run it as the user that Caddy runs as, so that it finds the same
storage. Where the configuration has a public key or a key set instead of a secret,
only the issuer of that key makes tokens.

	curl -H "Authorization: Bearer $(caddy rate-limit token --role ADMIN)" ...`,
		Args: cobra.NoArgs,
	}
	config.register(cmd)
	cmd.Flags().StringSliceVar(&grant.Roles, "role", nil, "Role that the token grants: ADMIN changes, VIEWER reads (repeatable)")
	cmd.Flags().DurationVar(&grant.TTL, "ttl", 15*time.Minute, "How long the token is valid")
	cmd.Flags().StringVar(&grant.Subject, "subject", "command-line", "Who acts, as the audit names it")
	cmd.RunE = run(func(ctx context.Context, out io.Writer, _ io.Reader) error {
		token, err := mintToken(ctx, &config, grant)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, token)
		return err
	})
	return cmd
}

// maxTTL bounds tokens from the command line: they cannot be taken back.
const maxTTL = 366 * 24 * time.Hour

func mintToken(ctx context.Context, flags *configFlags, grant jwtauth.Grant) (string, error) {
	switch {
	case len(grant.Roles) == 0:
		return "", errors.New("a token needs a role; write --role ADMIN or --role VIEWER")
	case slices.ContainsFunc(grant.Roles, func(role string) bool { return !admin.KnownRole(role) }):
		return "", fmt.Errorf("role %s gives access to nothing; write --role ADMIN or --role VIEWER", strings.Join(grant.Roles, ", "))
	case grant.TTL < time.Second || grant.TTL > maxTTL:
		return "", fmt.Errorf("ttl %s is out of range; write a duration from 1s to %s, like --ttl 15m", grant.TTL, maxTTL)
	case grant.Subject == "":
		return "", errors.New("subject is empty; write who acts, like --subject alice")
	}
	config, err := flags.load()
	if err != nil {
		return "", err
	}
	admins, err := config.adminTokens()
	if err != nil {
		return "", err
	}
	if !admins.HasKey() {
		if admins.Secret, err = config.generatedSecret(ctx); err != nil {
			return "", err
		}
	}
	return jwtauth.Mint(admins, grant, time.Now())
}

// adminTokens returns how rate_limit_admin verifies tokens.
func (c *loadedConfig) adminTokens() (*jwtauth.Config, error) {
	handlers, err := c.handlers("rate_limit_admin")
	if err != nil {
		return nil, err
	}
	if len(handlers) == 0 {
		if c.file != "" {
			return nil, fmt.Errorf("%s has no rate_limit_admin; write the file that has it: --config <file>", c.file)
		}
		return new(jwtauth.Config), nil
	}
	for _, h := range handlers[1:] {
		if string(h) != string(handlers[0]) {
			return nil, errors.New("there are several rate_limit_admin that verify tokens differently; write a file with one of them: --config <file>")
		}
	}
	var handler AdminHandler
	if err := json.Unmarshal(handlers[0], &handler); err != nil {
		return nil, err
	}
	if handler.JWT == nil {
		return new(jwtauth.Config), nil
	}
	return handler.JWT, nil
}

func (c *loadedConfig) generatedSecret(ctx context.Context) (string, error) {
	caddyContext, cancel := caddy.NewContext(caddy.Context{Context: ctx})
	defer cancel()
	storage, err := c.storage(caddyContext)
	if err != nil {
		return "", err
	}
	return jwtauth.GeneratedSecret(ctx, storage)
}

func hashCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hash",
		Short: "Hashes an API key",
		Long: `
Reads an API key from the first line of standard input and prints its SHA-256 in
hex, as provider static and the import of keys want it. The key does not stand on
the command line, where others could see it.

	caddy rate-limit hash < key.txt`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = run(func(_ context.Context, out io.Writer, in io.Reader) error { return hashKey(out, in) })
	return cmd
}

func hashKey(out io.Writer, in io.Reader) error {
	line, err := bufio.NewReader(io.LimitReader(in, maxAPIKey+2)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	key := strings.TrimRight(line, "\r\n")
	switch {
	case key == "":
		return errors.New("there is no key on standard input; write caddy rate-limit hash < key.txt")
	case len(key) > maxAPIKey:
		return fmt.Errorf("the key has more than %d bytes, which no key has", maxAPIKey)
	case strings.TrimSpace(key) != key:
		return errors.New("the key begins or ends with a space, which no request can send; write it without")
	}
	_, err = fmt.Fprintf(out, "%x\n", sha256.Sum256([]byte(key)))
	return err
}

func migrateCommand() *cobra.Command {
	var config configFlags
	var dsn string
	cmd := &cobra.Command{
		Use:   "migrate [--dsn <url>] [--config <file>]",
		Short: "Sets up the schema in Postgres",
		Long: `
Brings the schema of provider postgres up to date, under a lock: several at once do
it once. Caddy does the same when it starts, unless the provider says migrate off.
The database is the one of the configuration, or the one of --dsn.`,
		Args: cobra.NoArgs,
	}
	config.register(cmd)
	cmd.Flags().StringVar(&dsn, "dsn", "", "Postgres URL, in place of the configuration's; {env.*} and {file.*} work")
	cmd.RunE = run(func(ctx context.Context, out io.Writer, _ io.Reader) error { return migrate(ctx, out, &config, dsn) })
	return cmd
}

func migrate(ctx context.Context, out io.Writer, flags *configFlags, dsn string) error {
	if dsn == "" {
		config, err := flags.load()
		if err != nil {
			return err
		}
		if dsn, err = config.dsn(); err != nil {
			return err
		}
	}
	applied, err := postgres.Migrate(ctx, dsn)
	if err != nil {
		return err
	}
	if len(applied) == 0 {
		_, err = fmt.Fprintln(out, "the schema is up to date")
		return err
	}
	_, err = fmt.Fprintf(out, "applied migrations %v\n", applied)
	return err
}

// dsn returns the URL of the configuration's provider postgres.
func (c *loadedConfig) dsn() (string, error) {
	app, err := c.app()
	if err != nil {
		return "", err
	}
	var provider struct {
		Provider string `json:"provider"`
		DSN      string `json:"dsn"`
	}
	if app.ProviderRaw != nil {
		if err := json.Unmarshal(app.ProviderRaw, &provider); err != nil {
			return "", err
		}
	}
	if provider.Provider != "postgres" || provider.DSN == "" {
		return "", errors.New("the configuration has no provider postgres; write --dsn postgres://..., or the file that has it: --config <file>")
	}
	return provider.DSN, nil
}

// run makes a cobra function of one that writes to and reads from the command's
// streams. Its errors are not followed by the usage: they say what to write.
func run(f func(ctx context.Context, out io.Writer, in io.Reader) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		cmd.SilenceUsage = true
		return f(cmd.Context(), cmd.OutOrStdout(), cmd.InOrStdin())
	}
}
