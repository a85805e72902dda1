-- What an operator turns during an incident. A row is a deviation from the default of the environment;
-- without one that default holds, so undoing is a DELETE. Names, types and bounds are the program's.

SET lock_timeout = '2s';

CREATE TABLE live_settings (
    name text NOT NULL CONSTRAINT live_settings_pk PRIMARY KEY,
    value jsonb NOT NULL,
    set_by text NOT NULL,
    reason text NOT NULL,
    set_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT live_settings_name_is_bounded CHECK (length(name) BETWEEN 1 AND 200),
    CONSTRAINT live_settings_value_is_bounded CHECK (pg_column_size(value) <= 2048)
);

-- The same for one tenant, of the limits that are counted a tenant.
CREATE TABLE tenant_limits (
    tenant_id text NOT NULL,
    name text NOT NULL,
    value bigint NOT NULL,
    set_by text NOT NULL,
    reason text NOT NULL,
    set_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT tenant_limits_pk PRIMARY KEY (tenant_id, name),
    CONSTRAINT tenant_limits_belong_to_a_tenant FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT tenant_limits_name_is_a_word CHECK (name ~ '^[a-z][a-z_]{0,62}$'),
    CONSTRAINT tenant_limits_value_is_not_negative CHECK (value >= 0)
);

-- Counts the changes of both, whoever makes them: those who follow them read this number and nothing
-- else while it stands. A time would not do: of two transactions the younger may commit first.
CREATE TABLE live_version (
    only_row boolean NOT NULL DEFAULT true CONSTRAINT live_version_pk_one_row_only PRIMARY KEY,
    version bigint NOT NULL DEFAULT 0,
    CONSTRAINT live_version_has_one_row CHECK (only_row)
);
INSERT INTO live_version DEFAULT VALUES;

CREATE FUNCTION count_live_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    UPDATE public.live_version SET version = live_version.version + 1;
    RETURN NULL;
END
$$;

CREATE TRIGGER live_settings_are_followed
AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON live_settings
FOR EACH STATEMENT EXECUTE FUNCTION count_live_change();
CREATE TRIGGER tenant_limits_are_followed
AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tenant_limits
FOR EACH STATEMENT EXECUTE FUNCTION count_live_change();

-- Where nobody says that he acts: a person in psql.
CREATE TRIGGER live_settings_that_are_set_are_told
AFTER INSERT OR UPDATE ON live_settings FOR EACH ROW
WHEN (coalesce(current_setting('imagefleet.acting', true), '') <> 'yes')
EXECUTE FUNCTION tell_audit('set', 'setting', '', 'name', 'value set_by reason');
CREATE TRIGGER live_settings_that_are_reset_are_told
AFTER DELETE ON live_settings FOR EACH ROW
WHEN (coalesce(current_setting('imagefleet.acting', true), '') <> 'yes')
EXECUTE FUNCTION tell_audit('reset', 'setting', '', 'name', 'value set_by reason');
CREATE TRIGGER tenant_limits_are_told
AFTER INSERT OR UPDATE OR DELETE ON tenant_limits FOR EACH ROW
WHEN (coalesce(current_setting('imagefleet.acting', true), '') <> 'yes')
EXECUTE FUNCTION tell_audit('limit', 'tenant', '', 'tenant_id', 'name value set_by reason');

-- What the environment of each process says, told when one starts: shown beside what is turned, and read by
-- nobody who decides anything. So no process is kept from telling of another kind of process.
CREATE TABLE live_defaults (
    process text NOT NULL CONSTRAINT live_defaults_pk PRIMARY KEY,
    defaults jsonb NOT NULL,
    told_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT live_defaults_process_is_known CHECK (process IN ('api', 'worker', 'maintenance')),
    CONSTRAINT live_defaults_are_bounded CHECK (pg_column_size(defaults) <= 65536)
);

-- Retention is read here by statements, so it is turned here; what stood before waits for the reset.
ALTER TABLE fleet ADD COLUMN default_retention interval
CONSTRAINT fleet_default_retention_keeps_idempotency_keys
CHECK (default_retention >= interval '30 days');
CREATE TRIGGER fleet_retention_that_is_changed_is_told
AFTER UPDATE ON fleet FOR EACH ROW
WHEN (
    (OLD.retention, OLD.default_retention) IS DISTINCT FROM (NEW.retention, NEW.default_retention)
    AND coalesce(current_setting('imagefleet.acting', true), '') <> 'yes'
)
EXECUTE FUNCTION tell_audit('set', 'setting', 'retention.jobs_days', '', 'retention default_retention');

REVOKE ALL ON FUNCTION count_live_change() FROM PUBLIC;
GRANT SELECT ON live_settings, tenant_limits, live_version, live_defaults
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;
GRANT INSERT, UPDATE, DELETE ON live_settings, tenant_limits TO imagefleet_operator;
GRANT INSERT, UPDATE ON live_defaults TO imagefleet_api, imagefleet_worker, imagefleet_maintenance;
GRANT UPDATE (retention, default_retention) ON fleet TO imagefleet_operator;
GRANT UPDATE (max_open_jobs) ON tenants TO imagefleet_operator;
