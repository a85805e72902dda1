-- Breakers by a share of failures: the calls of the current window are counted on the row, and only
-- while some fail. Processes of the version before count `failures` as they did, and neither side
-- reads the other's numbers; the column goes once none of them can run.

SET lock_timeout = '2s';

ALTER TABLE circuit_breakers
-- Null: nothing is counted now.
ADD COLUMN window_ends_at timestamptz,
-- Of the current window; of an open breaker, those that opened it.
ADD COLUMN window_failures integer NOT NULL DEFAULT 0,
ADD COLUMN window_successes integer NOT NULL DEFAULT 0,
-- Set while the failures are enough to be judged: whoever claims work of the service then tells of
-- successes, too.
ADD COLUMN judged_from timestamptz,
-- A word such as s3_throttled, never a text.
ADD COLUMN last_error_code text
CONSTRAINT circuit_breakers_code_is_a_word CHECK (last_error_code ~ '^[a-z][a-z0-9_]{0,62}$');

GRANT UPDATE (
    window_ends_at, window_failures, window_successes, judged_from, last_error_code
) ON circuit_breakers TO imagefleet_worker;
