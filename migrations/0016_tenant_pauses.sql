-- A pause may be of a whole tenant, or of one type of a tenant's jobs: then `name` is the type.
--
-- Processes of 0.2.0 run beside the new ones while they are replaced: their claims, looks and submits ask
-- for the scopes they know and pass over such a row.

-- squawk-ignore-file ban-drop-constraint, constraint-missing-not-valid

SET lock_timeout = '2s';

-- Wider ones: every row that was allowed is. A hundred thousand pauses are read in some ten milliseconds.
ALTER TABLE pauses
DROP CONSTRAINT pauses_scope_is_known,
DROP CONSTRAINT pauses_name_fits_the_scope,
DROP CONSTRAINT pauses_tenant_fits_the_scope;
ALTER TABLE pauses
ADD CONSTRAINT pauses_scope_is_known CHECK (scope IN ('target', 'tenant', 'type', 'lane', 'all')),
ADD CONSTRAINT pauses_name_fits_the_scope CHECK (scope = 'tenant' OR (scope = 'all') = (name = '')),
ADD CONSTRAINT pauses_tenant_fits_the_scope CHECK ((scope IN ('target', 'tenant')) = (tenant_id <> ''));

-- The job that cancels all others of a tenant stands behind none of them.
GRANT UPDATE (priority) ON rings TO imagefleet_operator;
