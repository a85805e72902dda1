-- Who did what: a line for everything that a person changes, written in the transaction that changes it,
-- and for what the fleet does by itself that people ask about afterwards.
-- And a role of its own for keys: whoever takes over the API, with all that it may do, mints none.

SET lock_timeout = '2s';

CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT audit_pk PRIMARY KEY,
    -- Of the moment: a transaction that was begun long ago would be an earlier one.
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Of the session, which cannot say that it is another.
    role text NOT NULL DEFAULT session_user,
    -- The name that people know; a key's id, where it was a key, is never given twice.
    actor text NOT NULL,
    key_id uuid,
    address text,
    action text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    tenant_id text,
    before jsonb,
    after jsonb,
    reason text,
    CONSTRAINT audit_action_is_a_word CHECK (action ~ '^[a-z][a-z_]{0,62}$'),
    CONSTRAINT audit_kind_is_a_word CHECK (kind ~ '^[a-z][a-z_]{0,62}$'),
    -- It is kept for ever.
    CONSTRAINT audit_words_are_bounded CHECK (
        length(actor) <= 255 AND length(address) <= 100 AND length(name) <= 600
        AND length(tenant_id) <= 63 AND length(reason) <= 1000
    ),
    CONSTRAINT audit_values_are_bounded CHECK (
        pg_column_size(before) <= 65536 AND pg_column_size(after) <= 65536
    )
);
CREATE INDEX audit_by_time ON audit (at, id);
CREATE INDEX audit_on_a_thing ON audit (kind, name, at, id);
CREATE INDEX audit_by_an_actor ON audit (actor, at, id);
CREATE INDEX audit_by_a_key ON audit (key_id, at, id) WHERE key_id IS NOT NULL;
CREATE INDEX audit_of_a_tenant ON audit (tenant_id, at, id) WHERE tenant_id IS NOT NULL;

-- Not even the owner rewrites it by accident. Grants see to everybody else.
CREATE FUNCTION keep_audit() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION 'audit is append-only' USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER audit_is_append_only
BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
FOR EACH STATEMENT EXECUTE FUNCTION keep_audit();

GRANT USAGE ON SCHEMA public TO imagefleet_admin;
-- The time and the role are Postgres's to say.
GRANT INSERT (actor, key_id, address, action, kind, name, tenant_id, before, after, reason) ON audit
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator, imagefleet_admin;
GRANT SELECT ON audit
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator, imagefleet_admin;

GRANT SELECT ON tenants, api_keys TO imagefleet_admin;
GRANT INSERT ON tenants, api_keys TO imagefleet_admin;
GRANT UPDATE (revoked_at) ON api_keys TO imagefleet_admin;
REVOKE INSERT ON tenants, api_keys FROM imagefleet_operator;
REVOKE UPDATE (revoked_at, expires_at) ON api_keys FROM imagefleet_operator;

