-- Originals are kept for as long as a setting says, and may be read back by keys that have leave to.
--
-- A row of which the object is gone stays, as what is shown was made of it. Processes of releases before
-- leave the column empty; they look for such an object, and tell that it is missing.
-- squawk-ignore-file ban-drop-constraint

SET lock_timeout = '2s';

ALTER TABLE image_sources ADD COLUMN gone_at timestamptz;
GRANT UPDATE (gone_at) ON image_sources TO imagefleet_maintenance;

-- Not validated: what is there has scopes of the narrower rule that this one takes the place of.
ALTER TABLE api_keys
DROP CONSTRAINT api_keys_scopes_are_known,
ADD CONSTRAINT api_keys_scopes_are_known CHECK (
    scopes <@ ARRAY['submit', 'read', 'operate', 'originals'] AND cardinality(scopes) > 0
) NOT VALID;
