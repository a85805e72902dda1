-- Ownership by grants: what a process must not do, Postgres refuses. No role may do more than its part
-- of the lifecycle, not even with a statement that somebody smuggled in.

SET lock_timeout = '2s';

REVOKE ALL ON SCHEMA public FROM public;
GRANT USAGE ON SCHEMA public
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;

GRANT SELECT ON ALL TABLES IN SCHEMA public
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;
REVOKE SELECT ON api_keys FROM imagefleet_worker, imagefleet_maintenance;

-- Creating a job: everything but its state, its claims and what came of it.
GRANT INSERT (
    id, tenant_id, type, lane, priority, run_at, target, target_seq, preempts, services,
    pause_target_on_failure, max_attempts, payload, idempotency_key, fingerprint, dedup_key,
    correlation_id, parent_job_id, created_by, replay_of, generation, replay_reason,
    traceparent, tracestate
) ON jobs TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;
GRANT INSERT (job_id, lane, priority, due_at) ON rings
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;
GRANT UPDATE (due_at, rings) ON rings TO imagefleet_api, imagefleet_operator;
GRANT INSERT (tenant_id, target, next_seq), UPDATE (next_seq) ON targets
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;
GRANT INSERT (tenant_id, idempotency_key, fingerprint, job_id) ON idempotency_aliases
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;

-- The API: accepts images and keys, never touches a job again.
GRANT UPDATE (last_used_at) ON api_keys TO imagefleet_api;
GRANT INSERT (id, tenant_id, reference, recipe), UPDATE (updated_at) ON images TO imagefleet_api;
GRANT INSERT ON image_sources, image_tombstones TO imagefleet_api;
-- A deletion that failed is asked for again by another job.
GRANT UPDATE (job_id) ON image_tombstones TO imagefleet_api;
GRANT INSERT (id, tenant_id, image_id, key, content_type, max_bytes, created_by, expires_at),
UPDATE (job_id, used_at) ON uploads TO imagefleet_api;

-- The worker: claims and ends jobs, publishes what they made.
GRANT UPDATE (
    state, run_at, lane, claim_no, locked_by, locked_at, claimed_at, claim_charged, attempts, crashes,
    cancel_requested_at, cancel_code, cancel_detail,
    progress_done, progress_total, progress_cursor, last_progress_at,
    result, result_reason, failure_code, failure_message, failure_detail, updated_at, finished_at
) ON jobs TO imagefleet_worker;
GRANT UPDATE (lane, due_at, rings), DELETE ON rings TO imagefleet_worker;
GRANT UPDATE (running_job, runs) ON targets TO imagefleet_worker;
GRANT INSERT ON attempts TO imagefleet_worker, imagefleet_maintenance;
GRANT INSERT (id, host, pid, version, lanes, types, slots),
UPDATE (beat_at, beats, draining_since, dead_at, dead_why) ON workers TO imagefleet_worker;
-- Forcing a breaker, and letting go of it, is the operator's.
GRANT INSERT (service, state, failures, trips, opened_at, retry_at, last_failure_at),
UPDATE (state, failures, trips, opened_at, retry_at, last_failure_at, updated_by, updated_at)
ON circuit_breakers TO imagefleet_worker;
GRANT UPDATE (recipe, source_seq, revision, claim_no, job_id, published_at, updated_at) ON images
TO imagefleet_worker;
GRANT INSERT, UPDATE (superseded_at, invalidation_id) ON image_revisions TO imagefleet_worker;
GRANT INSERT ON variants TO imagefleet_worker;
GRANT INSERT, UPDATE (reason, debts, last_owed_at) ON invalidations
TO imagefleet_worker, imagefleet_operator;
GRANT UPDATE (requested_by, request_reason) ON invalidations TO imagefleet_operator;
GRANT UPDATE (objects_deleted_at, objects, invalidation_id) ON image_tombstones TO imagefleet_worker;

-- Maintenance: repairs, sends, counts and forgets; it never runs a job.
GRANT UPDATE (
    state, run_at, lane, locked_by, locked_at, attempts, crashes,
    failure_code, failure_message, failure_detail, updated_at, finished_at
), DELETE ON jobs TO imagefleet_maintenance;
-- A waiting job that is given up (failed_retryable -> failed) has no ring any more.
GRANT UPDATE (lane, due_at, rings), DELETE ON rings TO imagefleet_maintenance;
GRANT UPDATE (running_job) ON targets TO imagefleet_maintenance;
GRANT UPDATE (dead_at, dead_why), DELETE ON workers TO imagefleet_maintenance;
GRANT DELETE ON attempts, idempotency_aliases, dead_letters, uploads, variants, image_revisions
TO imagefleet_maintenance;
GRANT INSERT, UPDATE ON dead_letters TO imagefleet_maintenance;
GRANT INSERT, UPDATE, DELETE ON dead_letter_sends, elections, periods TO imagefleet_maintenance;
GRANT INSERT, UPDATE, DELETE ON invalidations, invalidation_batches TO imagefleet_maintenance;
GRANT INSERT, UPDATE ON invalidation_months TO imagefleet_maintenance;
GRANT UPDATE (swept_at, invalidation_id) ON image_revisions TO imagefleet_maintenance;
GRANT UPDATE (dark_at, emptied_again_at, invalidation_id) ON image_tombstones
TO imagefleet_maintenance;
GRANT INSERT (pruned, accepted), DELETE ON ledger TO imagefleet_maintenance;

-- The operator: steers and acknowledges; what runs, and how it ended, is not for hands.
GRANT UPDATE (run_at, updated_at) ON jobs TO imagefleet_operator;
GRANT INSERT, UPDATE, DELETE ON pauses TO imagefleet_operator;
GRANT INSERT, UPDATE ON circuit_breakers TO imagefleet_operator;
GRANT UPDATE (acknowledged_at, acknowledged_by, acknowledged_note) ON dead_letters
TO imagefleet_operator;
GRANT INSERT ON tenants, api_keys TO imagefleet_operator;
GRANT UPDATE (revoked_at, expires_at) ON api_keys TO imagefleet_operator;
