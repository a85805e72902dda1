-- What operators look at. Each view reads an index of its own: of what is open, or of the last hour.

SET lock_timeout = '2s';

-- Reads every open job.
CREATE VIEW job_queue_health AS
SELECT
    jobs.type,
    jobs.state,
    jobs.lane,
    count(*) AS jobs,
    min(jobs.run_at) AS oldest_due
FROM jobs
WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')
GROUP BY jobs.type, jobs.state, jobs.lane;

-- No type may run for so long: a handler that hangs, or a worker whose beat goes on without it.
CREATE VIEW stuck_jobs AS
SELECT
    jobs.id,
    jobs.tenant_id,
    jobs.type,
    jobs.lane,
    jobs.attempts,
    jobs.claimed_at,
    jobs.last_progress_at,
    jobs.locked_by,
    workers.host,
    workers.beat_at
FROM jobs
LEFT JOIN workers ON workers.id = jobs.locked_by
WHERE jobs.state = 'processing' AND jobs.claimed_at < now() - interval '1 hour';

-- Reads what finished within the last hour.
CREATE VIEW recent_failures AS
SELECT
    jobs.type,
    jobs.failure_code,
    count(*) AS failures,
    max(jobs.finished_at) AS latest_failure
FROM jobs
WHERE
    jobs.state = 'failed'
    AND jobs.finished_at > now() - interval '1 hour'
GROUP BY jobs.type, jobs.failure_code;

-- Reads the attempts that ended within the last hour.
CREATE VIEW throughput AS
SELECT
    attempts.type,
    attempts.lane,
    attempts.outcome,
    count(*) AS attempts,
    avg(attempts.duration) AS mean_duration,
    max(attempts.duration) AS longest_duration,
    avg(attempts.queue_time) AS mean_queue_time
FROM attempts
WHERE attempts.ended_at > now() - interval '1 hour'
GROUP BY attempts.type, attempts.lane, attempts.outcome;

-- Where every accepted job is. The one that reads an index of all jobs: it is no proof otherwise.
CREATE VIEW ledger_balance AS
SELECT
    entries.accepted,
    entries.pruned,
    places.open,
    places.completed,
    places.failed,
    entries.accepted - entries.pruned - places.open - places.completed - places.failed AS missing
FROM (
    SELECT
        coalesce(sum(ledger.accepted), 0)::bigint AS accepted,
        coalesce(sum(ledger.pruned), 0)::bigint AS pruned
    FROM ledger
) AS entries
CROSS JOIN (
    SELECT
        count(*) FILTER (WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')) AS open,
        count(*) FILTER (WHERE jobs.state = 'completed') AS completed,
        count(*) FILTER (WHERE jobs.state = 'failed') AS failed
    FROM jobs
) AS places;

-- What SQS should hold: a message of every job that was announced and not claimed since, and one of
-- every job that runs. Only SQS knows what it does hold; the difference is the drift.
CREATE VIEW expected_messages AS
SELECT
    lanes.lane,
    coalesce(waiting.jobs, 0) AS waiting,
    coalesce(waiting.announced, 0) AS announced,
    coalesce(running.jobs, 0) AS processing,
    coalesce(waiting.announced, 0) + coalesce(running.jobs, 0) AS expected
FROM (VALUES ('fast'), ('general'), ('quarantine')) AS lanes (lane)
LEFT JOIN (
    SELECT
        rings.lane,
        count(*) AS jobs,
        count(*) FILTER (WHERE rings.rings > 0) AS announced
    FROM rings
    GROUP BY rings.lane
) AS waiting ON waiting.lane = lanes.lane
LEFT JOIN (
    SELECT
        jobs.lane,
        count(*) AS jobs
    FROM jobs
    WHERE jobs.state = 'processing'
    GROUP BY jobs.lane
) AS running ON running.lane = lanes.lane;

GRANT SELECT ON job_queue_health, stuck_jobs, recent_failures, throughput, ledger_balance,
expected_messages
TO imagefleet_maintenance, imagefleet_operator;
