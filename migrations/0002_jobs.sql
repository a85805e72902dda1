-- The job, its attempts, its doorbell row, and the targets that give it an order.

SET lock_timeout = '2s';

CREATE TABLE jobs (
    id uuid NOT NULL CONSTRAINT jobs_pk PRIMARY KEY,
    tenant_id text NOT NULL,
    type text NOT NULL,
    state text NOT NULL DEFAULT 'queued',

    -- where and when it may run
    lane text NOT NULL,
    priority integer NOT NULL DEFAULT 100,
    run_at timestamptz NOT NULL DEFAULT now(),
    target text,
    target_seq bigint,
    preempts boolean NOT NULL DEFAULT false,
    services text [] NOT NULL DEFAULT '{}',
    pause_target_on_failure boolean NOT NULL DEFAULT false,

    -- who holds it
    claim_no bigint NOT NULL DEFAULT 0,
    locked_by uuid,
    locked_at timestamptz,
    claimed_at timestamptz,
    -- Whether the newest claim counts as an attempt; one made only to settle a flagged job does not.
    claim_charged boolean NOT NULL DEFAULT false,
    attempts integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL DEFAULT 5,

    -- what was asked, and by whom
    payload jsonb NOT NULL DEFAULT '{}',
    idempotency_key text,
    fingerprint text NOT NULL DEFAULT '',
    dedup_key text,
    correlation_id text NOT NULL,
    parent_job_id uuid,
    created_by text NOT NULL,
    replay_of uuid,
    generation integer NOT NULL DEFAULT 0,
    replay_reason text,
    traceparent text,
    tracestate text,

    -- a request to stop; never cleared
    cancel_requested_at timestamptz,
    cancel_code text,
    cancel_detail text,

    -- how far it is, and what came of it
    progress_done bigint NOT NULL DEFAULT 0,
    progress_total bigint,
    progress_cursor jsonb,
    last_progress_at timestamptz,
    result jsonb,
    result_reason text,
    failure_code text,
    failure_message text,
    failure_detail text,

    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,

    CONSTRAINT jobs_state_is_known CHECK (
        state IN ('queued', 'processing', 'completed', 'failed_retryable', 'failed')
    ),
    CONSTRAINT jobs_lane_is_known CHECK (lane IN ('fast', 'general', 'quarantine')),
    CONSTRAINT jobs_lock_is_set_exactly_while_processing CHECK (
        (state = 'processing') = (locked_by IS NOT NULL)
        AND (state = 'processing') = (locked_at IS NOT NULL)
    ),
    CONSTRAINT jobs_finished_at_is_set_exactly_when_terminal CHECK (
        (state IN ('completed', 'failed')) = (finished_at IS NOT NULL)
    ),
    CONSTRAINT jobs_failed_says_why CHECK (
        state <> 'failed' OR (failure_code IS NOT NULL AND failure_message IS NOT NULL)
    ),
    CONSTRAINT jobs_completed_says_why CHECK ((state = 'completed') = (result_reason IS NOT NULL)),
    CONSTRAINT jobs_result_reason_is_known CHECK (
        result_reason IN (
            'done', 'target_reached', 'nothing_left', 'superseded', 'requested', 'already_finished'
        )
    ),
    CONSTRAINT jobs_target_has_a_place_in_its_order CHECK ((target IS NULL) = (target_seq IS NULL)),
    CONSTRAINT jobs_charged_attempts_stay_within_limits CHECK (attempts BETWEEN 0 AND max_attempts),
    CONSTRAINT jobs_max_attempts_is_sane CHECK (max_attempts BETWEEN 1 AND 100),
    CONSTRAINT jobs_priority_is_sane CHECK (priority BETWEEN 0 AND 1000),
    CONSTRAINT jobs_cancel_code_is_known CHECK (
        cancel_code IN ('cancelled', 'image_deleted', 'failed_by_operator')
    ),
    CONSTRAINT jobs_cancel_says_why CHECK ((cancel_requested_at IS NULL) = (cancel_code IS NULL)),
    CONSTRAINT jobs_replay_says_of_which_generation CHECK ((replay_of IS NULL) = (generation = 0)),
    CONSTRAINT jobs_idempotency_key_is_bounded CHECK (length(idempotency_key) <= 255),
    CONSTRAINT jobs_dedup_key_is_bounded CHECK (length(dedup_key) <= 255)
) WITH (
    -- Every job is updated at least twice; room on the page keeps most of that near the row.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

-- One request, one job: concurrent duplicates wait here for the first to commit.
CREATE UNIQUE INDEX jobs_idempotency_key_is_unique_per_tenant
ON jobs (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- At most one living job for a dedup key.
CREATE UNIQUE INDEX jobs_dedup_key_is_unique_while_open
ON jobs (tenant_id, type, dedup_key)
WHERE dedup_key IS NOT NULL AND state IN ('queued', 'processing', 'failed_retryable');
-- A failure is replayed once.
CREATE UNIQUE INDEX jobs_replay_of_is_unique ON jobs (replay_of) WHERE replay_of IS NOT NULL;
-- Which open job of a target comes next.
CREATE INDEX jobs_open_of_a_target ON jobs (tenant_id, target, target_seq)
WHERE target IS NOT NULL AND state IN ('queued', 'processing', 'failed_retryable');
-- The few that go before their elders, so that a long queue behind a target is not read for them.
CREATE INDEX jobs_preempting_of_a_target ON jobs (tenant_id, target, target_seq)
WHERE preempts AND state IN ('queued', 'processing', 'failed_retryable');
-- What a worker holds: the beat and the rescue look here, never at the backlog.
CREATE INDEX jobs_held_by_a_worker ON jobs (locked_by) WHERE state = 'processing';
-- Gauges and stuck jobs: only what is open.
CREATE INDEX jobs_open_by_type ON jobs (type, state, run_at)
WHERE state IN ('queued', 'processing', 'failed_retryable');
-- Lists by page, newest first: ids sort by age. NULLS LAST, as the statements say it too: no other
-- index has that order, so the planner cannot walk the whole table by its key in search of a page.
CREATE INDEX jobs_list_of_a_tenant ON jobs (tenant_id, id DESC NULLS LAST);
CREATE INDEX jobs_list_by_state ON jobs (tenant_id, state, id DESC NULLS LAST);
CREATE INDEX jobs_list_by_type ON jobs (tenant_id, type, state, id DESC NULLS LAST);
CREATE INDEX jobs_list_by_target ON jobs (tenant_id, target, id DESC NULLS LAST)
WHERE target IS NOT NULL;
CREATE INDEX jobs_list_by_correlation ON jobs (tenant_id, correlation_id, id DESC NULLS LAST);
CREATE INDEX jobs_list_children ON jobs (tenant_id, parent_job_id, id DESC NULLS LAST)
WHERE parent_job_id IS NOT NULL;
-- Failures of the last hour, and what retention may remove, oldest first.
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE state IN ('completed', 'failed');

-- A request that was answered with another living job (dedup) keeps that answer for its key.
CREATE TABLE idempotency_aliases (
    tenant_id text NOT NULL,
    idempotency_key text NOT NULL,
    fingerprint text NOT NULL,
    job_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT idempotency_aliases_pk PRIMARY KEY (tenant_id, idempotency_key)
);
CREATE INDEX idempotency_aliases_of_a_job ON idempotency_aliases (job_id);

-- Append-only: exactly one row a claim, written by the statement that ends it.
CREATE TABLE attempts (
    job_id uuid NOT NULL,
    claim_no bigint NOT NULL,
    tenant_id text NOT NULL,
    type text NOT NULL,
    lane text NOT NULL,
    worker_id uuid NOT NULL,
    claimed_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT now(),
    duration interval NOT NULL,
    queue_time interval NOT NULL,
    charged boolean NOT NULL,
    outcome text NOT NULL,
    why text NOT NULL,
    detail text,
    log_excerpt text,
    CONSTRAINT attempts_pk_one_row_a_claim PRIMARY KEY (job_id, claim_no),
    CONSTRAINT attempts_outcome_is_known CHECK (
        outcome IN ('completed', 'retried', 'failed', 'released', 'rescued', 'taken_over', 'exhausted')
    ),
    CONSTRAINT attempts_log_excerpt_is_bounded CHECK (length(log_excerpt) <= 16384)
);
CREATE INDEX attempts_recent ON attempts (ended_at);

-- The doorbell: one row for every queued or failed_retryable job, none for any other. Submit, retry,
-- release and rescue write it in their own transaction; only the claiming statement deletes it.
CREATE TABLE rings (
    job_id uuid NOT NULL CONSTRAINT rings_pk PRIMARY KEY,
    lane text NOT NULL,
    priority integer NOT NULL,
    due_at timestamptz NOT NULL,
    rings integer NOT NULL DEFAULT 0,
    since timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT rings_lane_is_known CHECK (lane IN ('fast', 'general', 'quarantine')),
    CONSTRAINT rings_count_up CHECK (rings >= 0)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX rings_due ON rings (lane, priority, due_at);

-- What jobs are about (an image). The row is the lock under which one job of a target is chosen.
CREATE TABLE targets (
    tenant_id text NOT NULL,
    target text NOT NULL,
    next_seq bigint NOT NULL DEFAULT 1,
    running_job uuid,
    runs bigint NOT NULL DEFAULT 0,
    CONSTRAINT targets_pk PRIMARY KEY (tenant_id, target),
    CONSTRAINT targets_name_is_bounded CHECK (length(target) BETWEEN 1 AND 255)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
