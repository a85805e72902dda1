-- Operators order on behalf of a tenant what producers may: a rendering (which they may submit already), another focal
-- point, a deletion. What is published stays with workers, and whatever is ordered is told in the audit.

SET lock_timeout = '2s';

GRANT UPDATE (focal_x, focal_y, updated_at) ON images TO imagefleet_operator;
GRANT INSERT, UPDATE (job_id) ON image_tombstones TO imagefleet_operator;
