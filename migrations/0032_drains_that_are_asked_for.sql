-- An operator asks a worker to drain, and its next beat tells it so. No index names the column: a beat stays HOT.

SET lock_timeout = '2s';

ALTER TABLE workers ADD COLUMN drain_requested_at timestamptz;
GRANT UPDATE (drain_requested_at) ON workers TO imagefleet_operator;
