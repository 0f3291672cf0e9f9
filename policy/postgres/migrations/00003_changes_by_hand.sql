-- +goose Up

ALTER TABLE rate_limit_policies
	ADD COLUMN max_delay_us bigint NOT NULL DEFAULT 0 CHECK (max_delay_us BETWEEN 0 AND 600000000);

-- What Tollgate would refuse to count by. A row that is there already stays as it
-- is; it is not used, and logged.
ALTER TABLE rate_limit_policies
	ADD CONSTRAINT rate_limit_policies_algorithm CHECK (
		(burst = 0 OR algorithm = 'token_bucket') AND (max_delay_us = 0 OR algorithm = 'leaky_bucket')) NOT VALID,
	ADD CONSTRAINT rate_limit_policies_methods CHECK (
		array_to_string(methods, ' ', '?') ~ '^([A-Z-]+( [A-Z-]+)*)?$' AND coalesce(array_ndims(methods), 1) = 1 AND cardinality(methods) <= 32) NOT VALID,
	ADD CONSTRAINT rate_limit_policies_pattern CHECK (
		route !~ '//|[%{}]|[[:cntrl:]]|(^|/)\.\.?(/|$)'
		AND regexp_replace(route, '\\.', '', 'g') !~ '\[\^?\]|\[[^\]]*$|\\') NOT VALID,
	ADD CONSTRAINT rate_limit_policies_exact CHECK (
		limit_count = 0 OR CASE algorithm
			WHEN 'token_bucket' THEN
				(CASE WHEN burst > 0 THEN burst ELSE limit_count END)::numeric * (window_us / gcd(limit_count, window_us)) < 9007199254740992
			WHEN 'leaky_bucket' THEN
				max_delay_us::numeric * (limit_count / gcd(limit_count, window_us))
					+ limit_count::numeric * (window_us / gcd(limit_count, window_us)) < 9007199254740992
			WHEN 'sliding_window' THEN limit_count::numeric * window_us < 9007199254740992
			WHEN 'sliding_log' THEN limit_count <= 1000000
			ELSE true
		END) NOT VALID;

-- Changes by hand, with psql for example, reach every instance as Tollgate's own
-- do. Those say so, and announce themselves, since they know which keys changed.
-- A transaction adds one to the epoch, however many statements it has, and like
-- Tollgate's before it locks anything else.
-- +goose StatementBegin
CREATE FUNCTION rate_limit_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	now_at bigint;
BEGIN
	IF current_setting('rate_limit.own_change', true) = 'on' THEN
		RETURN NULL;
	END IF;
	EXECUTE format('UPDATE %I.rate_limit_epoch SET epoch = CASE xmin WHEN pg_current_xact_id()::xid THEN epoch ELSE epoch + 1 END RETURNING epoch', TG_TABLE_SCHEMA)
		INTO now_at;
	IF TG_TABLE_NAME IN ('rate_limit_tiers', 'rate_limit_policies') THEN
		EXECUTE format('UPDATE %I.rate_limit_epoch SET policies_epoch = epoch', TG_TABLE_SCHEMA);
	ELSE
		EXECUTE format('INSERT INTO %1$I.rate_limit_key_changes (epoch) SELECT $1
			WHERE NOT EXISTS (SELECT FROM %1$I.rate_limit_key_changes WHERE epoch = $1 AND sha256 IS NULL)', TG_TABLE_SCHEMA) USING now_at;
	END IF;
	PERFORM pg_notify('rate_limit_changed', '');
	RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER rate_limit_changed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON rate_limit_tiers
	FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_changed();
CREATE TRIGGER rate_limit_changed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON rate_limit_policies
	FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_changed();
CREATE TRIGGER rate_limit_changed BEFORE INSERT OR DELETE OR TRUNCATE OR UPDATE OF id, tier, expires_at, revoked_at ON rate_limit_api_keys
	FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_changed();
CREATE TRIGGER rate_limit_changed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON rate_limit_api_key_hashes
	FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_changed();

-- A row that is changed by hand has a new version, so that an admin who has read
-- the one before does not overwrite it.
-- +goose StatementBegin
CREATE FUNCTION rate_limit_next_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('rate_limit.own_change', true) IS DISTINCT FROM 'on' AND NEW.version = OLD.version THEN
		NEW.version := OLD.version + 1;
		NEW.updated_at := now();
	END IF;
	RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER rate_limit_next_version BEFORE UPDATE ON rate_limit_tiers
	FOR EACH ROW EXECUTE FUNCTION rate_limit_next_version();
CREATE TRIGGER rate_limit_next_version BEFORE UPDATE ON rate_limit_policies
	FOR EACH ROW EXECUTE FUNCTION rate_limit_next_version();
CREATE TRIGGER rate_limit_next_version BEFORE UPDATE OF id, prefix, client, tier, expires_at, revoked_at ON rate_limit_api_keys
	FOR EACH ROW EXECUTE FUNCTION rate_limit_next_version();

-- The rule for anonymous clients holds whatever the search_path of who writes.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limit_keep_anonymous() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	kept boolean;
BEGIN
	EXECUTE format('SELECT EXISTS (SELECT FROM %I.rate_limit_policies WHERE tier = ''anonymous'' AND scope = ''global'')', TG_TABLE_SCHEMA) INTO kept;
	IF NOT kept THEN
		RAISE EXCEPTION 'the last policy of the tier anonymous for every route cannot be taken away; change its limit instead'
			USING ERRCODE = 'restrict_violation';
	END IF;
	RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER rate_limit_next_version ON rate_limit_api_keys;
DROP TRIGGER rate_limit_next_version ON rate_limit_policies;
DROP TRIGGER rate_limit_next_version ON rate_limit_tiers;
DROP FUNCTION rate_limit_next_version();
DROP TRIGGER rate_limit_changed ON rate_limit_api_key_hashes;
DROP TRIGGER rate_limit_changed ON rate_limit_api_keys;
DROP TRIGGER rate_limit_changed ON rate_limit_policies;
DROP TRIGGER rate_limit_changed ON rate_limit_tiers;
DROP FUNCTION rate_limit_changed();
ALTER TABLE rate_limit_policies
	DROP CONSTRAINT rate_limit_policies_exact, DROP CONSTRAINT rate_limit_policies_pattern,
	DROP CONSTRAINT rate_limit_policies_methods, DROP CONSTRAINT rate_limit_policies_algorithm,
	DROP COLUMN max_delay_us;
