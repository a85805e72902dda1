-- What ended in each minute, hour and day, by type and lane, and what SQS, S3 and CloudFront billed meanwhile:
-- counted once, by an elected process, so that whoever asks how the fleet does reads no history. What ended before
-- this file is not counted.
--
-- Processes of earlier releases tell nothing of what they submit and send.

SET lock_timeout = '2s';

-- Three rows for every minute, type and lane in which something happened: its own, its hour's and its day's.
CREATE TABLE rollups (
    step text NOT NULL,
    at timestamptz NOT NULL,
    type text NOT NULL,
    lane text NOT NULL,
    submitted bigint NOT NULL DEFAULT 0,
    completed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    stopped bigint NOT NULL DEFAULT 0,
    retried bigint NOT NULL DEFAULT 0,
    released bigint NOT NULL DEFAULT 0,
    lost bigint NOT NULL DEFAULT 0,
    published bigint NOT NULL DEFAULT 0,
    -- How many took how long: the first number is of those up to a millisecond, each next one of those that took up
    -- to 1.2 times as long as the one before. Such rows are added up and nothing is lost.
    waits bigint [] NOT NULL DEFAULT '{}',
    durations bigint [] NOT NULL DEFAULT '{}',
    longest_wait interval NOT NULL DEFAULT interval '0',
    longest_duration interval NOT NULL DEFAULT interval '0',
    CONSTRAINT rollups_pk PRIMARY KEY (step, at, type, lane),
    CONSTRAINT rollups_step_is_known CHECK (step IN ('minute', 'hour', 'day'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE TABLE rollup_costs (
    step text NOT NULL,
    at timestamptz NOT NULL,
    sqs_requests bigint NOT NULL DEFAULT 0,
    s3_writes bigint NOT NULL DEFAULT 0,
    invalidation_paths bigint NOT NULL DEFAULT 0,
    CONSTRAINT rollup_costs_pk PRIMARY KEY (step, at),
    CONSTRAINT rollup_costs_step_is_known CHECK (step IN ('minute', 'hour', 'day'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- What no attempt tells: submits, as the book is folded; and what every process has sent since it said so last.
-- Append-only; who adds it to the rollups deletes it.
CREATE TABLE rollup_entries (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT rollup_entries_pk PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    type text,
    lane text,
    submitted bigint NOT NULL DEFAULT 0,
    sqs_requests bigint NOT NULL DEFAULT 0,
    s3_writes bigint NOT NULL DEFAULT 0,
    invalidation_paths bigint NOT NULL DEFAULT 0,
    CONSTRAINT rollup_entries_name_both_or_neither CHECK ((type IS NULL) = (lane IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Up to when attempts are counted; and up to when they were counted a second time, after everybody was through who
-- might have ended one by then.
CREATE TABLE rollup_progress (
    only_row boolean NOT NULL DEFAULT true CONSTRAINT rollup_progress_pk_one_row_only PRIMARY KEY,
    counted_until timestamptz NOT NULL DEFAULT date_trunc('minute', now()),
    settled_until timestamptz NOT NULL DEFAULT date_trunc('minute', now()),
    -- Whoever had a number at this time has one below this.
    marked_at timestamptz NOT NULL DEFAULT now(),
    mark xid8 NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT rollup_progress_has_one_row CHECK (only_row)
);
INSERT INTO rollup_progress DEFAULT VALUES;

GRANT SELECT ON rollups, rollup_costs, rollup_progress TO imagefleet_maintenance, imagefleet_operator;
GRANT SELECT ON rollup_entries TO imagefleet_maintenance;
GRANT INSERT, UPDATE, DELETE ON rollups, rollup_costs TO imagefleet_maintenance;
GRANT UPDATE (counted_until, settled_until, marked_at, mark) ON rollup_progress TO imagefleet_maintenance;
GRANT INSERT (sqs_requests, s3_writes) ON rollup_entries TO imagefleet_api, imagefleet_worker;
GRANT INSERT (at, type, lane, submitted, sqs_requests, s3_writes, invalidation_paths), DELETE ON rollup_entries
TO imagefleet_maintenance;
