-- +goose Up

-- What decides requests, and its history. Every change of it adds one to the
-- epoch, in the same transaction and before anything else, so that changes
-- happen one after the other.
CREATE TABLE rate_limit_epoch (
	only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
	store          text    NOT NULL DEFAULT gen_random_uuid()::text,
	epoch          bigint  NOT NULL DEFAULT 1,
	policies_epoch bigint  NOT NULL DEFAULT 1 CHECK (policies_epoch <= epoch) -- of the last change of tiers or policies
);
INSERT INTO rate_limit_epoch DEFAULT VALUES;

CREATE TABLE rate_limit_tiers (
	name       text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[!#-\[\]-~]{1,64}$'),
	version    bigint      NOT NULL DEFAULT 1 CHECK (version >= 1),
	created_at timestamptz NOT NULL DEFAULT now(),
	updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE rate_limit_api_keys (
	id           text COLLATE "C" PRIMARY KEY CHECK (id ~ '^[A-Za-z0-9_-]{1,64}$'),
	prefix       text        NOT NULL CHECK (octet_length(prefix) <= 16),
	client       text        NOT NULL CHECK (octet_length(client) <= 256),
	tier         text COLLATE "C" NOT NULL REFERENCES rate_limit_tiers ON UPDATE CASCADE,
	expires_at   timestamptz,
	revoked_at   timestamptz,
	last_used_at timestamptz,
	version      bigint      NOT NULL DEFAULT 1 CHECK (version >= 1),
	created_at   timestamptz NOT NULL DEFAULT now(),
	updated_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX rate_limit_api_keys_tier ON rate_limit_api_keys (tier, id);

-- The hashes by which keys are found: of each key its current one, and after a
-- rotation the one before, until its grace period is over. Being one column, no
-- two keys can share a hash in any way.
CREATE TABLE rate_limit_api_key_hashes (
	sha256 bytea PRIMARY KEY CHECK (octet_length(sha256) = 32),
	key_id text COLLATE "C" NOT NULL REFERENCES rate_limit_api_keys ON DELETE CASCADE,
	until  timestamptz -- null: the current one
);
CREATE UNIQUE INDEX rate_limit_api_key_hashes_current ON rate_limit_api_key_hashes (key_id) WHERE until IS NULL;
CREATE UNIQUE INDEX rate_limit_api_key_hashes_before ON rate_limit_api_key_hashes (key_id) WHERE until IS NOT NULL;

CREATE TABLE rate_limit_policies (
	id          text COLLATE "C" PRIMARY KEY CHECK (id ~ '^[A-Za-z0-9_-]{1,64}$'),
	tier        text COLLATE "C" REFERENCES rate_limit_tiers ON UPDATE CASCADE,
	api_key_id  text COLLATE "C" REFERENCES rate_limit_api_keys,
	route       text        NOT NULL CHECK (route ~ '^[/*]' AND octet_length(route) <= 1024),
	methods     text[]      NOT NULL DEFAULT '{}',
	scope       text COLLATE "C" NOT NULL CHECK (scope <> ''), -- the route and methods, as they stand in a bucket's key
	limit_count bigint      NOT NULL CHECK (limit_count BETWEEN 0 AND 1000000000000),
	window_us   bigint      NOT NULL CHECK (window_us BETWEEN 1000 AND 31622400000000),
	burst       bigint      NOT NULL DEFAULT 0 CHECK (burst BETWEEN 0 AND 1000000000000),
	algorithm   text        NOT NULL CHECK (algorithm IN ('token_bucket', 'leaky_bucket', 'fixed_window', 'sliding_window', 'sliding_log')),
	cost        bigint      NOT NULL DEFAULT 1 CHECK (cost BETWEEN 0 AND 1000000000000),
	mode        text        NOT NULL CHECK (mode IN ('enforce', 'shadow')),
	on_error    text        NOT NULL DEFAULT '' CHECK (on_error IN ('', 'open', 'closed', 'local')),
	version     bigint      NOT NULL DEFAULT 1 CHECK (version >= 1),
	created_at  timestamptz NOT NULL DEFAULT now(),
	updated_at  timestamptz NOT NULL DEFAULT now(),
	CONSTRAINT rate_limit_policies_owner CHECK (num_nonnulls(tier, api_key_id) = 1),
	CONSTRAINT rate_limit_policies_burst CHECK (limit_count > 0 OR burst = 0),
	CONSTRAINT rate_limit_policies_cost CHECK (limit_count = 0 OR cost <= CASE WHEN burst > 0 THEN burst ELSE limit_count END),
	CONSTRAINT rate_limit_policies_route UNIQUE (tier, scope),
	CONSTRAINT rate_limit_policies_key_route UNIQUE (api_key_id, scope)
);

-- Anonymous clients are never unlimited.
-- +goose StatementBegin
CREATE FUNCTION rate_limit_keep_anonymous() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM rate_limit_policies WHERE tier = 'anonymous' AND scope = 'global') THEN
		RAISE EXCEPTION 'the last policy of the tier anonymous for every route cannot be taken away; change its limit instead'
			USING ERRCODE = 'restrict_violation';
	END IF;
	RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER rate_limit_keep_anonymous AFTER UPDATE OR DELETE ON rate_limit_policies
	FOR EACH ROW WHEN (OLD.tier = 'anonymous' AND OLD.scope = 'global')
	EXECUTE FUNCTION rate_limit_keep_anonymous();

-- Which hashes mean something else since an epoch; null: all may. It is what a
-- cache of keys reads after a change, and is kept for a day.
CREATE TABLE rate_limit_key_changes (
	epoch  bigint      NOT NULL,
	sha256 bytea       CHECK (octet_length(sha256) = 32),
	at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX rate_limit_key_changes_epoch ON rate_limit_key_changes (epoch);

CREATE TABLE rate_limit_audit (
	id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	at     timestamptz NOT NULL,
	actor  text        NOT NULL,
	action text        NOT NULL,
	kind   text        NOT NULL CHECK (kind IN ('tier', 'policy', 'api_key')),
	key    text        NOT NULL,
	before json,
	after  json,
	CONSTRAINT rate_limit_audit_change CHECK (num_nonnulls(before, after) >= 1)
);
CREATE INDEX rate_limit_audit_at ON rate_limit_audit (at);

-- What was answered to whom asks for the same key twice, for a day.
CREATE TABLE rate_limit_idempotency (
	idempotency text COLLATE "C" PRIMARY KEY,
	at          timestamptz NOT NULL,
	key         json        NOT NULL,
	sha256      bytea       NOT NULL,
	kept        bytea
);

-- +goose Down
DROP TABLE rate_limit_idempotency, rate_limit_audit, rate_limit_key_changes, rate_limit_policies,
	rate_limit_api_key_hashes, rate_limit_api_keys, rate_limit_tiers, rate_limit_epoch;
DROP FUNCTION rate_limit_keep_anonymous();