-- Nobody has a second life: whoever needs one gets another key.
CREATE TRIGGER api_keys_stay_revoked
BEFORE UPDATE OF revoked_at ON api_keys
FOR EACH ROW
WHEN (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
EXECUTE FUNCTION refuse('a revoked key stays revoked');

-- What is told by nobody, because processes do it by themselves, processes of 0.2.0 do it, or a person in
-- psql. The arguments: an action, the kind of thing, how its name is written, the columns that make the
-- name, those that are kept. What somebody does who says that he acts, he tells himself.
CREATE FUNCTION tell_audit() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    was jsonb := CASE TG_OP WHEN 'INSERT' THEN NULL ELSE to_jsonb(OLD) END;
    became jsonb := CASE TG_OP WHEN 'DELETE' THEN NULL ELSE to_jsonb(NEW) END;
    thing jsonb := coalesce(became, was);
BEGIN
    INSERT INTO public.audit (actor, address, action, kind, name, tenant_id, before, after)
    SELECT
        coalesce(nullif(current_setting('application_name'), ''), session_user),
        host(inet_client_addr()),
        TG_ARGV[0],
        TG_ARGV[1],
        TG_ARGV[2] || (
            SELECT coalesce(string_agg(nullif(thing ->> parts.part, ''), ' ' ORDER BY parts.place), '')
            FROM unnest(string_to_array(TG_ARGV[3], ' ')) WITH ORDINALITY AS parts (part, place)
        ),
        nullif(thing ->> 'tenant_id', ''),
        (SELECT jsonb_object_agg(k.k, was -> k.k) FROM unnest(string_to_array(TG_ARGV[4], ' ')) AS k (k)
        WHERE was IS NOT NULL),
        (SELECT jsonb_object_agg(k.k, became -> k.k) FROM unnest(string_to_array(TG_ARGV[4], ' ')) AS k (k)
        WHERE became IS NOT NULL);
    RETURN NULL;
END
$$;

-- Never for a beat or a renewal: these set other columns, or leave the holder as it is.
CREATE TRIGGER workers_starts_are_told
AFTER INSERT ON workers FOR EACH ROW
EXECUTE FUNCTION tell_audit('start', 'worker', '', 'id', 'host pid version lanes types slots');
CREATE TRIGGER workers_stops_are_told
AFTER UPDATE OF dead_at ON workers FOR EACH ROW
WHEN (OLD.dead_at IS NULL AND NEW.dead_why = 'stopped')
EXECUTE FUNCTION tell_audit('stop', 'worker', '', 'id', 'host pid beat_at draining_since dead_why');
CREATE TRIGGER workers_losses_are_told
AFTER UPDATE OF dead_at ON workers FOR EACH ROW
WHEN (OLD.dead_at IS NULL AND NEW.dead_why <> 'stopped')
EXECUTE FUNCTION tell_audit('lose', 'worker', '', 'id', 'host pid beat_at draining_since dead_why');

CREATE TRIGGER elections_first_holders_are_told
AFTER INSERT ON elections FOR EACH ROW
EXECUTE FUNCTION tell_audit('elect', 'election', '', 'name', 'holder term');
CREATE TRIGGER elections_new_holders_are_told
AFTER UPDATE OF holder ON elections FOR EACH ROW
WHEN (OLD.holder <> NEW.holder)
EXECUTE FUNCTION tell_audit('elect', 'election', '', 'name', 'holder term');
CREATE TRIGGER lanes_new_holders_are_told
AFTER UPDATE OF holder ON lanes FOR EACH ROW
WHEN (NEW.holder IS NOT NULL AND NEW.holder IS DISTINCT FROM OLD.holder)
EXECUTE FUNCTION tell_audit('elect', 'election', 'dispatcher ', 'lane', 'holder');

CREATE TRIGGER circuit_breakers_first_openings_are_told
AFTER INSERT ON circuit_breakers FOR EACH ROW
WHEN (NEW.state = 'open' AND coalesce(current_setting('imagefleet.acting', true), '') <> 'yes')
EXECUTE FUNCTION tell_audit(
    'open', 'circuit_breaker', '', 'service', 'state forced trips retry_at last_error_code updated_by'
);
CREATE TRIGGER circuit_breakers_openings_are_told
AFTER UPDATE OF state ON circuit_breakers FOR EACH ROW
WHEN (
    NEW.state = 'open' AND (OLD.state, OLD.forced) IS DISTINCT FROM (NEW.state, NEW.forced)
    AND coalesce(current_setting('imagefleet.acting', true), '') <> 'yes'
)
EXECUTE FUNCTION tell_audit(
    'open', 'circuit_breaker', '', 'service',
    'state forced trips retry_at window_failures window_successes last_error_code updated_by'
);
CREATE TRIGGER circuit_breakers_closings_are_told
AFTER UPDATE OF state ON circuit_breakers FOR EACH ROW
WHEN (
    NEW.state = 'closed' AND OLD.state <> 'closed'
    AND coalesce(current_setting('imagefleet.acting', true), '') <> 'yes'
)
EXECUTE FUNCTION tell_audit(
    'close', 'circuit_breaker', '', 'service', 'state forced trips retry_at last_error_code updated_by'
);

-- A tenant's pause is named by the tenant; 0016 brings such pauses.
CREATE TRIGGER pauses_are_told
AFTER INSERT OR UPDATE ON pauses FOR EACH ROW
WHEN (NEW.scope <> 'tenant' AND coalesce(current_setting('imagefleet.acting', true), '') <> 'yes')
EXECUTE FUNCTION tell_audit('pause', 'pause', '', 'scope name', 'refuse_new paused_by reason paused_at');
CREATE TRIGGER pauses_of_tenants_are_told
AFTER INSERT OR UPDATE ON pauses FOR EACH ROW
WHEN (NEW.scope = 'tenant' AND coalesce(current_setting('imagefleet.acting', true), '') <> 'yes')
EXECUTE FUNCTION tell_audit(
    'pause', 'pause', '', 'scope tenant_id name', 'refuse_new paused_by reason paused_at'
);
CREATE TRIGGER pauses_that_are_lifted_are_told
AFTER DELETE ON pauses FOR EACH ROW
WHEN (OLD.scope <> 'tenant' AND coalesce(current_setting('imagefleet.acting', true), '') <> 'yes')
EXECUTE FUNCTION tell_audit('resume', 'pause', '', 'scope name', 'refuse_new paused_by reason paused_at');
CREATE TRIGGER pauses_of_tenants_that_are_lifted_are_told
AFTER DELETE ON pauses FOR EACH ROW
WHEN (OLD.scope = 'tenant' AND coalesce(current_setting('imagefleet.acting', true), '') <> 'yes')
EXECUTE FUNCTION tell_audit(
    'resume', 'pause', '', 'scope tenant_id name', 'refuse_new paused_by reason paused_at'
);

CREATE TRIGGER tenants_that_are_new_are_told
AFTER INSERT ON tenants FOR EACH ROW
WHEN (coalesce(current_setting('imagefleet.acting', true), '') <> 'yes')
EXECUTE FUNCTION tell_audit('create', 'tenant', '', 'id', 'name max_open_jobs weight');
CREATE TRIGGER tenants_limits_are_told
AFTER UPDATE ON tenants FOR EACH ROW
WHEN (
    OLD IS DISTINCT FROM NEW AND coalesce(current_setting('imagefleet.acting', true), '') <> 'yes'
)
EXECUTE FUNCTION tell_audit('limit', 'tenant', '', 'id', 'name max_open_jobs weight');
CREATE TRIGGER api_keys_that_are_new_are_told
AFTER INSERT ON api_keys FOR EACH ROW
WHEN (coalesce(current_setting('imagefleet.acting', true), '') <> 'yes')
EXECUTE FUNCTION tell_audit('create', 'key', '', 'id', 'name scopes expires_at');
CREATE TRIGGER api_keys_that_end_are_told
AFTER UPDATE OF revoked_at ON api_keys FOR EACH ROW
WHEN (
    OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL
    AND coalesce(current_setting('imagefleet.acting', true), '') <> 'yes'
)
EXECUTE FUNCTION tell_audit('revoke', 'key', '', 'id', 'name scopes expires_at revoked_at');
