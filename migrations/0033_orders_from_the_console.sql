-- An operator asks a worker to drain, and its next beat tells it so: no index names the column, so a beat stays HOT.
-- And an operator gives an image of a tenant another original, as the tenant itself may.

SET lock_timeout = '2s';

ALTER TABLE workers ADD COLUMN drain_requested_at timestamptz;
GRANT UPDATE (drain_requested_at) ON workers TO imagefleet_operator;

GRANT INSERT (id, tenant_id, reference, recipe, recipe_hash, focal_x, focal_y) ON images TO imagefleet_operator;
GRANT INSERT ON image_sources TO imagefleet_operator;
