-- The statements of release 0.2.0, as its store sent them: processes of it run beside new ones during a
-- rollout, so every schema after it has to understand them until a release says otherwise.

-- admissions.IS_STANDING
SELECT EXISTS (SELECT FROM jobs
                WHERE jobs.tenant_id = $1 AND jobs.idempotency_key = $2)
       OR EXISTS (SELECT FROM idempotency_aliases
                   WHERE idempotency_aliases.tenant_id = $1
                     AND idempotency_aliases.idempotency_key = $2)
       OR EXISTS (SELECT FROM jobs
                   WHERE jobs.tenant_id = $1 AND jobs.type = $3 AND jobs.dedup_key = $4
                     AND jobs.state IN ('queued', 'processing', 'failed_retryable'))

-- admissions.ROOM_FOR_JOBS
SELECT tenants.max_open_jobs
       - (SELECT count(*)
            FROM (SELECT FROM jobs
                   WHERE jobs.tenant_id = $1
                     AND jobs.state IN ('queued', 'processing', 'failed_retryable')
                   LIMIT (SELECT quota.max_open_jobs FROM tenants AS quota WHERE quota.id = $1)
                 ) AS open) AS room
  FROM tenants
 WHERE tenants.id = $1

-- batches.LIST_UNSENT
SELECT batches.id, batches.items, batches.last_error
  FROM invalidation_batches AS batches
 WHERE batches.completed_at IS NULL AND batches.accepted_at IS NULL
 ORDER BY batches.sends, batches.created_at
 LIMIT $1

-- batches.BEGIN_SEND
UPDATE invalidation_batches SET sends = sends + 1 WHERE id = $1 AND accepted_at IS NULL RETURNING id

-- batches.ACCEPT_BATCH
WITH accepted AS (
    UPDATE invalidation_batches
       SET accepted_at = now(), cloudfront_id = $2
     WHERE id = $1 AND accepted_at IS NULL
    RETURNING id, paths
),
paid AS (
    SELECT accepted.paths, coalesce(sum(stamped.debts), 0)::integer AS debts
      FROM accepted
      LEFT JOIN invalidations AS stamped ON stamped.batch_id = accepted.id
     GROUP BY accepted.paths
),
billed AS (
    INSERT INTO invalidation_months AS months (month, paths, debts, batches)
    SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date, paid.paths, paid.debts, 1
      FROM paid
        ON CONFLICT (month) DO UPDATE
           SET paths = months.paths + excluded.paths, debts = months.debts + excluded.debts,
               batches = months.batches + 1
    RETURNING months.paths
)
SELECT paid.paths, paid.debts, billed.paths AS month_paths FROM paid CROSS JOIN billed

-- batches.DEFER_BATCH
UPDATE invalidation_batches SET last_error = $2 WHERE id = $1 AND accepted_at IS NULL

-- batches.LIST_ACCEPTED
SELECT batches.id AS batch_id, batches.cloudfront_id
  FROM invalidation_batches AS batches
 WHERE batches.completed_at IS NULL AND batches.accepted_at IS NOT NULL
 ORDER BY batches.created_at
 LIMIT $1

-- batches.COMPLETE_BATCH
WITH done AS (
    UPDATE invalidation_batches
       SET completed_at = now()
     WHERE id = $1 AND cloudfront_id = $2 AND completed_at IS NULL
    RETURNING id, completed_at
),
dark AS (
    UPDATE image_tombstones
       SET dark_at = done.completed_at
      FROM done
      JOIN invalidations AS debts ON debts.batch_id = done.id
     WHERE image_tombstones.image_id = debts.image_id
       AND image_tombstones.invalidation_id = debts.id AND image_tombstones.dark_at IS NULL
    RETURNING image_tombstones.dark_at - image_tombstones.requested_at AS took
)
SELECT coalesce((SELECT array_agg(dark.took) FROM dark), '{}') AS dark FROM done

-- batches.DOUBT_BATCH
UPDATE invalidation_batches
   SET accepted_at = NULL, cloudfront_id = NULL, last_error = $3
 WHERE id = $1 AND cloudfront_id = $2 AND completed_at IS NULL

-- breakers.REPORT_FAILURES
INSERT INTO circuit_breakers AS breaker (service, state, failures, trips, opened_at, retry_at,
                                         last_failure_at)
SELECT $1, CASE WHEN $2::integer >= $3::integer THEN 'open' ELSE 'closed' END, $2,
       ($2 >= $3)::integer, CASE WHEN $2 >= $3 THEN now() END,
       CASE WHEN $2 >= $3 THEN now() + $4::interval END, now()
    ON CONFLICT (service) DO UPDATE
       SET failures = breaker.failures + excluded.failures,
           -- An open one stays open, whatever threshold this reporter goes by.
           state = CASE WHEN breaker.state = 'open' OR breaker.failures + excluded.failures >= $3
                        THEN 'open' ELSE 'closed' END,
           trips = breaker.trips + (breaker.state = 'closed'
                                    AND breaker.failures + excluded.failures >= $3)::integer,
           opened_at = CASE WHEN breaker.state = 'open' THEN breaker.opened_at
                            WHEN breaker.failures + excluded.failures >= $3 THEN now() END,
           retry_at = CASE WHEN breaker.state = 'open'
                                OR breaker.failures + excluded.failures >= $3
                           THEN now() + $4::interval END,
           last_failure_at = now(), updated_by = 'worker', updated_at = now()
     WHERE NOT breaker.forced
RETURNING state = 'open' AS open

-- breakers.OPEN_UNTIL
SELECT CASE WHEN forced THEN now() + interval '60 seconds' ELSE retry_at END AS until
  FROM circuit_breakers
 WHERE service = $1 AND state = 'open' AND (forced OR retry_at > now())

-- breakers.REPORT_SUCCESS
UPDATE circuit_breakers
   SET state = 'closed', failures = 0, opened_at = NULL, retry_at = NULL,
       updated_by = 'worker', updated_at = now()
 WHERE service = $1 AND NOT forced
   AND ((state = 'open' AND $2) OR (state = 'closed' AND failures > 0))

-- breakers.FORCE_OPEN
INSERT INTO circuit_breakers AS breaker (service, state, forced, trips, opened_at, retry_at,
                                         updated_by)
VALUES ($1, 'open', true, 1, now(), now(), $2)
    ON CONFLICT (service) DO UPDATE
       SET state = 'open', forced = true, trips = breaker.trips + (breaker.state = 'closed')::int,
           opened_at = coalesce(breaker.opened_at, now()), retry_at = now(),
           updated_by = $2, updated_at = now()

-- breakers.RESET_BREAKER
UPDATE circuit_breakers
   SET state = 'closed', forced = false, failures = 0, opened_at = NULL, retry_at = NULL,
       updated_by = $2, updated_at = now()
 WHERE service = $1
RETURNING service

-- breakers.RING_HELD_BACK
WITH bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
      JOIN jobs ON jobs.id = rings.job_id
     WHERE $1 = ANY (jobs.services)
       AND jobs.state IN ('queued', 'failed_retryable') AND jobs.run_at <= now()
     ORDER BY rings.job_id
       FOR UPDATE OF rings
)
UPDATE rings SET due_at = now(), rings = 0 FROM bell WHERE rings.job_id = bell.job_id

-- breakers.LIST_BREAKERS
SELECT breakers.service,
       CASE WHEN breakers.state = 'closed' THEN 'closed'
            WHEN breakers.forced OR breakers.retry_at > now() THEN 'open'
            ELSE 'half_open' END AS state,
       breakers.forced, breakers.failures, breakers.trips, breakers.opened_at,
       CASE WHEN NOT breakers.forced THEN breakers.retry_at END AS retry_at,
       breakers.last_failure_at, breakers.updated_by, breakers.updated_at
  FROM circuit_breakers AS breakers
 ORDER BY breakers.service

-- claims.CLAIM_JOBS
WITH me AS MATERIALIZED (
    -- The rescuer marks a worker dead under FOR UPDATE of this row: a dead id claims nothing.
    SELECT workers.id FROM workers WHERE workers.id = $4 AND workers.dead_at IS NULL FOR KEY SHARE
),
seen AS MATERIALIZED (
    SELECT jobs.id, jobs.state, jobs.claim_no, jobs.tenant_id, jobs.target,
           targets.running_job, targets.runs, rings.due_at
      FROM jobs
      LEFT JOIN targets ON targets.tenant_id = jobs.tenant_id AND targets.target = jobs.target
      LEFT JOIN rings ON rings.job_id = jobs.id
     WHERE jobs.id = ANY ($1::uuid[])
       AND jobs.state IN ('queued', 'processing', 'failed_retryable')
       AND EXISTS (SELECT FROM me)
),
target AS MATERIALIZED (
    SELECT targets.tenant_id, targets.target, targets.running_job, targets.runs
      FROM (SELECT DISTINCT seen.tenant_id, seen.target FROM seen) AS wanted
      JOIN targets ON targets.tenant_id = wanted.tenant_id AND targets.target = wanted.target
     ORDER BY targets.tenant_id, targets.target
       FOR UPDATE OF targets SKIP LOCKED
),
job AS MATERIALIZED (
    -- The last four conditions are asked again of the newest version of the row once it is locked:
    -- a job or target that moved since our snapshot is `contended`, not judged by halves.
    SELECT jobs.*
      FROM jobs
      JOIN seen ON seen.id = jobs.id
      LEFT JOIN target ON target.tenant_id = seen.tenant_id AND target.target = seen.target
     WHERE (seen.target IS NULL OR target.target IS NOT NULL)
       AND target.running_job IS NOT DISTINCT FROM seen.running_job
       AND target.runs IS NOT DISTINCT FROM seen.runs
       AND jobs.state = seen.state
       AND jobs.claim_no = seen.claim_no
     ORDER BY jobs.id
       FOR UPDATE OF jobs SKIP LOCKED
),
probe AS MATERIALIZED (
    -- Half-open breakers: who locks the row may send one probe and closes the gap behind it.
    SELECT breakers.service
      FROM circuit_breakers AS breakers
     WHERE breakers.state = 'open' AND NOT breakers.forced AND breakers.retry_at <= now()
       AND breakers.service = ANY (ARRAY (SELECT unnest(job.services) FROM job))
     ORDER BY breakers.service
       FOR UPDATE SKIP LOCKED
),
judged AS MATERIALIZED (
    SELECT job.*, fleet.lock_timeout,

  CASE
      WHEN job.state IN ('completed', 'failed') THEN 'finished'
      WHEN job.state = 'processing' AND job.locked_at >= now() - fleet.lock_timeout THEN 'busy'
      WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled'
      WHEN job.state = 'processing' AND job.attempts >= job.max_attempts THEN 'exhausted'
      -- An expired lock that may not be taken over now has no ring that could be set: its message
      -- is all there is, so it is told to come back.
      WHEN job.state = 'processing' AND (job.lane <> ALL ($2::text[]) OR pause.what IS NOT NULL
                                         OR breaker.service IS NOT NULL) THEN 'busy'
      WHEN job.lane <> ALL ($2::text[]) THEN 'elsewhere'
      WHEN job.type <> ALL ($3::text[]) THEN 'unroutable'
      WHEN job.state <> 'processing' AND job.run_at > now() THEN 'not_due'
      WHEN pause.what IS NOT NULL THEN 'paused'
      WHEN target.running_job <> job.id OR elder.id IS NOT NULL THEN 'target_busy'
      WHEN breaker.service IS NOT NULL THEN 'breaker'
      ELSE 'claimed'
  END
 AS first_verdict,
  CASE
      WHEN job.state IN ('completed', 'failed') THEN NULL
      WHEN job.state = 'processing' AND job.locked_at >= now() - fleet.lock_timeout
          THEN job.locked_at + fleet.lock_timeout
      WHEN job.run_at > now() THEN job.run_at
      WHEN breaker.service IS NOT NULL THEN breaker.until
      ELSE now() + interval '60 seconds'
  END
 AS until,
  CASE
      WHEN pause.what IS NOT NULL THEN pause.what
      WHEN target.running_job <> job.id THEN target.running_job::text
      WHEN elder.id IS NOT NULL THEN elder.id::text
      ELSE breaker.service
  END
 AS why,
           half_open.services AS half_open, half_open.mine AS may_probe
      FROM job
      CROSS JOIN fleet
      LEFT JOIN target ON target.tenant_id = job.tenant_id AND target.target = job.target

  LEFT JOIN LATERAL (
      SELECT concat_ws(':', pauses.scope, nullif(pauses.name, '')) AS what
        FROM pauses
       WHERE pauses.scope = 'all'
          OR (pauses.scope = 'lane' AND pauses.name = job.lane)
          OR (pauses.scope = 'type' AND pauses.name = job.type)
          OR (pauses.scope = 'target'
              AND pauses.tenant_id = job.tenant_id AND pauses.name = job.target)
       ORDER BY pauses.scope
       LIMIT 1
  ) AS pause ON NOT job.preempts
  LEFT JOIN LATERAL (
      SELECT breakers.service,
             CASE WHEN breakers.forced THEN now() + interval '60 seconds'
                  ELSE breakers.retry_at END AS until
        FROM circuit_breakers AS breakers
       WHERE breakers.service = ANY (job.services)
         AND breakers.state = 'open'
         AND (breakers.forced OR breakers.retry_at > now())
       ORDER BY breakers.forced DESC, breakers.retry_at DESC
       LIMIT 1
  ) AS breaker ON true
  LEFT JOIN LATERAL (
      -- Who must go first: an older open job of the target. A retry in backoff blocks, a run_at in
      -- the future does not, and neither does a job that is only waiting to be settled as
      -- cancelled. Nobody goes before the job that has the target: it may be taken over though an
      -- older one has become due meanwhile.
      SELECT elders.id
        FROM jobs AS elders
       WHERE elders.tenant_id = job.tenant_id
         AND elders.target = job.target
         AND elders.target_seq < job.target_seq
         AND elders.state IN ('queued', 'processing', 'failed_retryable')
         AND (elders.state = 'processing'
              OR (elders.cancel_requested_at IS NULL
                  AND NOT (elders.state = 'queued' AND elders.run_at > now())))
       ORDER BY elders.target_seq
       LIMIT 1
  ) AS elder ON job.target IS NOT NULL AND NOT job.preempts
            AND target.running_job IS DISTINCT FROM job.id

      LEFT JOIN LATERAL (
          SELECT array_agg(breakers.service ORDER BY breakers.service) AS services,
                 bool_and(breakers.service IN (SELECT probe.service FROM probe)) AS mine
            FROM circuit_breakers AS breakers
           WHERE breakers.service = ANY (job.services)
             AND breakers.state = 'open' AND NOT breakers.forced AND breakers.retry_at <= now()
      ) AS half_open ON true
),
chosen AS MATERIALIZED (
    SELECT judged.*,
           CASE
               WHEN judged.first_verdict <> 'claimed' THEN judged.first_verdict
               -- At most one job a target: a preempting one first, else the oldest.
               WHEN judged.target IS NOT NULL AND row_number() OVER (
                   PARTITION BY judged.first_verdict, judged.tenant_id, judged.target
                   ORDER BY judged.preempts DESC, judged.target_seq) > 1 THEN 'target_busy'
               WHEN judged.half_open IS NOT NULL AND (NOT judged.may_probe OR row_number() OVER (
                   PARTITION BY judged.first_verdict, judged.half_open
                   ORDER BY judged.priority, judged.id) > 1)
                   THEN CASE judged.state WHEN 'processing' THEN 'busy' ELSE 'breaker' END
               ELSE 'claimed'
           END AS verdict
      FROM judged
),
taken AS (
    UPDATE jobs
       SET state = 'processing',
           claim_no = jobs.claim_no + 1,
           claim_charged = (chosen.verdict = 'claimed'),
           attempts = jobs.attempts + (chosen.verdict = 'claimed')::int,
           crashes = jobs.crashes + (chosen.state = 'processing')::int,
           run_at = CASE chosen.state WHEN 'processing'
                         THEN chosen.locked_at + chosen.lock_timeout ELSE jobs.run_at END,
           locked_by = $4, locked_at = now(), claimed_at = now(), updated_at = now()
      FROM chosen
     WHERE jobs.id = chosen.id AND chosen.verdict IN ('claimed', 'cancelled')
    RETURNING jobs.*
),
exhausted AS (
    UPDATE jobs
       SET state = 'failed', locked_by = NULL, locked_at = NULL,
           failure_code = CASE jobs.lane WHEN 'quarantine' THEN 'poison'
                               ELSE 'attempts_exhausted' END,
           failure_message = CASE jobs.lane WHEN 'quarantine' THEN $6 ELSE $5 END,
           failure_detail = 'the lock of claim ' || jobs.claim_no || ' expired on the last attempt',
           finished_at = now(), updated_at = now()
      FROM chosen
     WHERE jobs.id = chosen.id AND chosen.verdict = 'exhausted'
),
ended AS (
    -- The claim that we take over, or that was the last one, ends here: its attempts row is ours to
    -- write.
    INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                          queue_time, charged, outcome, why)
    SELECT chosen.id, chosen.claim_no, chosen.tenant_id, chosen.type, chosen.lane, chosen.locked_by,
           chosen.claimed_at, now() - chosen.claimed_at,
           greatest(chosen.claimed_at - chosen.run_at, interval '0'),
           chosen.claim_charged,
           CASE chosen.verdict WHEN 'exhausted' THEN 'exhausted' ELSE 'taken_over' END,
           'lock_expired'
      FROM chosen
     WHERE chosen.state = 'processing' AND chosen.verdict IN ('claimed', 'cancelled', 'exhausted')
),
occupied AS (
    UPDATE targets
       SET running_job = CASE chosen.verdict WHEN 'claimed' THEN chosen.id END,
           runs = targets.runs + 1
      FROM chosen
     WHERE targets.tenant_id = chosen.tenant_id AND targets.target = chosen.target
       AND (chosen.verdict = 'claimed'
            OR (chosen.verdict = 'exhausted' AND targets.running_job = chosen.id))
),
probing AS (
    UPDATE circuit_breakers AS breakers
       SET retry_at = now() + interval '30 seconds', updated_at = now()
      FROM probe
     WHERE breakers.service = probe.service
       AND probe.service = ANY (ARRAY (SELECT unnest(chosen.services) FROM chosen
                                        WHERE chosen.verdict = 'claimed'))
),
successor AS MATERIALIZED (
    -- An exhausted job frees its target: whoever is next there is rung at once.
    SELECT next.id
      FROM chosen AS freed

  CROSS JOIN LATERAL (
      SELECT head.id
        FROM ((SELECT 1 AS turn, jobs.id, jobs.run_at
                 FROM jobs
                WHERE jobs.tenant_id = freed.tenant_id AND jobs.target = freed.target
                  AND jobs.state IN ('queued', 'failed_retryable')
                  AND jobs.cancel_requested_at IS NULL
                  AND jobs.preempts AND jobs.run_at <= now()
                ORDER BY jobs.target_seq
                LIMIT 1)
              UNION ALL
              (SELECT 2, jobs.id, jobs.run_at
                 FROM jobs
                WHERE jobs.tenant_id = freed.tenant_id AND jobs.target = freed.target
                  AND jobs.state IN ('queued', 'failed_retryable')
                  AND jobs.cancel_requested_at IS NULL
                  AND NOT (jobs.state = 'queued' AND jobs.run_at > now())
                ORDER BY jobs.target_seq
                LIMIT 1)
               ORDER BY turn
               LIMIT 1) AS head
       WHERE head.run_at <= now()
  ) AS next

     WHERE freed.verdict = 'exhausted'
),
bell AS MATERIALIZED (
    -- Every multi-row write takes its rows in the order of their ids, so that no two can deadlock.
    -- ANY of an array, never IN: when a row changed while we waited for it, Postgres asks the
    -- condition again, and would run the subquery of an IN again with it, locks and all.
    SELECT rings.job_id, rings.due_at FROM rings
     WHERE rings.job_id = ANY (ARRAY (
               SELECT chosen.id FROM chosen
                WHERE chosen.verdict IN ('claimed', 'cancelled', 'not_due', 'target_busy', 'paused',
                                         'breaker', 'elsewhere')
               UNION ALL SELECT successor.id FROM successor))
     ORDER BY rings.job_id
       FOR UPDATE
),
rung AS (
    DELETE FROM rings USING bell, chosen
     WHERE rings.job_id = bell.job_id AND chosen.id = bell.job_id
       AND chosen.verdict IN ('claimed', 'cancelled')
),
deferred AS (
    UPDATE rings
       SET due_at = CASE WHEN bell.job_id = ANY (ARRAY (SELECT successor.id FROM successor))
                              THEN now()
                         WHEN chosen.verdict = 'elsewhere' THEN now()
                         ELSE chosen.until END,
           lane = coalesce(chosen.lane, rings.lane)
      FROM bell
      LEFT JOIN chosen ON chosen.id = bell.job_id
      LEFT JOIN seen ON seen.id = bell.job_id
     WHERE rings.job_id = bell.job_id
       AND chosen.verdict IS DISTINCT FROM 'claimed' AND chosen.verdict IS DISTINCT FROM 'cancelled'
       -- Whoever set it since our snapshot knows more: a resume made it due while we saw the pause.
       AND (bell.due_at = seen.due_at
            OR bell.job_id = ANY (ARRAY (SELECT successor.id FROM successor)))
)
SELECT asked.id AS job_id,
       EXISTS (SELECT FROM me) AS alive,
       CASE
           WHEN chosen.verdict IS NOT NULL THEN chosen.verdict
           WHEN known.state IN ('completed', 'failed') THEN 'finished'
           WHEN known.state IS NOT NULL THEN 'contended'
           -- Ids carry their birth: what is older than retention was finished and pruned.
           WHEN substr(asked.id::text, 15, 1) = '7' AND to_timestamp(
               ('x' || left(replace(asked.id::text, '-', ''), 12))::bit(48)::bigint / 1000.0
           ) < now() - fleet.retention THEN 'finished'
           ELSE 'unknown'
       END AS verdict,
       CASE WHEN chosen.verdict NOT IN ('claimed', 'cancelled', 'exhausted')
            THEN chosen.until END AS until,
       -- For what is claimed: when its lock can expire, which a second message of it waits for.
       CASE WHEN chosen.verdict IN ('claimed', 'cancelled') THEN fleet.lock_timeout
            WHEN chosen.verdict <> 'exhausted' THEN chosen.until - now() END AS wait,
       chosen.why,
       taken.claim_no, taken.tenant_id, taken.type, taken.lane, taken.payload, taken.target,
       taken.target_seq, taken.priority, taken.attempts, taken.max_attempts, taken.crashes,
       taken.progress_cursor AS cursor, taken.progress_done, taken.correlation_id,
       taken.parent_job_id, taken.replay_of, taken.traceparent, taken.tracestate,
       taken.created_at, taken.claimed_at,
       greatest(taken.claimed_at - taken.run_at, interval '0') AS queue_time, taken.cancel_code,
       CASE chosen.verdict WHEN 'claimed' THEN chosen.half_open END AS probes
  FROM unnest($1::uuid[]) AS asked (id)
  CROSS JOIN fleet
  LEFT JOIN jobs AS known ON known.id = asked.id
  LEFT JOIN chosen ON chosen.id = asked.id
  LEFT JOIN taken ON taken.id = asked.id

-- control.REGISTER_WORKER
INSERT INTO workers (id, host, pid, version, lanes, types, slots)
VALUES ($1, $2, $3, $4, $5, $6, $7)

-- control.START_DRAIN
UPDATE workers SET draining_since = coalesce(draining_since, now()) WHERE id = $1

-- control.LOCK_WORKER
SELECT workers.id FROM workers WHERE workers.id = $1 FOR UPDATE

-- control.RETIRE_WORKER
UPDATE workers SET dead_at = now(), dead_why = 'stopped'
 WHERE id = $1 AND dead_at IS NULL
   AND NOT EXISTS (SELECT FROM jobs WHERE jobs.locked_by = $1 AND jobs.state = 'processing')
RETURNING id

-- control.FLAG_CANCEL
WITH victim AS MATERIALIZED (
    SELECT jobs.id, jobs.state, jobs.cancel_requested_at
      FROM jobs
     WHERE jobs.id = $1 AND ($2::text IS NULL OR jobs.tenant_id = $2)
       FOR UPDATE
),
flagged AS (
    UPDATE jobs
       SET cancel_requested_at = now(), cancel_code = $3, cancel_detail = $4,
           updated_at = now()
      FROM victim
     WHERE jobs.id = victim.id AND jobs.cancel_requested_at IS NULL
       AND victim.state IN ('queued', 'processing', 'failed_retryable')
)
SELECT victim.state FROM victim

-- control.RING_JOB
UPDATE rings SET due_at = now(), rings = 0
  FROM jobs
 WHERE rings.job_id = $1 AND jobs.id = rings.job_id
RETURNING rings.job_id, rings.lane, rings.due_at, jobs.tenant_id, jobs.traceparent, jobs.tracestate

-- control.RETRY_NOW
UPDATE jobs SET run_at = now(), updated_at = now()
 WHERE id = $1 AND state IN ('queued', 'failed_retryable') AND run_at > now()

-- control.PAUSE
INSERT INTO pauses (scope, tenant_id, name, refuse_new, paused_by, reason)
VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (scope, tenant_id, name)
    DO UPDATE SET refuse_new = excluded.refuse_new, paused_by = excluded.paused_by,
                  reason = excluded.reason

-- control.RESUME
DELETE FROM pauses WHERE scope = $1 AND tenant_id = $2 AND name = $3 RETURNING scope

-- control.RING_RESUMED
WITH bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
      JOIN jobs ON jobs.id = rings.job_id
     WHERE ($1 = 'all'
            OR ($1 = 'type' AND jobs.type = $2)
            OR ($1 = 'lane' AND rings.lane = $2))
       AND jobs.state IN ('queued', 'failed_retryable') AND jobs.run_at <= now()
     ORDER BY rings.job_id
       FOR UPDATE OF rings
)
UPDATE rings SET due_at = now(), rings = 0 FROM bell WHERE rings.job_id = bell.job_id
RETURNING rings.job_id

-- control.RING_RESUMED_TARGET
WITH bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
      JOIN jobs ON jobs.id = rings.job_id
     WHERE jobs.tenant_id = $1 AND jobs.target = $2
       AND jobs.state IN ('queued', 'failed_retryable') AND jobs.run_at <= now()
     ORDER BY rings.job_id
       FOR UPDATE OF rings
)
UPDATE rings SET due_at = now(), rings = 0 FROM bell WHERE rings.job_id = bell.job_id
RETURNING rings.job_id

-- control.FIND_REFUSAL
SELECT pauses.scope, pauses.name, pauses.reason
  FROM pauses
 WHERE pauses.refuse_new
   AND (pauses.scope = 'all'
        OR (pauses.scope = 'type' AND pauses.name = $1)
        OR (pauses.scope = 'lane' AND pauses.name = $2))
 ORDER BY pauses.scope
 LIMIT 1

-- control.LIST_PAUSES
WITH running AS MATERIALIZED (
    SELECT jobs.tenant_id, jobs.type, jobs.lane, jobs.target
      FROM jobs
     WHERE jobs.state = 'processing' AND NOT jobs.preempts
)
SELECT pauses.scope, pauses.tenant_id, pauses.name, pauses.refuse_new, pauses.paused_by,
       pauses.reason, pauses.paused_at,
       (SELECT count(*) FROM running
         WHERE pauses.scope = 'all'
            OR (pauses.scope = 'lane' AND pauses.name = running.lane)
            OR (pauses.scope = 'type' AND pauses.name = running.type)
            OR (pauses.scope = 'target' AND pauses.tenant_id = running.tenant_id
                AND pauses.name = running.target)) AS running
  FROM pauses
 ORDER BY pauses.scope, pauses.tenant_id, pauses.name

-- deadletters._LETTER
SELECT letters.id, letters.job_id, letters.tenant_id, letters.type, letters.reason,
       letters.fingerprint, letters.message, letters.detail, letters.died_at,
       letters.acknowledged_at, letters.acknowledged_by, letters.acknowledged_note,
       replays.id AS replayed_as, letters.snapshot
  FROM dead_letters AS letters
  LEFT JOIN LATERAL (
      -- Unique anyway; the LIMIT keeps it a look into the index for each letter of the page.
      SELECT jobs.id FROM jobs WHERE jobs.replay_of = letters.job_id LIMIT 1
  ) AS replays ON true

-- deadletters.GET_LETTER
SELECT letters.id, letters.job_id, letters.tenant_id, letters.type, letters.reason,
       letters.fingerprint, letters.message, letters.detail, letters.died_at,
       letters.acknowledged_at, letters.acknowledged_by, letters.acknowledged_note,
       replays.id AS replayed_as, letters.snapshot
  FROM dead_letters AS letters
  LEFT JOIN LATERAL (
      -- Unique anyway; the LIMIT keeps it a look into the index for each letter of the page.
      SELECT jobs.id FROM jobs WHERE jobs.replay_of = letters.job_id LIMIT 1
  ) AS replays ON true

 WHERE letters.id = $1 OR letters.job_id = $1

-- deadletters.GET_LETTERS
SELECT letters.id, letters.job_id, letters.tenant_id, letters.type, letters.reason,
       letters.fingerprint, letters.message, letters.detail, letters.died_at,
       letters.acknowledged_at, letters.acknowledged_by, letters.acknowledged_note,
       replays.id AS replayed_as, letters.snapshot
  FROM dead_letters AS letters
  LEFT JOIN LATERAL (
      -- Unique anyway; the LIMIT keeps it a look into the index for each letter of the page.
      SELECT jobs.id FROM jobs WHERE jobs.replay_of = letters.job_id LIMIT 1
  ) AS replays ON true

 WHERE letters.id = ANY ($1::uuid[]) OR letters.job_id = ANY ($1::uuid[])
 ORDER BY letters.died_at, letters.id

-- deadletters.LIST_OPEN_LETTERS
SELECT letters.id, letters.job_id, letters.tenant_id, letters.type, letters.reason,
       letters.fingerprint, letters.message, letters.detail, letters.died_at,
       letters.acknowledged_at, letters.acknowledged_by, letters.acknowledged_note,
       replays.id AS replayed_as, letters.snapshot
  FROM dead_letters AS letters
  LEFT JOIN LATERAL (
      -- Unique anyway; the LIMIT keeps it a look into the index for each letter of the page.
      SELECT jobs.id FROM jobs WHERE jobs.replay_of = letters.job_id LIMIT 1
  ) AS replays ON true


 WHERE letters.acknowledged_at IS NULL
   AND ($4::text IS NULL OR letters.tenant_id = $4)
   AND ($5::text IS NULL OR letters.type = $5)
   AND ($6::text IS NULL OR letters.reason = $6)
   AND ($7::text IS NULL OR letters.fingerprint = $7)
 AND replays.id IS NULL
   AND ($8::timestamptz IS NULL OR letters.died_at <= $8)

   AND (letters.died_at, letters.id) > (coalesce($1::timestamptz, '-infinity'),
                                        coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
 ORDER BY letters.died_at, letters.id
 LIMIT $3

-- deadletters.LIST_LETTERS
SELECT letters.id, letters.job_id, letters.tenant_id, letters.type, letters.reason,
       letters.fingerprint, letters.message, letters.detail, letters.died_at,
       letters.acknowledged_at, letters.acknowledged_by, letters.acknowledged_note,
       replays.id AS replayed_as, letters.snapshot
  FROM dead_letters AS letters
  LEFT JOIN LATERAL (
      -- Unique anyway; the LIMIT keeps it a look into the index for each letter of the page.
      SELECT jobs.id FROM jobs WHERE jobs.replay_of = letters.job_id LIMIT 1
  ) AS replays ON true

 WHERE true

   AND (letters.died_at, letters.id) > (coalesce($1::timestamptz, '-infinity'),
                                        coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
 ORDER BY letters.died_at, letters.id
 LIMIT $3

-- deadletters.LIST_LETTERS_OF_TENANT
SELECT letters.id, letters.job_id, letters.tenant_id, letters.type, letters.reason,
       letters.fingerprint, letters.message, letters.detail, letters.died_at,
       letters.acknowledged_at, letters.acknowledged_by, letters.acknowledged_note,
       replays.id AS replayed_as, letters.snapshot
  FROM dead_letters AS letters
  LEFT JOIN LATERAL (
      -- Unique anyway; the LIMIT keeps it a look into the index for each letter of the page.
      SELECT jobs.id FROM jobs WHERE jobs.replay_of = letters.job_id LIMIT 1
  ) AS replays ON true

 WHERE letters.tenant_id = $4

   AND (letters.died_at, letters.id) > (coalesce($1::timestamptz, '-infinity'),
                                        coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
 ORDER BY letters.died_at, letters.id
 LIMIT $3

-- deadletters.LIST_LETTERS_OF_FAULT
SELECT letters.id, letters.job_id, letters.tenant_id, letters.type, letters.reason,
       letters.fingerprint, letters.message, letters.detail, letters.died_at,
       letters.acknowledged_at, letters.acknowledged_by, letters.acknowledged_note,
       replays.id AS replayed_as, letters.snapshot
  FROM dead_letters AS letters
  LEFT JOIN LATERAL (
      -- Unique anyway; the LIMIT keeps it a look into the index for each letter of the page.
      SELECT jobs.id FROM jobs WHERE jobs.replay_of = letters.job_id LIMIT 1
  ) AS replays ON true

 WHERE letters.fingerprint = $4

   AND (letters.died_at, letters.id) > (coalesce($1::timestamptz, '-infinity'),
                                        coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
 ORDER BY letters.died_at, letters.id
 LIMIT $3

-- deadletters.GROUP_LETTERS
SELECT letters.fingerprint, min(letters.type) AS type, min(letters.reason) AS reason,
       count(*) AS letters, count(letters.job_id) AS replayable,
       min(letters.died_at) AS first_died_at, max(letters.died_at) AS last_died_at,
       (array_agg(letters.id ORDER BY letters.died_at DESC))[1] AS example
  FROM dead_letters AS letters
 WHERE letters.acknowledged_at IS NULL
   AND ($2::text IS NULL OR letters.tenant_id = $2)
   AND ($3::text IS NULL OR letters.type = $3)
   AND ($4::text IS NULL OR letters.reason = $4)
   AND ($5::text IS NULL OR letters.fingerprint = $5)
   AND NOT EXISTS (SELECT FROM jobs WHERE jobs.replay_of = letters.job_id)
 GROUP BY letters.fingerprint
 ORDER BY count(*) DESC
 LIMIT $1

-- deadletters.ACKNOWLEDGE
WITH known AS MATERIALIZED (
    SELECT letters.id
      FROM dead_letters AS letters
     WHERE letters.id = ANY ($1::uuid[]) AND letters.acknowledged_at IS NULL
     ORDER BY letters.id
       FOR UPDATE
)
UPDATE dead_letters
   SET acknowledged_at = now(), acknowledged_by = $2, acknowledged_note = $3
 WHERE dead_letters.id = ANY (ARRAY (SELECT known.id FROM known))
RETURNING dead_letters.id

-- deadletters.COUNT_UNACKNOWLEDGED
SELECT count(*) FROM dead_letters WHERE dead_letters.acknowledged_at IS NULL

-- deadmail.TAKE_DUE_SENDS
WITH due AS MATERIALIZED (
    SELECT sends.dead_letter_id
      FROM dead_letter_sends AS sends
     WHERE sends.due_at <= now()
     ORDER BY sends.due_at
     LIMIT $1
       FOR UPDATE SKIP LOCKED
),
pushed AS (
    UPDATE dead_letter_sends
       SET due_at = now() + least(
               interval '1 minute' * power(2, least(dead_letter_sends.sends, 20)),
               interval '1 hour'),
           sends = dead_letter_sends.sends + 1
     WHERE dead_letter_sends.dead_letter_id = ANY (ARRAY (SELECT due.dead_letter_id FROM due))
    RETURNING dead_letter_sends.dead_letter_id
)
SELECT letters.id AS letter_id, letters.job_id, letters.tenant_id, letters.type, letters.reason,
       (letters.snapshot ->> 'attempts')::integer AS attempts,
       letters.snapshot ->> 'traceparent' AS traceparent,
       letters.snapshot ->> 'tracestate' AS tracestate
  FROM pushed
  JOIN dead_letters AS letters ON letters.id = pushed.dead_letter_id

-- deadmail.FORGET_SENDS
DELETE FROM dead_letter_sends WHERE dead_letter_id = ANY ($1::uuid[])

-- deadmail.JUDGE_MESSAGES
WITH asked AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset($1::jsonb) AS asked (
          n integer, job_id uuid, reason text, message text, detail text, sha256 text,
          snapshot jsonb, sent_at timestamptz)
),
judged AS MATERIALIZED (
    SELECT asked.*, job.id AS known_id, job.lane, job.run_at, job.tenant_id, job.traceparent,
           job.tracestate,
           CASE
               WHEN job.state IN ('queued', 'failed_retryable') THEN 'rung'
               WHEN job.state = 'processing' THEN 'running'
               WHEN job.state = 'completed'
                    OR job.failure_code IN ('cancelled', 'image_deleted') THEN 'finished'
               WHEN replay.id IS NOT NULL THEN 'replayed'
               WHEN letter.acknowledged_at IS NOT NULL THEN 'acknowledged'
               WHEN letter.id IS NOT NULL THEN 'waits'
               WHEN job.id IS NOT NULL THEN 'written'
               -- Somebody knew this content; what is sent after that is news again.
               WHEN stray.until >= asked.sent_at AND stray.until < 'infinity' THEN 'acknowledged'
               WHEN stray.until = 'infinity' THEN 'waits'
               ELSE 'stray'
           END AS found
      FROM asked
      -- How many there are the planner cannot know: a join without LIMIT could read whole tables.
      LEFT JOIN LATERAL (
          SELECT jobs.* FROM jobs WHERE jobs.id = asked.job_id LIMIT 1
      ) AS job ON true
      LEFT JOIN LATERAL (
          SELECT replays.id FROM jobs AS replays WHERE replays.replay_of = job.id LIMIT 1
      ) AS replay ON true
      LEFT JOIN LATERAL (
          SELECT letters.id, letters.acknowledged_at
            FROM dead_letters AS letters
           WHERE letters.job_id = job.id
           LIMIT 1
      ) AS letter ON true
      LEFT JOIN LATERAL (
          SELECT coalesce(strays.acknowledged_at, 'infinity'::timestamptz) AS until
            FROM dead_letters AS strays
           WHERE strays.job_id IS NULL AND strays.snapshot ->> 'sha256' = asked.sha256
           ORDER BY coalesce(strays.acknowledged_at, 'infinity'::timestamptz) DESC
           LIMIT 1
      ) AS stray ON true
),
bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
     WHERE rings.job_id = ANY (ARRAY (SELECT judged.known_id FROM judged
                                       WHERE judged.found = 'rung'))
     ORDER BY rings.job_id
       FOR UPDATE
),
rung AS (
    UPDATE rings
       SET due_at = least(rings.due_at, greatest(jobs.run_at, now())), rings = 0
      FROM bell
      JOIN jobs ON jobs.id = bell.job_id
     WHERE rings.job_id = bell.job_id
),
written AS (
    INSERT INTO dead_letters (job_id, tenant_id, type, reason, fingerprint, message, detail,
                              snapshot, died_at)
    SELECT jobs.id, jobs.tenant_id, jobs.type, jobs.failure_code,
           fault_fingerprint(jobs.type, jobs.failure_code, jobs.failure_detail),
           jobs.failure_message, jobs.failure_detail, to_jsonb(jobs), jobs.finished_at
      FROM jobs
     WHERE jobs.id = ANY (ARRAY (SELECT judged.known_id FROM judged
                                  WHERE judged.found = 'written'))
     ORDER BY jobs.id
        ON CONFLICT DO NOTHING
    RETURNING dead_letters.id
),
announced AS (
    INSERT INTO dead_letter_sends (dead_letter_id) SELECT written.id FROM written
),
strays AS (
    INSERT INTO dead_letters (reason, fingerprint, message, detail, snapshot, died_at)
    SELECT DISTINCT ON (judged.sha256)
           judged.reason, fault_fingerprint(NULL, judged.reason, judged.detail), judged.message,
           judged.detail, judged.snapshot || jsonb_build_object('sha256', judged.sha256),
           judged.sent_at
      FROM judged
     WHERE judged.found = 'stray'
     ORDER BY judged.sha256, judged.sent_at
        ON CONFLICT DO NOTHING
)
SELECT judged.found, judged.known_id AS job_id, judged.lane, judged.run_at AS due_at,
       judged.tenant_id, judged.traceparent, judged.tracestate
  FROM judged
 ORDER BY judged.n

-- deadmail.FORGET_STRAYS
DELETE FROM dead_letters
 WHERE dead_letters.job_id IS NULL
   AND dead_letters.acknowledged_at < now() - (SELECT fleet.retention FROM fleet)

-- diagnosis.DESCRIBE_SESSION
SELECT current_user::text AS role,
       current_setting('is_superuser') = 'on' AS superuser,
       current_setting('server_version') AS version,
       clock_timestamp() AS now

-- edge.SAMPLE_INVALIDATIONS
SELECT count(DISTINCT owed.image_id) AS owed,
       greatest(coalesce(max(now() - owed.owed_at), interval '0'), interval '0') AS oldest_age,
       (SELECT coalesce(sum(batches.paths), 0)::integer
          FROM invalidation_batches AS batches
         WHERE batches.completed_at IS NULL AND batches.accepted_at IS NOT NULL) AS in_flight,
       (SELECT coalesce(sum(months.paths), 0)::integer
          FROM invalidation_months AS months
         WHERE months.month = date_trunc('month', now() AT TIME ZONE 'UTC')::date) AS month_paths
  FROM (
      SELECT unstamped.image_id, unstamped.owed_at
        FROM invalidations AS unstamped
       WHERE unstamped.batch_id IS NULL
       UNION ALL
      SELECT stamped.image_id, stamped.owed_at
        FROM invalidation_batches AS batches
        JOIN invalidations AS stamped ON stamped.batch_id = batches.id
       WHERE batches.completed_at IS NULL
  ) AS owed

-- edge.READ_MONTH
SELECT this.month, coalesce(months.paths, 0) AS paths, coalesce(months.debts, 0) AS debts,
       coalesce(months.batches, 0) AS batches
  FROM (SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date AS month) AS this
  LEFT JOIN invalidation_months AS months ON months.month = this.month

-- edge.FIND_FLUSHER
SELECT elections.holder, elections.term, elections.until, elections.until > now() AS holds
  FROM elections
 WHERE elections.name = 'flusher'

-- edge.OWE_FOR_OPERATOR
INSERT INTO invalidations AS debt (image_id, tenant_id, reason, requested_by, request_reason)
SELECT images.id, images.tenant_id, 'operator', $2, $3
  FROM images
 WHERE images.id = ANY ($1::uuid[])
 ORDER BY images.id
    ON CONFLICT (image_id) WHERE batch_id IS NULL
    DO UPDATE SET debts = debt.debts + 1, last_owed_at = clock_timestamp(),
                  requested_by = excluded.requested_by, request_reason = excluded.request_reason
RETURNING debt.id

-- edge.GET_INVALIDATIONS
SELECT debts.id AS invalidation_id, debts.image_id, debts.tenant_id, debts.reason, debts.debts,
       debts.owed_at, debts.requested_by, debts.request_reason, batches.id AS batch_id,
       batches.sends, batches.accepted_at, batches.cloudfront_id, batches.completed_at,
       batches.last_error
  FROM invalidations AS debts
  LEFT JOIN invalidation_batches AS batches ON batches.id = debts.batch_id
 WHERE debts.id = ANY ($1::uuid[])
 ORDER BY debts.image_id

-- edge.PRUNE_BATCHES
WITH old AS MATERIALIZED (
    SELECT batches.id
      FROM invalidation_batches AS batches
     WHERE batches.completed_at < now() - (SELECT fleet.retention FROM fleet)
       AND (SELECT count(*)
              FROM invalidations AS debts
              JOIN image_revisions AS shown
                ON shown.image_id = debts.image_id AND shown.invalidation_id = debts.id
             WHERE debts.batch_id = batches.id AND shown.swept_at IS NULL) = 0
       AND (SELECT count(*)
              FROM invalidations AS debts
              JOIN image_tombstones AS tombstones
                ON tombstones.image_id = debts.image_id AND tombstones.invalidation_id = debts.id
             WHERE debts.batch_id = batches.id AND tombstones.dark_at IS NULL) = 0
     ORDER BY batches.completed_at
     LIMIT $1
       FOR UPDATE OF batches SKIP LOCKED
),
debts_too AS (
    DELETE FROM invalidations WHERE invalidations.batch_id = ANY (ARRAY (SELECT old.id FROM old))
),
pruned AS (
    DELETE FROM invalidation_batches
     WHERE invalidation_batches.id = ANY (ARRAY (SELECT old.id FROM old))
    RETURNING invalidation_batches.id
)
SELECT count(*) FROM pruned

-- elections.HOLD_ELECTION
INSERT INTO elections AS held (name, holder, until)
VALUES ($1, $2, now() + interval '10 seconds')
    ON CONFLICT (name) DO UPDATE
       SET holder = excluded.holder, until = excluded.until,
           term = held.term + (held.holder <> excluded.holder)::int
     WHERE held.holder = excluded.holder OR held.until <= now()
RETURNING term

-- elections.RESIGN
UPDATE elections SET until = now() WHERE name = $1 AND holder = $2

-- elections.BEGIN_PERIOD
INSERT INTO periods (name, period_start, holder)
SELECT $1, date_bin($2::interval, now(), timestamptz '2000-01-01 00:00+00'), $3
    ON CONFLICT DO NOTHING
RETURNING period_start

-- elections.FINISH_PERIOD
UPDATE periods SET finished_at = now(), report = $3 WHERE name = $1 AND period_start = $2

-- elections.FORGET_PERIODS
DELETE FROM periods
 WHERE periods.started_at < now() - interval '1 day'
   AND periods.period_start < (SELECT max(newest.period_start) FROM periods AS newest
                                WHERE newest.name = periods.name)

-- emptying.FLAG_VOID
WITH void AS MATERIALIZED (
    SELECT jobs.id
      FROM jobs
     WHERE jobs.tenant_id = $1 AND jobs.target = $2
       AND jobs.state IN ('queued', 'processing', 'failed_retryable')
       AND NOT jobs.preempts AND jobs.cancel_requested_at IS NULL
     ORDER BY jobs.id
       FOR UPDATE
),
flagged AS (
    UPDATE jobs
       SET cancel_requested_at = now(), cancel_code = 'image_deleted', updated_at = now()
     WHERE jobs.id = ANY (ARRAY (SELECT void.id FROM void))
),
bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
     WHERE rings.job_id = ANY (ARRAY (SELECT void.id FROM void))
     ORDER BY rings.job_id
       FOR UPDATE
)
UPDATE rings
   SET due_at = now(), rings = 0
  FROM bell
  JOIN jobs ON jobs.id = bell.job_id
 WHERE rings.job_id = bell.job_id
RETURNING rings.job_id, rings.lane, rings.due_at, jobs.tenant_id, jobs.traceparent, jobs.tracestate

-- emptying.LIST_NAMED_KEYS
SELECT variants.key FROM variants WHERE variants.image_id = $1
 UNION ALL
SELECT image_sources.key FROM image_sources WHERE image_sources.image_id = $1

-- emptying.RECORD_EMPTIED
WITH new AS MATERIALIZED (
    SELECT new.image_id, new.tenant_id, new.objects
      FROM jsonb_to_recordset($1::jsonb) AS new (image_id uuid, tenant_id text, objects jsonb)
      JOIN image_tombstones AS tombstone ON tombstone.image_id = new.image_id
     WHERE tombstone.tenant_id = new.tenant_id AND tombstone.objects_deleted_at IS NULL
),
owed AS (
    INSERT INTO invalidations AS debt (image_id, tenant_id, reason)
    SELECT new.image_id, new.tenant_id, 'deleted'
      FROM new
     ORDER BY new.image_id
        ON CONFLICT (image_id) WHERE batch_id IS NULL
        DO UPDATE SET debts = debt.debts + 1, reason = excluded.reason,
                      last_owed_at = clock_timestamp()
    RETURNING debt.id, debt.image_id
)
UPDATE image_tombstones
   SET objects_deleted_at = now(), objects = new.objects, invalidation_id = owed.id
  FROM new
  JOIN owed ON owed.image_id = new.image_id
 WHERE image_tombstones.image_id = new.image_id

-- emptying.DARKEN_WITHOUT_EDGE
UPDATE image_tombstones
   SET dark_at = objects_deleted_at
 WHERE objects_deleted_at IS NOT NULL AND dark_at IS NULL
RETURNING dark_at - requested_at AS took

-- emptying.LIST_TO_EMPTY_AGAIN
SELECT image_tombstones.image_id
  FROM image_tombstones
 WHERE objects_deleted_at IS NOT NULL AND emptied_again_at IS NULL
   AND objects_deleted_at < now() - $1::interval
 ORDER BY objects_deleted_at
 LIMIT $2

-- emptying.RECORD_EMPTIED_AGAIN
WITH done AS (
    UPDATE image_tombstones
       SET emptied_again_at = now()
     WHERE image_id = $1 AND emptied_again_at IS NULL
    RETURNING image_id, tenant_id
)
INSERT INTO invalidations AS debt (image_id, tenant_id, reason)
SELECT done.image_id, done.tenant_id, 'deleted' FROM done WHERE $2
    ON CONFLICT (image_id) WHERE batch_id IS NULL
    DO UPDATE SET debts = debt.debts + 1, last_owed_at = clock_timestamp()

-- endings.LOCK_CLAIMS
SELECT jobs.id, jobs.claim_no, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.lane,
       jobs.cancel_code, jobs.tenant_id, jobs.target, jobs.type, jobs.locked_by, now() AS now
  FROM unnest($1::uuid[], $2::bigint[]) AS held (id, claim_no)
  JOIN jobs ON jobs.id = held.id AND jobs.claim_no = held.claim_no
 WHERE jobs.state = 'processing'
 ORDER BY jobs.id
   FOR UPDATE OF jobs

-- endings.COMPLETE_JOBS
WITH ended AS MATERIALIZED (
    SELECT jobs.id, jobs.claim_no, jobs.tenant_id, jobs.type, jobs.lane, jobs.locked_by,
           jobs.claimed_at, jobs.run_at, jobs.claim_charged AS charged, 'completed' AS outcome,
           new.reason AS why, NULL AS detail, new.log_excerpt, new.result, new.reason
      FROM unnest($1::uuid[], $2::bigint[], $3::jsonb[], $4::text[], $5::text[])
           AS new (id, claim_no, result, reason, log_excerpt)
      JOIN jobs ON jobs.id = new.id AND jobs.claim_no = new.claim_no AND jobs.state = 'processing'
),
written AS (
    UPDATE jobs
       SET state = 'completed', result = ended.result, result_reason = ended.reason,
           failure_code = NULL, failure_message = NULL, failure_detail = NULL,
           locked_by = NULL, locked_at = NULL, finished_at = now(), updated_at = now()
      FROM ended
     WHERE jobs.id = ended.id AND jobs.claim_no = ended.claim_no AND jobs.state = 'processing'
    RETURNING jobs.id
)

INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                      queue_time, charged, outcome, why, detail, log_excerpt)
SELECT ended.id, ended.claim_no, ended.tenant_id, ended.type, ended.lane, ended.locked_by,
       ended.claimed_at, now() - ended.claimed_at,
       greatest(ended.claimed_at - ended.run_at, interval '0'),
       ended.charged, ended.outcome, ended.why, ended.detail, ended.log_excerpt
  FROM ended
  JOIN written ON written.id = ended.id

-- endings.RETRY_JOBS
WITH ended AS MATERIALIZED (
    SELECT jobs.id, jobs.claim_no, jobs.tenant_id, jobs.type, jobs.lane, jobs.locked_by,
           jobs.claimed_at, jobs.run_at, $10 AS outcome,
           jobs.claim_charged AND new.charged AS charged,
           jobs.claim_charged AND NOT new.charged AS refund,
           new.code AS why, new.detail, new.log_excerpt,
           new.message, new.due_at, new.crashed, new.lane AS new_lane, jobs.priority
      FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::timestamptz[],
                  $7::boolean[], $8::boolean[], $9::text[], $11::text[])
           AS new (id, claim_no, code, message, detail, due_at, charged, crashed, lane, log_excerpt)
      JOIN jobs ON jobs.id = new.id AND jobs.claim_no = new.claim_no AND jobs.state = 'processing'
),
written AS (
    UPDATE jobs
       SET state = 'failed_retryable', run_at = ended.due_at, lane = ended.new_lane,
           attempts = jobs.attempts - ended.refund::int,
           crashes = jobs.crashes + ended.crashed::int,
           failure_code = ended.why, failure_message = ended.message, failure_detail = ended.detail,
           locked_by = NULL, locked_at = NULL, updated_at = now()
      FROM ended
     WHERE jobs.id = ended.id AND jobs.claim_no = ended.claim_no AND jobs.state = 'processing'
    RETURNING jobs.id
),
bell AS (
    INSERT INTO rings (job_id, lane, priority, due_at)
    SELECT ended.id, ended.new_lane, ended.priority, ended.due_at
      FROM ended JOIN written ON written.id = ended.id
)

INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                      queue_time, charged, outcome, why, detail, log_excerpt)
SELECT ended.id, ended.claim_no, ended.tenant_id, ended.type, ended.lane, ended.locked_by,
       ended.claimed_at, now() - ended.claimed_at,
       greatest(ended.claimed_at - ended.run_at, interval '0'),
       ended.charged, ended.outcome, ended.why, ended.detail, ended.log_excerpt
  FROM ended
  JOIN written ON written.id = ended.id

-- endings.FAIL_JOBS
WITH ended AS MATERIALIZED (
    SELECT jobs.id, jobs.claim_no, jobs.tenant_id, jobs.type, jobs.lane, jobs.locked_by,
           jobs.claimed_at, jobs.run_at, jobs.claim_charged AS charged, $6 AS outcome,
           new.code AS why, new.detail, new.log_excerpt, new.message
      FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $7::text[])
           AS new (id, claim_no, code, message, detail, log_excerpt)
      JOIN jobs ON jobs.id = new.id AND jobs.claim_no = new.claim_no AND jobs.state = 'processing'
),
written AS (
    UPDATE jobs
       SET state = 'failed',
           failure_code = ended.why, failure_message = ended.message, failure_detail = ended.detail,
           locked_by = NULL, locked_at = NULL, finished_at = now(), updated_at = now()
      FROM ended
     WHERE jobs.id = ended.id AND jobs.claim_no = ended.claim_no AND jobs.state = 'processing'
    RETURNING jobs.id
)

INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                      queue_time, charged, outcome, why, detail, log_excerpt)
SELECT ended.id, ended.claim_no, ended.tenant_id, ended.type, ended.lane, ended.locked_by,
       ended.claimed_at, now() - ended.claimed_at,
       greatest(ended.claimed_at - ended.run_at, interval '0'),
       ended.charged, ended.outcome, ended.why, ended.detail, ended.log_excerpt
  FROM ended
  JOIN written ON written.id = ended.id

-- endings.RELEASE_JOBS
WITH ended AS MATERIALIZED (
    SELECT jobs.id, jobs.claim_no, jobs.tenant_id, jobs.type, jobs.lane, jobs.locked_by,
           jobs.claimed_at, jobs.run_at, false AS charged, 'released' AS outcome,
           new.why, NULL AS detail, new.log_excerpt, new.due_at, jobs.priority,
           jobs.claim_charged AS refund
      FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::timestamptz[], $5::text[])
           AS new (id, claim_no, why, due_at, log_excerpt)
      JOIN jobs ON jobs.id = new.id AND jobs.claim_no = new.claim_no AND jobs.state = 'processing'
),
written AS (
    UPDATE jobs
       SET state = 'failed_retryable', run_at = ended.due_at,
           attempts = greatest(jobs.attempts - ended.refund::int, 0),
           failure_code = NULL, failure_message = NULL, failure_detail = NULL,
           locked_by = NULL, locked_at = NULL, updated_at = now()
      FROM ended
     WHERE jobs.id = ended.id AND jobs.claim_no = ended.claim_no AND jobs.state = 'processing'
    RETURNING jobs.id
),
bell AS (
    INSERT INTO rings (job_id, lane, priority, due_at)
    SELECT ended.id, ended.lane, ended.priority, ended.due_at
      FROM ended JOIN written ON written.id = ended.id
)

INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                      queue_time, charged, outcome, why, detail, log_excerpt)
SELECT ended.id, ended.claim_no, ended.tenant_id, ended.type, ended.lane, ended.locked_by,
       ended.claimed_at, now() - ended.claimed_at,
       greatest(ended.claimed_at - ended.run_at, interval '0'),
       ended.charged, ended.outcome, ended.why, ended.detail, ended.log_excerpt
  FROM ended
  JOIN written ON written.id = ended.id

-- explanations.LIVING_WORKERS
SELECT coalesce(array_agg(DISTINCT lanes.lane), '{}') AS lanes,
       coalesce(array_agg(DISTINCT types.type), '{}') AS types
  FROM workers, unnest(workers.lanes) AS lanes (lane), unnest(workers.types) AS types (type)
 WHERE workers.dead_at IS NULL AND workers.draining_since IS NULL

-- explanations.EXPLAIN_JOB
SELECT
  CASE
      WHEN job.state IN ('completed', 'failed') THEN 'finished'
      WHEN job.state = 'processing' AND job.locked_at >= now() - fleet.lock_timeout THEN 'busy'
      WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled'
      WHEN job.state = 'processing' AND job.attempts >= job.max_attempts THEN 'exhausted'
      -- An expired lock that may not be taken over now has no ring that could be set: its message
      -- is all there is, so it is told to come back.
      WHEN job.state = 'processing' AND (job.lane <> ALL ($2::text[]) OR pause.what IS NOT NULL
                                         OR breaker.service IS NOT NULL) THEN 'busy'
      WHEN job.lane <> ALL ($2::text[]) THEN 'elsewhere'
      WHEN job.type <> ALL ($3::text[]) THEN 'unroutable'
      WHEN job.state <> 'processing' AND job.run_at > now() THEN 'not_due'
      WHEN pause.what IS NOT NULL THEN 'paused'
      WHEN target.running_job <> job.id OR elder.id IS NOT NULL THEN 'target_busy'
      WHEN breaker.service IS NOT NULL THEN 'breaker'
      ELSE 'claimed'
  END
 AS verdict,
  CASE
      WHEN job.state IN ('completed', 'failed') THEN NULL
      WHEN job.state = 'processing' AND job.locked_at >= now() - fleet.lock_timeout
          THEN job.locked_at + fleet.lock_timeout
      WHEN job.run_at > now() THEN job.run_at
      WHEN breaker.service IS NOT NULL THEN breaker.until
      ELSE now() + interval '60 seconds'
  END
 AS until,
  CASE
      WHEN pause.what IS NOT NULL THEN pause.what
      WHEN target.running_job <> job.id THEN target.running_job::text
      WHEN elder.id IS NOT NULL THEN elder.id::text
      ELSE breaker.service
  END
 AS why,
       job.tenant_id, job.state, job.lane, job.type, job.target, job.claim_no, job.attempts,
       job.max_attempts, job.crashes, job.locked_by, job.cancel_code, job.cancel_requested_at,
       job.failure_code, job.result_reason, job.finished_at,
       coalesce(job.locked_at < now() - fleet.lock_timeout, false) AS lock_expired,
       holder.host AS holder_host, holder.pid AS holder_pid,
       greatest(now() - holder.beat_at, interval '0') AS holder_silent_for,
       pause.what AS pause, breaker.service AS breaker,
       first.state AS first_state, first.locked_by AS first_locked_by, first.run_at AS first_run_at,
       rings.due_at AS ring_due_at, rings.rings AS rung
  FROM jobs AS job
  CROSS JOIN fleet
  LEFT JOIN rings ON rings.job_id = job.id
  LEFT JOIN targets AS target ON target.tenant_id = job.tenant_id AND target.target = job.target
  LEFT JOIN workers AS holder ON holder.id = job.locked_by

  LEFT JOIN LATERAL (
      SELECT concat_ws(':', pauses.scope, nullif(pauses.name, '')) AS what
        FROM pauses
       WHERE pauses.scope = 'all'
          OR (pauses.scope = 'lane' AND pauses.name = job.lane)
          OR (pauses.scope = 'type' AND pauses.name = job.type)
          OR (pauses.scope = 'target'
              AND pauses.tenant_id = job.tenant_id AND pauses.name = job.target)
       ORDER BY pauses.scope
       LIMIT 1
  ) AS pause ON NOT job.preempts
  LEFT JOIN LATERAL (
      SELECT breakers.service,
             CASE WHEN breakers.forced THEN now() + interval '60 seconds'
                  ELSE breakers.retry_at END AS until
        FROM circuit_breakers AS breakers
       WHERE breakers.service = ANY (job.services)
         AND breakers.state = 'open'
         AND (breakers.forced OR breakers.retry_at > now())
       ORDER BY breakers.forced DESC, breakers.retry_at DESC
       LIMIT 1
  ) AS breaker ON true
  LEFT JOIN LATERAL (
      -- Who must go first: an older open job of the target. A retry in backoff blocks, a run_at in
      -- the future does not, and neither does a job that is only waiting to be settled as
      -- cancelled. Nobody goes before the job that has the target: it may be taken over though an
      -- older one has become due meanwhile.
      SELECT elders.id
        FROM jobs AS elders
       WHERE elders.tenant_id = job.tenant_id
         AND elders.target = job.target
         AND elders.target_seq < job.target_seq
         AND elders.state IN ('queued', 'processing', 'failed_retryable')
         AND (elders.state = 'processing'
              OR (elders.cancel_requested_at IS NULL
                  AND NOT (elders.state = 'queued' AND elders.run_at > now())))
       ORDER BY elders.target_seq
       LIMIT 1
  ) AS elder ON job.target IS NOT NULL AND NOT job.preempts
            AND target.running_job IS DISTINCT FROM job.id

  LEFT JOIN jobs AS first ON first.id = CASE WHEN target.running_job <> job.id
                                             THEN target.running_job ELSE elder.id END
 WHERE job.id = $1

-- glances.WATCH_JOBS
SELECT jobs.id, jobs.updated_at FROM jobs WHERE jobs.id = ANY ($1::uuid[])

-- glances.PING
SELECT 1

-- images.INSERT_IMAGE
INSERT INTO images (id, tenant_id, reference, recipe) VALUES ($1, $2, $3, $4)
    ON CONFLICT (id) DO NOTHING

-- images.INSERT_SOURCE
INSERT INTO image_sources (image_id, source_seq, tenant_id, key, etag, sha256, bytes, content_type,
                           width, height)
SELECT $1, jobs.target_seq, $2, $3, $4, $5, $6, $7, $8, $9
  FROM jobs
 WHERE jobs.id = $10

-- images.PUBLISH_IMAGES
WITH new AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset($1::jsonb) AS new (
          job_id uuid, claim_no bigint, image_id uuid, tenant_id text, source_seq bigint,
          revision bigint, recipe text, format text, width integer, height integer, bytes bigint,
          sha256 text, thumbhash text, color text, encoder text, variants jsonb)
),
current AS MATERIALIZED (
    SELECT images.id, images.source_seq, images.revision
      FROM images
      JOIN new ON new.image_id = images.id AND new.tenant_id = images.tenant_id
     ORDER BY images.id
       FOR UPDATE OF images
),
flipped AS (
    -- Forward only, and never over a tombstone: what is older than what is shown stays unseen.
    UPDATE images
       SET source_seq = new.source_seq, revision = new.revision, claim_no = new.claim_no,
           job_id = new.job_id, recipe = new.recipe, published_at = now(), updated_at = now()
      FROM new
      JOIN current ON current.id = new.image_id
     WHERE images.id = new.image_id
       AND NOT EXISTS (SELECT FROM image_tombstones
                        WHERE image_tombstones.image_id = new.image_id)
       AND (current.revision IS NULL
            OR (current.source_seq, current.revision) < (new.source_seq, new.revision))
    RETURNING new.job_id, images.id AS image_id, images.tenant_id, current.revision AS old_revision
),
written AS (
    INSERT INTO image_revisions (image_id, revision, tenant_id, source_seq, claim_no, job_id,
                                 recipe, format, width, height, bytes, sha256, thumbhash, color,
                                 encoder)
    SELECT new.image_id, new.revision, new.tenant_id, new.source_seq, new.claim_no, new.job_id,
           new.recipe, new.format, new.width, new.height, new.bytes, new.sha256, new.thumbhash,
           new.color, new.encoder
      FROM new
      JOIN flipped ON flipped.job_id = new.job_id
),
listed AS (
    INSERT INTO variants (image_id, revision, name, format, key, content_type, width, height, bytes,
                          sha256, warnings)
    SELECT new.image_id, new.revision, variant.*
      FROM new
      JOIN flipped ON flipped.job_id = new.job_id
      CROSS JOIN LATERAL jsonb_to_recordset(new.variants) AS variant (
          name text, format text, key text, content_type text, width integer, height integer,
          bytes bigint, sha256 text, warnings text[])
),
owed AS (
    -- A replacement owes the edge one invalidation, whatever the number of variants.
    INSERT INTO invalidations AS debt (image_id, tenant_id, reason)
    SELECT flipped.image_id, flipped.tenant_id, 'replaced'
      FROM flipped
     WHERE flipped.old_revision IS NOT NULL
     ORDER BY flipped.image_id
        ON CONFLICT (image_id) WHERE batch_id IS NULL
        DO UPDATE SET debts = debt.debts + 1, last_owed_at = clock_timestamp()
    RETURNING debt.id, debt.image_id
),
superseded AS (
    UPDATE image_revisions
       SET superseded_at = now(), invalidation_id = owed.id
      FROM flipped
      JOIN owed ON owed.image_id = flipped.image_id
     WHERE image_revisions.image_id = flipped.image_id
       AND image_revisions.revision = flipped.old_revision
)
SELECT flipped.job_id FROM flipped

-- images._IMAGE
SELECT images.id AS image_id, images.reference, images.recipe, images.created_at, images.updated_at,
       CASE WHEN tombstone.image_id IS NOT NULL THEN 'deleted'
            WHEN images.revision IS NOT NULL THEN 'ready'
            WHEN newest.state = 'failed' THEN 'failed'
            ELSE 'pending' END AS status,
       shown.revision, shown.thumbhash, shown.color,
       CASE WHEN shown.revision IS NOT NULL THEN jsonb_build_object(
           'format', shown.format, 'width', shown.width, 'height', shown.height,
           'bytes', shown.bytes) END AS source,
       coalesce(made.variants, '[]'::jsonb) AS variants
  FROM images
  LEFT JOIN image_tombstones AS tombstone ON tombstone.image_id = images.id
  LEFT JOIN image_revisions AS shown
         ON shown.image_id = images.id AND shown.revision = images.revision
        AND tombstone.image_id IS NULL
  LEFT JOIN LATERAL (
      SELECT jsonb_agg(to_jsonb(variants) ORDER BY variants.width, variants.format) AS variants
        FROM variants
       WHERE variants.image_id = shown.image_id AND variants.revision = shown.revision
  ) AS made ON true
  LEFT JOIN LATERAL (
      SELECT jobs.state
        FROM jobs
       WHERE jobs.tenant_id = images.tenant_id AND jobs.target = 'image:' || images.id
       ORDER BY jobs.id DESC NULLS LAST
       LIMIT 1
  ) AS newest ON images.revision IS NULL

-- images.GET_IMAGE
SELECT images.id AS image_id, images.reference, images.recipe, images.created_at, images.updated_at,
       CASE WHEN tombstone.image_id IS NOT NULL THEN 'deleted'
            WHEN images.revision IS NOT NULL THEN 'ready'
            WHEN newest.state = 'failed' THEN 'failed'
            ELSE 'pending' END AS status,
       shown.revision, shown.thumbhash, shown.color,
       CASE WHEN shown.revision IS NOT NULL THEN jsonb_build_object(
           'format', shown.format, 'width', shown.width, 'height', shown.height,
           'bytes', shown.bytes) END AS source,
       coalesce(made.variants, '[]'::jsonb) AS variants
  FROM images
  LEFT JOIN image_tombstones AS tombstone ON tombstone.image_id = images.id
  LEFT JOIN image_revisions AS shown
         ON shown.image_id = images.id AND shown.revision = images.revision
        AND tombstone.image_id IS NULL
  LEFT JOIN LATERAL (
      SELECT jsonb_agg(to_jsonb(variants) ORDER BY variants.width, variants.format) AS variants
        FROM variants
       WHERE variants.image_id = shown.image_id AND variants.revision = shown.revision
  ) AS made ON true
  LEFT JOIN LATERAL (
      SELECT jobs.state
        FROM jobs
       WHERE jobs.tenant_id = images.tenant_id AND jobs.target = 'image:' || images.id
       ORDER BY jobs.id DESC NULLS LAST
       LIMIT 1
  ) AS newest ON images.revision IS NULL

 WHERE images.id = $1 AND images.tenant_id = $2

-- images.LIST_IMAGES
SELECT images.id AS image_id, images.reference, images.recipe, images.created_at, images.updated_at,
       CASE WHEN tombstone.image_id IS NOT NULL THEN 'deleted'
            WHEN images.revision IS NOT NULL THEN 'ready'
            WHEN newest.state = 'failed' THEN 'failed'
            ELSE 'pending' END AS status,
       shown.revision, shown.thumbhash, shown.color,
       CASE WHEN shown.revision IS NOT NULL THEN jsonb_build_object(
           'format', shown.format, 'width', shown.width, 'height', shown.height,
           'bytes', shown.bytes) END AS source,
       coalesce(made.variants, '[]'::jsonb) AS variants
  FROM images
  LEFT JOIN image_tombstones AS tombstone ON tombstone.image_id = images.id
  LEFT JOIN image_revisions AS shown
         ON shown.image_id = images.id AND shown.revision = images.revision
        AND tombstone.image_id IS NULL
  LEFT JOIN LATERAL (
      SELECT jsonb_agg(to_jsonb(variants) ORDER BY variants.width, variants.format) AS variants
        FROM variants
       WHERE variants.image_id = shown.image_id AND variants.revision = shown.revision
  ) AS made ON true
  LEFT JOIN LATERAL (
      SELECT jobs.state
        FROM jobs
       WHERE jobs.tenant_id = images.tenant_id AND jobs.target = 'image:' || images.id
       ORDER BY jobs.id DESC NULLS LAST
       LIMIT 1
  ) AS newest ON images.revision IS NULL

 WHERE images.tenant_id = $1

   AND images.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY images.id DESC NULLS LAST
 LIMIT $3

-- images.LIST_BY_REFERENCE
SELECT images.id AS image_id, images.reference, images.recipe, images.created_at, images.updated_at,
       CASE WHEN tombstone.image_id IS NOT NULL THEN 'deleted'
            WHEN images.revision IS NOT NULL THEN 'ready'
            WHEN newest.state = 'failed' THEN 'failed'
            ELSE 'pending' END AS status,
       shown.revision, shown.thumbhash, shown.color,
       CASE WHEN shown.revision IS NOT NULL THEN jsonb_build_object(
           'format', shown.format, 'width', shown.width, 'height', shown.height,
           'bytes', shown.bytes) END AS source,
       coalesce(made.variants, '[]'::jsonb) AS variants
  FROM images
  LEFT JOIN image_tombstones AS tombstone ON tombstone.image_id = images.id
  LEFT JOIN image_revisions AS shown
         ON shown.image_id = images.id AND shown.revision = images.revision
        AND tombstone.image_id IS NULL
  LEFT JOIN LATERAL (
      SELECT jsonb_agg(to_jsonb(variants) ORDER BY variants.width, variants.format) AS variants
        FROM variants
       WHERE variants.image_id = shown.image_id AND variants.revision = shown.revision
  ) AS made ON true
  LEFT JOIN LATERAL (
      SELECT jobs.state
        FROM jobs
       WHERE jobs.tenant_id = images.tenant_id AND jobs.target = 'image:' || images.id
       ORDER BY jobs.id DESC NULLS LAST
       LIMIT 1
  ) AS newest ON images.revision IS NULL

 WHERE images.tenant_id = $1 AND images.reference = $4

   AND images.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY images.id DESC NULLS LAST
 LIMIT $3

-- invalidations.LOOK_AT_OWED
SELECT invalidations.id, invalidations.last_owed_at, invalidations.owed_at,
       clock_timestamp() AS seen_at
  FROM invalidations
 WHERE invalidations.batch_id IS NULL
 ORDER BY invalidations.owed_at
 LIMIT $1

-- invalidations.COUNT_IN_FLIGHT
SELECT coalesce(sum(batches.paths - each_of.wildcards), 0)::integer AS paths,
       coalesce(sum(each_of.wildcards), 0)::integer AS wildcards
  FROM invalidation_batches AS batches
  CROSS JOIN LATERAL (
      SELECT count(*) AS wildcards
        FROM jsonb_array_elements_text(batches.items) AS item
       WHERE item.value LIKE '%*'
  ) AS each_of
 WHERE batches.completed_at IS NULL
   AND (batches.accepted_at IS NOT NULL OR batches.last_error IS NULL
        OR NOT starts_with(batches.last_error, 'cloudfront_rejected:'))

-- invalidations.TAKE_OWED
SELECT debts.id, debts.image_id
  FROM unnest($1::uuid[], $2::timestamptz[]) WITH ORDINALITY AS seen (id, last_owed_at, place)
  JOIN invalidations AS debts
    ON debts.id = seen.id AND debts.last_owed_at = seen.last_owed_at AND debts.batch_id IS NULL
 ORDER BY seen.place
 LIMIT $3
   FOR UPDATE OF debts SKIP LOCKED

-- invalidations.FREEZE_BATCH
WITH batch AS (
    INSERT INTO invalidation_batches (id, items, paths)
    VALUES ($1, $2::jsonb, jsonb_array_length($2::jsonb))
    RETURNING invalidation_batches.id
)
UPDATE invalidations
   SET batch_id = batch.id
  FROM batch
 WHERE invalidations.id = ANY ($3::uuid[])

-- invalidations.OWE_AGAIN
WITH owed AS (
    INSERT INTO invalidations (image_id, tenant_id, reason)
    SELECT stamped.image_id, stamped.tenant_id, stamped.reason
      FROM invalidations AS stamped
     WHERE stamped.id = ANY ($1::uuid[])
     ORDER BY stamped.image_id
        ON CONFLICT (image_id) WHERE batch_id IS NULL DO NOTHING
    RETURNING invalidations.id, invalidations.image_id
)
UPDATE image_tombstones
   SET invalidation_id = owed.id
  FROM owed
 WHERE image_tombstones.image_id = owed.image_id
   AND image_tombstones.invalidation_id = ANY ($1::uuid[])
   AND image_tombstones.dark_at IS NULL

-- keys.CREATE_TENANT
INSERT INTO tenants (id, name) VALUES ($1, $1) ON CONFLICT DO NOTHING

-- keys.CREATE_KEY
INSERT INTO api_keys (id, tenant_id, name, secret_sha256, scopes, expires_at)
VALUES ($1, $2, $3, $4, $5, now() + $6::interval)

-- keys.FIND_KEY
SELECT api_keys.id, api_keys.tenant_id, api_keys.name, api_keys.scopes, api_keys.created_at,
       api_keys.expires_at, api_keys.revoked_at, api_keys.last_used_at
  FROM api_keys
 WHERE api_keys.secret_sha256 = $1
   AND api_keys.revoked_at IS NULL
   AND (api_keys.expires_at IS NULL OR api_keys.expires_at > now())

-- keys.TOUCH_KEY
UPDATE api_keys SET last_used_at = now()
 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')

-- keys.LIST_KEYS
SELECT api_keys.id, api_keys.tenant_id, api_keys.name, api_keys.scopes, api_keys.created_at,
       api_keys.expires_at, api_keys.revoked_at, api_keys.last_used_at
  FROM api_keys
 WHERE $1::text IS NULL OR api_keys.tenant_id = $1
 ORDER BY api_keys.tenant_id, api_keys.created_at

-- keys.REVOKE_KEY
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1 RETURNING id

-- leases.RENEW_CLAIMS
WITH me AS (
    UPDATE workers SET beat_at = now(), beats = beats + 1
     WHERE id = $1 AND dead_at IS NULL
    RETURNING id
),
held AS (
    SELECT *
      FROM unnest($2::uuid[], $3::bigint[], $4::interval[]) AS held (id, claim_no, renewable_for)
),
mine AS MATERIALIZED (
    SELECT jobs.id, jobs.claim_no, jobs.locked_at, jobs.claimed_at,
           jobs.cancel_requested_at IS NOT NULL AS cancelled
      FROM jobs
     WHERE jobs.locked_by = $1 AND jobs.state = 'processing'
),
stale AS MATERIALIZED (
    SELECT jobs.id
      FROM jobs
      JOIN mine ON mine.id = jobs.id
      JOIN held ON held.id = jobs.id AND held.claim_no = jobs.claim_no
      CROSS JOIN fleet
     WHERE mine.locked_at < now() - fleet.lock_timeout / 3
       AND mine.claimed_at > now() - held.renewable_for
       AND jobs.locked_by = $1 AND jobs.state = 'processing'
     ORDER BY jobs.id
       FOR UPDATE OF jobs SKIP LOCKED
),
renewed AS (
    UPDATE jobs SET locked_at = now()
      FROM stale, me
     WHERE jobs.id = stale.id
    RETURNING jobs.id
)
SELECT coalesce(held.id, mine.id) AS id,
       coalesce(held.claim_no, mine.claim_no) AS claim_no,
       EXISTS (SELECT FROM me) AS alive,
       held.id IS NOT NULL AND mine.id IS NULL AS lost,
       held.id IS NULL AS stray,
       coalesce(mine.cancelled, false) AS cancelled
  FROM held
  FULL JOIN mine ON mine.id = held.id AND mine.claim_no = held.claim_no
UNION ALL
SELECT NULL, NULL, EXISTS (SELECT FROM me), false, false, false

-- leases.REPORT_PROGRESS
UPDATE jobs
   SET progress_done = $3, progress_total = $4, progress_cursor = coalesce($5, progress_cursor),
       last_progress_at = now(), updated_at = now(),
       locked_at = CASE WHEN claimed_at > now() - $6::interval THEN now() ELSE locked_at END
 WHERE id = $1 AND claim_no = $2 AND state = 'processing'
RETURNING cancel_requested_at IS NOT NULL AS cancelled

-- migrations.APPLIED
SELECT version, name, sha256, breaking FROM schema_migrations ORDER BY version

-- migrations.INVALID_INDEXES
SELECT indexes.indexrelid::regclass::text
  FROM pg_index AS indexes
  JOIN pg_class AS class ON class.oid = indexes.indexrelid
 WHERE NOT indexes.indisvalid
   AND class.relkind = 'i'
   AND class.relnamespace = 'public'::regnamespace
   AND NOT EXISTS (  -- still being built by somebody
       SELECT FROM pg_stat_progress_create_index AS building
        WHERE building.index_relid = indexes.indexrelid)
 ORDER BY 1

-- migrations.HOLDER
SELECT format(
           'pid %s, %s, since %s',
           activity.pid, activity.application_name, activity.backend_start)
  FROM pg_locks AS locks
  JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
 WHERE locks.locktype = 'advisory' AND locks.classid = 0 AND locks.objid = $1 AND locks.objsubid = 1
   AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND locks.granted

-- migrations.RECORD
INSERT INTO schema_migrations (version, name, sha256, breaking, duration_ms)
VALUES ($1, $2, $3, $4, $5)

-- oversight.OVERSEE_ALL
SELECT
       jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.state, jobs.lane, jobs.priority,
       jobs.target, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.locked_by,
       jobs.failure_code, jobs.correlation_id, jobs.dedup_key, jobs.parent_job_id, jobs.run_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at

  FROM jobs
 WHERE $1::text IS NULL AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')

 ORDER BY jobs.id DESC
 LIMIT $3

-- oversight.OVERSEE_TENANT
SELECT
       jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.state, jobs.lane, jobs.priority,
       jobs.target, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.locked_by,
       jobs.failure_code, jobs.correlation_id, jobs.dedup_key, jobs.parent_job_id, jobs.run_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at
 FROM jobs
 WHERE jobs.tenant_id = $1

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

-- oversight.OVERSEE_BY_STATE
SELECT
       jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.state, jobs.lane, jobs.priority,
       jobs.target, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.locked_by,
       jobs.failure_code, jobs.correlation_id, jobs.dedup_key, jobs.parent_job_id, jobs.run_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at


  FROM (SELECT $1::text AS id WHERE $1::text IS NOT NULL
        UNION ALL
        SELECT tenants.id FROM tenants WHERE $1::text IS NULL) AS owners

  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = owners.id AND jobs.state = $4

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

  ) AS jobs

 ORDER BY jobs.id DESC
 LIMIT $3

-- oversight.OVERSEE_BY_TYPE
SELECT
       jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.state, jobs.lane, jobs.priority,
       jobs.target, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.locked_by,
       jobs.failure_code, jobs.correlation_id, jobs.dedup_key, jobs.parent_job_id, jobs.run_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at


  FROM (SELECT $1::text AS id WHERE $1::text IS NOT NULL
        UNION ALL
        SELECT tenants.id FROM tenants WHERE $1::text IS NULL) AS owners

  CROSS JOIN unnest($5::text[]) AS wanted (state)
  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = owners.id AND jobs.type = $4 AND jobs.state = wanted.state

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

  ) AS jobs

 ORDER BY jobs.id DESC
 LIMIT $3

-- oversight.OVERSEE_BY_CORRELATION
SELECT
       jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.state, jobs.lane, jobs.priority,
       jobs.target, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.locked_by,
       jobs.failure_code, jobs.correlation_id, jobs.dedup_key, jobs.parent_job_id, jobs.run_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at


  FROM (SELECT $1::text AS id WHERE $1::text IS NOT NULL
        UNION ALL
        SELECT tenants.id FROM tenants WHERE $1::text IS NULL) AS owners

  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = owners.id AND jobs.correlation_id = $4

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

  ) AS jobs

 ORDER BY jobs.id DESC
 LIMIT $3

-- oversight.OVERSEE_BY_TARGET
SELECT
       jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.state, jobs.lane, jobs.priority,
       jobs.target, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.locked_by,
       jobs.failure_code, jobs.correlation_id, jobs.dedup_key, jobs.parent_job_id, jobs.run_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at


  FROM (SELECT $1::text AS id WHERE $1::text IS NOT NULL
        UNION ALL
        SELECT tenants.id FROM tenants WHERE $1::text IS NULL) AS owners

  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = owners.id AND jobs.target = $4

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

  ) AS jobs

 ORDER BY jobs.id DESC
 LIMIT $3

-- oversight.OVERSEE_CHILDREN
SELECT
       jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.state, jobs.lane, jobs.priority,
       jobs.target, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.locked_by,
       jobs.failure_code, jobs.correlation_id, jobs.dedup_key, jobs.parent_job_id, jobs.run_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at


  FROM (SELECT $1::text AS id WHERE $1::text IS NOT NULL
        UNION ALL
        SELECT tenants.id FROM tenants WHERE $1::text IS NULL) AS owners

  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = owners.id AND jobs.parent_job_id = $4

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

  ) AS jobs

 ORDER BY jobs.id DESC
 LIMIT $3

-- oversight.LIST_WORKERS
SELECT workers.id AS worker_id, workers.host, workers.pid, workers.version, workers.lanes,
       workers.types, workers.slots, workers.started_at, workers.beat_at,
       greatest(now() - workers.beat_at, interval '0') AS silent_for, workers.draining_since,
       workers.dead_at, workers.dead_why
  FROM workers
 WHERE workers.dead_at IS NULL OR ($1 AND workers.dead_at > now() - interval '1 day')
 ORDER BY workers.dead_at DESC NULLS FIRST, workers.started_at, workers.id
 LIMIT $2

-- oversight.LIST_HELD
SELECT jobs.locked_by, jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.lane, jobs.claim_no,
       jobs.claimed_at, jobs.progress_done, jobs.progress_total,
       jobs.cancel_requested_at IS NOT NULL AS cancel_requested
  FROM jobs
 WHERE jobs.state = 'processing' AND jobs.locked_by = ANY ($1::uuid[])
 ORDER BY jobs.claimed_at, jobs.id

-- pointers.FIND_CURRENT
SELECT variants.key
  FROM images
  JOIN variants ON variants.image_id = images.id AND variants.revision = images.revision
 WHERE images.id = $1 AND variants.name = $2 AND variants.format = $3
   AND NOT EXISTS (SELECT FROM image_tombstones WHERE image_tombstones.image_id = images.id)

-- queues.READ_QUEUE_HEALTH
SELECT health.type, health.state, health.lane, health.jobs, health.oldest_due,
       now() - health.oldest_due AS oldest_age
  FROM job_queue_health AS health
 ORDER BY health.type, health.lane, health.state

-- queues.LIST_TAKEN
SELECT DISTINCT lanes.lane, types.type
  FROM workers, unnest(workers.lanes) AS lanes (lane), unnest(workers.types) AS types (type)
 WHERE workers.dead_at IS NULL AND workers.draining_since IS NULL

-- queues.LIST_STUCK
SELECT stuck.id, stuck.tenant_id, stuck.type, stuck.lane, stuck.attempts, stuck.claimed_at,
       stuck.last_progress_at, stuck.locked_by, stuck.host, stuck.beat_at
  FROM stuck_jobs AS stuck
 ORDER BY stuck.claimed_at
 LIMIT $1

-- queues.LIST_FAILURES
SELECT recent.type, recent.failure_code, recent.failures, recent.latest_failure
  FROM recent_failures AS recent
 ORDER BY recent.failures DESC, recent.type, recent.failure_code
 LIMIT $1

-- queues.READ_THROUGHPUT
SELECT flow.type, flow.lane, flow.outcome, flow.attempts, flow.mean_duration,
       flow.longest_duration, flow.mean_queue_time
  FROM throughput AS flow
 ORDER BY flow.type, flow.lane, flow.outcome

-- queues.LOAD_OF_LANES
WITH rooms AS MATERIALIZED (
    SELECT room.lane, count(*) AS workers, sum(room.slots)::bigint AS slots,
           sum(least(room.taken, room.slots))::bigint AS busy

  FROM workers
  CROSS JOIN LATERAL (
      SELECT count(*) FILTER (WHERE jobs.lane = 'fast') AS fast,
             count(*) FILTER (WHERE jobs.lane = 'general') AS general,
             count(*) FILTER (WHERE jobs.lane = 'quarantine') AS quarantine
        FROM jobs
       WHERE jobs.locked_by = workers.id AND jobs.state = 'processing'
  ) AS held
  CROSS JOIN LATERAL (
      SELECT coalesce(workers.slots[array_position(workers.lanes, 'fast')], 0) AS fast,
             coalesce(workers.slots[array_position(workers.lanes, 'general')], 0) AS general,
             coalesce(workers.slots[array_position(workers.lanes, 'quarantine')], 0) AS quarantine
  ) AS slots
  CROSS JOIN LATERAL (
      VALUES ('fast', slots.fast + slots.general, slots.fast, held.fast + held.general, held.fast),
             ('general', slots.general, slots.general,
              held.general + greatest(held.fast - slots.fast, 0), held.general),
             ('quarantine', slots.quarantine, slots.quarantine, held.quarantine, held.quarantine)
  ) AS room (lane, slots, own, taken, in_lane)
 WHERE workers.dead_at IS NULL AND workers.draining_since IS NULL
   AND room.lane = ANY (workers.lanes)

     GROUP BY room.lane
),
running AS MATERIALIZED (
    SELECT jobs.lane, count(*) AS jobs FROM jobs WHERE jobs.state = 'processing' GROUP BY jobs.lane
),
waiting AS MATERIALIZED (
    SELECT rings.lane, count(*) AS jobs, count(*) FILTER (WHERE rings.due_at <= now()) AS due,
           min(rings.due_at) FILTER (WHERE rings.due_at <= now()) AS oldest_due
      FROM rings
     GROUP BY rings.lane
)
SELECT lanes.lane, coalesce(rooms.workers, 0) AS workers, coalesce(rooms.slots, 0) AS slots,
       coalesce(rooms.busy, 0) AS busy, coalesce(running.jobs, 0) AS processing,
       coalesce(waiting.jobs, 0) AS waiting, coalesce(waiting.due, 0) AS due_rings,
       waiting.oldest_due AS oldest_due_ring
  FROM unnest($1::text[]) WITH ORDINALITY AS lanes (lane, place)
  LEFT JOIN rooms ON rooms.lane = lanes.lane
  LEFT JOIN running ON running.lane = lanes.lane
  LEFT JOIN waiting ON waiting.lane = lanes.lane
 ORDER BY lanes.place

-- queues.ROOM_FOR_JOB
SELECT count(*) AS workers, coalesce(sum(room.slots), 0)::bigint AS slots,
       coalesce(sum(room.own), 0)::bigint AS own,
       coalesce(sum(least(room.taken, room.slots)), 0)::bigint AS busy,
       coalesce(sum(room.in_lane), 0)::bigint AS in_lane

  FROM workers
  CROSS JOIN LATERAL (
      SELECT count(*) FILTER (WHERE jobs.lane = 'fast') AS fast,
             count(*) FILTER (WHERE jobs.lane = 'general') AS general,
             count(*) FILTER (WHERE jobs.lane = 'quarantine') AS quarantine
        FROM jobs
       WHERE jobs.locked_by = workers.id AND jobs.state = 'processing'
  ) AS held
  CROSS JOIN LATERAL (
      SELECT coalesce(workers.slots[array_position(workers.lanes, 'fast')], 0) AS fast,
             coalesce(workers.slots[array_position(workers.lanes, 'general')], 0) AS general,
             coalesce(workers.slots[array_position(workers.lanes, 'quarantine')], 0) AS quarantine
  ) AS slots
  CROSS JOIN LATERAL (
      VALUES ('fast', slots.fast + slots.general, slots.fast, held.fast + held.general, held.fast),
             ('general', slots.general, slots.general,
              held.general + greatest(held.fast - slots.fast, 0), held.general),
             ('quarantine', slots.quarantine, slots.quarantine, held.quarantine, held.quarantine)
  ) AS room (lane, slots, own, taken, in_lane)
 WHERE workers.dead_at IS NULL AND workers.draining_since IS NULL
   AND room.lane = ANY (workers.lanes)

   AND room.lane = $1 AND $2 = ANY (workers.types)

-- queues.READ_BALANCE
SELECT balance.accepted, balance.open, balance.completed, balance.failed, balance.pruned
  FROM ledger_balance AS balance

-- queues.LIST_PRUNE_RUNS
SELECT periods.period_start, periods.holder, periods.started_at, periods.finished_at,
       periods.report
  FROM periods
 WHERE periods.name = 'prune'
 ORDER BY periods.period_start DESC
 LIMIT $1

-- queues.COUNT_PRUNABLE
SELECT fleet.retention,
       (SELECT count(*)
          FROM (SELECT
                  FROM jobs
                 WHERE jobs.state IN ('completed', 'failed')
                   AND jobs.finished_at < now() - fleet.retention
                   AND (SELECT count(*) FROM dead_letters
                         WHERE dead_letters.job_id = jobs.id
                           AND dead_letters.acknowledged_at IS NULL) = 0
                 LIMIT $1) AS old) AS prunable
  FROM fleet

-- replays.READ_CLOCK
SELECT now()

-- replays.CLOSE_REPLAYED
WITH known AS MATERIALIZED (
    SELECT letters.id, replays.id AS replayed_as, replays.created_by
      FROM dead_letters AS letters
      JOIN jobs AS replays ON replays.replay_of = letters.job_id
     WHERE letters.id = ANY ($1::uuid[]) AND letters.acknowledged_at IS NULL
     ORDER BY letters.id
       FOR UPDATE OF letters
)
UPDATE dead_letters
   SET acknowledged_at = now(), acknowledged_by = known.created_by,
       acknowledged_note = 'replayed as ' || known.replayed_as
  FROM known
 WHERE dead_letters.id = known.id

-- replays.FIND_REPLAYED
SELECT letters.id
  FROM dead_letters AS letters
 WHERE letters.acknowledged_at IS NULL
   AND EXISTS (SELECT FROM jobs WHERE jobs.replay_of = letters.job_id)
 LIMIT $1

-- replays.FIND_REPLAYS
SELECT jobs.replay_of, jobs.id FROM jobs WHERE jobs.replay_of = ANY ($1::uuid[])

-- replays.COUNT_OUTCOMES
SELECT count(*) FILTER (WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')) AS open,
       count(*) FILTER (WHERE jobs.state = 'completed') AS completed,
       count(*) FILTER (WHERE jobs.state = 'failed') AS failed
  FROM jobs
 WHERE jobs.id = ANY ($1::uuid[])

-- reports.GET_JOB
SELECT
       jobs.id AS job_id, jobs.type, jobs.state, jobs.target, jobs.correlation_id,
       jobs.parent_job_id, jobs.progress_done, jobs.progress_total, jobs.result_reason,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_code END
           AS failure_code,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_message END
           AS failure_message,
       CASE WHEN jobs.state = 'failed_retryable'
                 OR (jobs.state = 'queued' AND jobs.run_at > jobs.created_at)
            THEN jobs.run_at END AS next_attempt_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at

  FROM jobs
 WHERE jobs.id = $1 AND jobs.tenant_id = $2

-- reports.LIST_JOBS
SELECT
       jobs.id AS job_id, jobs.type, jobs.state, jobs.target, jobs.correlation_id,
       jobs.parent_job_id, jobs.progress_done, jobs.progress_total, jobs.result_reason,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_code END
           AS failure_code,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_message END
           AS failure_message,
       CASE WHEN jobs.state = 'failed_retryable'
                 OR (jobs.state = 'queued' AND jobs.run_at > jobs.created_at)
            THEN jobs.run_at END AS next_attempt_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at
 FROM jobs
 WHERE jobs.tenant_id = $1

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

-- reports.LIST_BY_STATE
SELECT
       jobs.id AS job_id, jobs.type, jobs.state, jobs.target, jobs.correlation_id,
       jobs.parent_job_id, jobs.progress_done, jobs.progress_total, jobs.result_reason,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_code END
           AS failure_code,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_message END
           AS failure_message,
       CASE WHEN jobs.state = 'failed_retryable'
                 OR (jobs.state = 'queued' AND jobs.run_at > jobs.created_at)
            THEN jobs.run_at END AS next_attempt_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at
 FROM jobs
 WHERE jobs.tenant_id = $1 AND jobs.state = $4

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

-- reports.LIST_BY_TYPE
SELECT
       jobs.id AS job_id, jobs.type, jobs.state, jobs.target, jobs.correlation_id,
       jobs.parent_job_id, jobs.progress_done, jobs.progress_total, jobs.result_reason,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_code END
           AS failure_code,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_message END
           AS failure_message,
       CASE WHEN jobs.state = 'failed_retryable'
                 OR (jobs.state = 'queued' AND jobs.run_at > jobs.created_at)
            THEN jobs.run_at END AS next_attempt_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at

  FROM unnest($5::text[]) AS wanted (state)
  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = $1 AND jobs.type = $4 AND jobs.state = wanted.state

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

  ) AS jobs
 ORDER BY jobs.id DESC
 LIMIT $3

-- reports.LIST_BY_CORRELATION
SELECT
       jobs.id AS job_id, jobs.type, jobs.state, jobs.target, jobs.correlation_id,
       jobs.parent_job_id, jobs.progress_done, jobs.progress_total, jobs.result_reason,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_code END
           AS failure_code,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_message END
           AS failure_message,
       CASE WHEN jobs.state = 'failed_retryable'
                 OR (jobs.state = 'queued' AND jobs.run_at > jobs.created_at)
            THEN jobs.run_at END AS next_attempt_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at
 FROM jobs
 WHERE jobs.tenant_id = $1 AND jobs.correlation_id = $4

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

-- reports.LIST_BY_TARGET
SELECT
       jobs.id AS job_id, jobs.type, jobs.state, jobs.target, jobs.correlation_id,
       jobs.parent_job_id, jobs.progress_done, jobs.progress_total, jobs.result_reason,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_code END
           AS failure_code,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_message END
           AS failure_message,
       CASE WHEN jobs.state = 'failed_retryable'
                 OR (jobs.state = 'queued' AND jobs.run_at > jobs.created_at)
            THEN jobs.run_at END AS next_attempt_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at
 FROM jobs
 WHERE jobs.tenant_id = $1 AND jobs.target = $4

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

-- reports.LIST_CHILDREN
SELECT
       jobs.id AS job_id, jobs.type, jobs.state, jobs.target, jobs.correlation_id,
       jobs.parent_job_id, jobs.progress_done, jobs.progress_total, jobs.result_reason,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_code END
           AS failure_code,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_message END
           AS failure_message,
       CASE WHEN jobs.state = 'failed_retryable'
                 OR (jobs.state = 'queued' AND jobs.run_at > jobs.created_at)
            THEN jobs.run_at END AS next_attempt_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at
 FROM jobs
 WHERE jobs.tenant_id = $1 AND jobs.parent_job_id = $4

   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3

-- reports.GET_OPERATOR_JOB
SELECT jobs.*, rings.due_at AS ring_due_at, rings.rings AS rung
  FROM jobs
  LEFT JOIN rings ON rings.job_id = jobs.id
 WHERE jobs.id = $1

-- reports.LIST_ATTEMPTS
SELECT attempts.claim_no, attempts.worker_id, attempts.lane, attempts.claimed_at, attempts.ended_at,
       attempts.duration, attempts.queue_time, attempts.charged, attempts.outcome, attempts.why,
       attempts.detail, attempts.log_excerpt
  FROM attempts
 WHERE attempts.job_id = $1
 ORDER BY attempts.claim_no

-- reprocessing.LOCK_IMAGES
SELECT targets.target
  FROM targets
 WHERE targets.tenant_id = $1 AND targets.target = ANY ($2::text[])
 ORDER BY targets.tenant_id, targets.target
   FOR UPDATE OF targets

-- reprocessing.FIND_CANDIDATES
SELECT images.id AS image_id, images.recipe, tombstone.image_id IS NOT NULL AS deleted,
       newest.source_seq, newest.key, newest.bytes, newest.sha256, newest.etag, newest.content_type
  FROM unnest($2::uuid[]) AS wanted (id)
  JOIN images ON images.id = wanted.id AND images.tenant_id = $1
  LEFT JOIN image_tombstones AS tombstone ON tombstone.image_id = images.id
  CROSS JOIN LATERAL (
      SELECT sources.source_seq, sources.key, sources.bytes, sources.sha256, sources.etag,
             sources.content_type
        FROM image_sources AS sources
       WHERE sources.image_id = images.id
       ORDER BY sources.source_seq DESC
       LIMIT 1
  ) AS newest
 ORDER BY images.id DESC

-- reprocessing.WALK_IMAGES
SELECT images.id
  FROM images
 WHERE images.tenant_id = $1
   AND images.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY images.id DESC NULLS LAST
 LIMIT $3

-- reprocessing.WALK_REFERENCE
SELECT images.id
  FROM images
 WHERE images.tenant_id = $1 AND images.reference = $4
   AND images.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY images.id DESC NULLS LAST
 LIMIT $3

-- reprocessing.COUNT_IMAGES
SELECT count(*)
  FROM (SELECT FROM images WHERE images.tenant_id = $1 LIMIT $2) AS counted

-- reprocessing.COUNT_REFERENCE
SELECT count(*)
  FROM (SELECT FROM images
         WHERE images.tenant_id = $1 AND images.reference = $3 LIMIT $2) AS counted

-- reprocessing.CREATED_BY
SELECT jobs.created_by FROM jobs WHERE jobs.id = $1

-- rings.CONFIRM_RINGS
WITH bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
      JOIN unnest($1::uuid[], $2::timestamptz[]) AS sent (job_id, due_at)
        ON sent.job_id = rings.job_id AND sent.due_at = rings.due_at
     ORDER BY rings.job_id
       FOR UPDATE OF rings
)
UPDATE rings
   SET due_at = now() + least(interval '1 minute' * power(2, least(rings.rings, 20)),
                              interval '6 hours'),
       rings = rings.rings + 1
  FROM bell
 WHERE rings.job_id = bell.job_id

-- rings.TAKE_DUE_RINGS
WITH RECURSIVE level AS (
    (SELECT rings.priority FROM rings WHERE rings.lane = $1 ORDER BY rings.priority LIMIT 1)
    UNION ALL
    SELECT (SELECT rings.priority FROM rings
             WHERE rings.lane = $1 AND rings.priority > level.priority
             ORDER BY rings.priority LIMIT 1)
      FROM level
     WHERE level.priority IS NOT NULL
),
due AS MATERIALIZED (
    SELECT bell.job_id, bell.again
      FROM level
      CROSS JOIN LATERAL (
          SELECT rings.job_id,
                 rings.rings = 0 OR $3 OR rings.since < now() - interval '12 hours' AS again
            FROM rings
           WHERE rings.lane = $1 AND rings.priority = level.priority AND rings.due_at <= now()
           ORDER BY rings.due_at
           LIMIT $2
             FOR UPDATE SKIP LOCKED
      ) AS bell
     LIMIT $2
),
pushed AS (
    UPDATE rings
       SET due_at = now() + CASE WHEN due.again
               THEN least(interval '1 minute' * power(2, least(rings.rings, 20)),
                          interval '6 hours')
               ELSE interval '1 minute' END,
           rings = rings.rings + due.again::int
      FROM due
     WHERE rings.job_id = due.job_id
       -- The same again, in a form of which the planner knows that it names few rows.
       AND rings.job_id = ANY (ARRAY (SELECT due.job_id FROM due))
    RETURNING rings.job_id, rings.lane, rings.priority, rings.due_at, due.again
)
SELECT pushed.job_id, pushed.lane, pushed.due_at, jobs.tenant_id, jobs.traceparent, jobs.tracestate
  FROM pushed
  JOIN jobs ON jobs.id = pushed.job_id
 WHERE pushed.again
 ORDER BY pushed.priority, pushed.due_at

-- rings.LOOK_AT_DUE_RINGS
WITH RECURSIVE level AS (
    (SELECT rings.lane, rings.priority FROM rings ORDER BY rings.lane, rings.priority LIMIT 1)
    UNION ALL
    SELECT following.lane, following.priority
      FROM level
      CROSS JOIN LATERAL (
          SELECT rings.lane, rings.priority
            FROM rings
           WHERE (rings.lane, rings.priority) > (level.lane, level.priority)
           ORDER BY rings.lane, rings.priority
           LIMIT 1
      ) AS following
)
SELECT level.lane,
       bool_or(bell.rings > 0 AND bell.since >= now() - interval '12 hours') AS repeats
  FROM level
  CROSS JOIN LATERAL (
      SELECT rings.rings, rings.since
        FROM rings
       WHERE rings.lane = level.lane AND rings.priority = level.priority AND rings.due_at <= now()
       ORDER BY rings.due_at
       LIMIT $1
  ) AS bell
 GROUP BY level.lane

-- rings.FIND_EXPIRED
SELECT jobs.id AS job_id, jobs.lane, now() AS due_at, jobs.tenant_id, jobs.traceparent,
       jobs.tracestate
  FROM jobs
 WHERE jobs.state = 'processing'
   AND jobs.locked_at < now() - (SELECT fleet.lock_timeout FROM fleet) - interval '1 minute'
 ORDER BY jobs.locked_at
 LIMIT $1

-- rings.SAMPLE_RINGS
SELECT rings.lane, count(*) AS waiting,
       count(*) FILTER (WHERE rings.due_at <= now()) AS due,
       coalesce(max(now() - rings.due_at), interval '0') AS oldest
  FROM rings
 GROUP BY rings.lane

-- rings.EXPECT_MESSAGES
SELECT messages.lane, messages.waiting, messages.announced, messages.processing, messages.expected
  FROM expected_messages AS messages

-- roles.IS_SUPERUSER
SELECT current_setting('is_superuser') = 'on'

-- roles.DATABASE_EXISTS
SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)

-- settlements.ENDED_BY
SELECT attempts.job_id, attempts.claim_no
  FROM attempts
 WHERE attempts.job_id = ANY ($1::uuid[])
   AND attempts.worker_id = $2
   AND attempts.outcome IN ('completed', 'retried', 'failed', 'released')

-- sources.FIND_ORIGINAL
SELECT sources.key, sources.bytes, sources.content_type, sources.etag, sources.sha256
  FROM image_sources AS sources
 WHERE sources.image_id = $1 AND sources.tenant_id = $2
   AND NOT EXISTS (SELECT FROM image_tombstones
                    WHERE image_tombstones.image_id = sources.image_id)
 ORDER BY sources.source_seq DESC
 LIMIT 1

-- submissions.LOCK_KEYS
SELECT pg_advisory_xact_lock(keys.key)
  FROM (SELECT DISTINCT hashtextextended(tenant_id || '/' || idempotency_key, 0) AS key
          FROM unnest($1::text[], $2::text[]) AS both_keys (tenant_id, idempotency_key)
         ORDER BY 1) AS keys

-- submissions.TAKE_SEQUENCES
INSERT INTO targets (tenant_id, target, next_seq)
SELECT wanted.tenant_id, wanted.target, 1 + wanted.jobs
  FROM unnest($1::text[], $2::text[], $3::bigint[]) AS wanted (tenant_id, target, jobs)
 ORDER BY wanted.tenant_id, wanted.target
    ON CONFLICT (tenant_id, target)
    DO UPDATE SET next_seq = targets.next_seq + excluded.next_seq - 1
RETURNING tenant_id, target, next_seq

-- submissions.INSERT_JOBS
WITH new AS (
    SELECT *
      FROM jsonb_to_recordset($1::jsonb) AS new (
          id uuid, tenant_id text, type text, lane text, priority integer, run_at timestamptz,
          target text, target_seq bigint, preempts boolean, services text[],
          pause_target_on_failure boolean, max_attempts integer, payload jsonb,
          idempotency_key text, fingerprint text, dedup_key text, correlation_id text,
          parent_job_id uuid, created_by text, replay_of uuid, generation integer,
          replay_reason text, traceparent text, tracestate text)
),
accepted AS (
    INSERT INTO jobs (id, tenant_id, type, lane, priority, run_at, target, target_seq, preempts,
                      services, pause_target_on_failure, max_attempts, payload, idempotency_key,
                      fingerprint, dedup_key, correlation_id, parent_job_id, created_by, replay_of,
                      generation, replay_reason, traceparent, tracestate)
    SELECT new.id, new.tenant_id, new.type, new.lane, new.priority, coalesce(new.run_at, now()),
           new.target, new.target_seq, new.preempts, new.services, new.pause_target_on_failure,
           new.max_attempts, new.payload, new.idempotency_key, new.fingerprint, new.dedup_key,
           new.correlation_id, new.parent_job_id, new.created_by, new.replay_of, new.generation,
           new.replay_reason, new.traceparent, new.tracestate
      FROM new
     ORDER BY new.tenant_id, new.idempotency_key, new.dedup_key, new.replay_of, new.id
        ON CONFLICT DO NOTHING
    RETURNING id, type, state, lane, priority, run_at, target, created_at
),
bell AS (
    -- The submitter rings by itself right after commit; this is for when it does not live to do so.
    INSERT INTO rings (job_id, lane, priority, due_at)
    SELECT accepted.id, accepted.lane, accepted.priority,
           greatest(accepted.run_at, now() + interval '5 seconds')
      FROM accepted
    RETURNING job_id, due_at
)
SELECT accepted.id, accepted.id AS job_id, accepted.type, accepted.state, accepted.lane,
       accepted.target, accepted.created_at,
       CASE WHEN accepted.run_at <= now() THEN bell.due_at END AS due_at
  FROM accepted
  JOIN bell ON bell.job_id = accepted.id

-- submissions.FIND_STANDING
SELECT wanted.id, jobs.id AS job_id, jobs.type, jobs.state, jobs.lane, jobs.target,
       jobs.created_at, NULL::timestamptz AS due_at, standing.how,
       standing.how IN ('key', 'alias') AND standing.fingerprint <> wanted.fingerprint AS differs
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::uuid[])
       AS wanted (id, tenant_id, type, idempotency_key, fingerprint, dedup_key, replay_of)
  CROSS JOIN LATERAL (
      SELECT 1 AS rank, 'key' AS how, keyed.id AS job_id, keyed.fingerprint
        FROM jobs AS keyed
       WHERE keyed.tenant_id = wanted.tenant_id AND keyed.idempotency_key = wanted.idempotency_key
      UNION ALL
      SELECT 2, 'alias', aliases.job_id, aliases.fingerprint
        FROM idempotency_aliases AS aliases
       WHERE aliases.tenant_id = wanted.tenant_id
         AND aliases.idempotency_key = wanted.idempotency_key
      UNION ALL
      SELECT 3, 'replay', replays.id, NULL FROM jobs AS replays
       WHERE replays.replay_of = wanted.replay_of AND replays.tenant_id = wanted.tenant_id
      UNION ALL
      SELECT 4, 'dedup', living.id, NULL
        FROM jobs AS living
       WHERE living.tenant_id = wanted.tenant_id AND living.type = wanted.type
         AND living.dedup_key = wanted.dedup_key
         AND living.state IN ('queued', 'processing', 'failed_retryable')
       ORDER BY 1
       LIMIT 1
  ) AS standing
  JOIN jobs ON jobs.id = standing.job_id

-- submissions.REMEMBER_ALIASES
INSERT INTO idempotency_aliases (tenant_id, idempotency_key, fingerprint, job_id)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[])
    ON CONFLICT DO NOTHING

-- sweeping.LIST_SUPERSEDED
WITH old AS MATERIALIZED (
    SELECT old.image_id, old.revision, old.superseded_at, old.invalidation_id
      FROM image_revisions AS old
     WHERE old.superseded_at IS NOT NULL AND old.swept_at IS NULL
       AND old.superseded_at < now() - $1::interval
       AND old.superseded_at >= coalesce($3::timestamptz, '-infinity')
       AND ($3::timestamptz IS NULL
            OR (old.superseded_at, old.image_id, old.revision) > ($3, $4::uuid, $5::bigint))
     ORDER BY old.superseded_at, old.image_id, old.revision
     LIMIT $6
)
SELECT old.image_id, old.revision, old.superseded_at, made.keys, made.bytes,
       (NOT $2::bool OR coalesce(told.completed_at < now() - $1::interval, false))
       AND (SELECT count(*) FROM image_tombstones AS tombstones
             WHERE tombstones.image_id = old.image_id
               AND tombstones.objects_deleted_at IS NULL) = 0 AS ripe
  FROM old
  LEFT JOIN LATERAL (
      SELECT batches.completed_at
        FROM invalidations
        JOIN invalidation_batches AS batches ON batches.id = invalidations.batch_id
       WHERE invalidations.id = old.invalidation_id
       LIMIT 1
  ) AS told ON true
  CROSS JOIN LATERAL (
      SELECT coalesce(array_agg(variants.key), '{}') AS keys,
             coalesce(sum(variants.bytes), 0)::bigint AS bytes
        FROM variants
       WHERE variants.image_id = old.image_id AND variants.revision = old.revision
  ) AS made
 ORDER BY old.superseded_at, old.image_id, old.revision

-- sweeping.RECORD_SWEPT
WITH gone AS MATERIALIZED (
    SELECT revisions.image_id, revisions.revision
      FROM image_revisions AS revisions
      JOIN unnest($1::uuid[], $2::bigint[]) AS wanted (image_id, revision)
        ON wanted.image_id = revisions.image_id AND wanted.revision = revisions.revision
     WHERE revisions.superseded_at IS NOT NULL AND revisions.swept_at IS NULL
     ORDER BY revisions.image_id, revisions.revision
       FOR UPDATE OF revisions
),
marked AS (
    UPDATE image_revisions
       SET swept_at = now()
      FROM gone
     WHERE image_revisions.image_id = gone.image_id AND image_revisions.revision = gone.revision
),
unlisted AS (
    DELETE FROM variants
     USING gone
     WHERE variants.image_id = gone.image_id AND variants.revision = gone.revision
)
SELECT count(*) FROM gone

-- sweeping.FORGET_UPLOADS
WITH forgotten AS (
    DELETE FROM uploads
     WHERE uploads.id = ANY (ARRAY (
               SELECT unused.id
                 FROM uploads AS unused
                WHERE unused.job_id IS NULL AND unused.expires_at < now() - $1::interval
                ORDER BY unused.expires_at
                LIMIT $2))
       -- Of the row itself, once more: meanwhile somebody may have gone through.
       AND uploads.job_id IS NULL
    RETURNING uploads.id
)
SELECT count(*) FROM forgotten

-- sweeping.JUDGE_OUTPUTS
SELECT found.key, target.target IS NULL AS is_unknown
  FROM unnest($1::text[], $2::timestamptz[], $3::uuid[], $4::bigint[], $5::bigint[])
    AS found (key, modified_at, image_id, revision, claim_no)
  LEFT JOIN LATERAL (
      SELECT images.tenant_id FROM images WHERE images.id = found.image_id LIMIT 1
  ) AS image ON true
  LEFT JOIN LATERAL (
      SELECT targets.tenant_id, targets.target
        FROM targets
       WHERE targets.tenant_id = image.tenant_id AND targets.target = 'image:' || found.image_id
         AND targets.next_seq > found.revision
       LIMIT 1
  ) AS target ON true
 WHERE found.modified_at < now() - $6::interval
   AND (SELECT count(*) FROM variants WHERE variants.key = found.key) = 0
   AND (SELECT count(*)
          FROM image_revisions AS revisions
         WHERE revisions.image_id = found.image_id AND revisions.revision = found.revision
           AND revisions.claim_no = found.claim_no AND revisions.swept_at IS NULL) = 0
   AND (SELECT count(*)
          FROM jobs
         WHERE jobs.tenant_id = target.tenant_id AND jobs.target = target.target
           AND jobs.target_seq = found.revision
           AND jobs.state IN ('queued', 'processing', 'failed_retryable')) = 0

-- sweeping.JUDGE_ORIGINALS
SELECT found.key
  FROM unnest($1::text[], $2::timestamptz[]) AS found (key, modified_at)
 WHERE found.modified_at < now() - $3::interval
   AND (SELECT count(*) FROM image_sources WHERE image_sources.key = found.key) = 0
   AND (SELECT count(*) FROM uploads WHERE uploads.key = found.key) = 0

-- targets.LOCK_TARGETS
SELECT targets.tenant_id, targets.target
  FROM (SELECT DISTINCT jobs.tenant_id, jobs.target
          FROM jobs
         WHERE jobs.id = ANY ($1::uuid[])) AS wanted
  JOIN targets ON targets.tenant_id = wanted.tenant_id AND targets.target = wanted.target
 ORDER BY targets.tenant_id, targets.target
   FOR UPDATE OF targets

-- targets.FREE_TARGETS
UPDATE targets SET running_job = NULL
 WHERE (targets.tenant_id, targets.target) IN (
     SELECT freed.tenant_id, freed.target
       FROM unnest($1::text[], $2::text[]) AS freed (tenant_id, target))
   AND targets.running_job = ANY ($3::uuid[])

-- targets.RING_NEXT
WITH next AS MATERIALIZED (
    SELECT next.id
      FROM unnest($1::text[], $2::text[]) AS freed (tenant_id, target)
      JOIN targets ON targets.tenant_id = freed.tenant_id AND targets.target = freed.target

  CROSS JOIN LATERAL (
      SELECT head.id
        FROM ((SELECT 1 AS turn, jobs.id, jobs.run_at
                 FROM jobs
                WHERE jobs.tenant_id = freed.tenant_id AND jobs.target = freed.target
                  AND jobs.state IN ('queued', 'failed_retryable')
                  AND jobs.cancel_requested_at IS NULL
                  AND jobs.preempts AND jobs.run_at <= now()
                ORDER BY jobs.target_seq
                LIMIT 1)
              UNION ALL
              (SELECT 2, jobs.id, jobs.run_at
                 FROM jobs
                WHERE jobs.tenant_id = freed.tenant_id AND jobs.target = freed.target
                  AND jobs.state IN ('queued', 'failed_retryable')
                  AND jobs.cancel_requested_at IS NULL
                  AND NOT (jobs.state = 'queued' AND jobs.run_at > now())
                ORDER BY jobs.target_seq
                LIMIT 1)
               ORDER BY turn
               LIMIT 1) AS head
       WHERE head.run_at <= now()
  ) AS next

     WHERE targets.running_job IS NULL
),
bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
      JOIN next ON next.id = rings.job_id
     ORDER BY rings.job_id
       FOR UPDATE OF rings
)
UPDATE rings
   SET due_at = now(), rings = 0
  FROM bell
  JOIN jobs ON jobs.id = bell.job_id
 WHERE rings.job_id = bell.job_id
RETURNING rings.job_id, rings.lane, rings.due_at, jobs.tenant_id, jobs.traceparent, jobs.tracestate

-- tombstones.IS_DELETED
SELECT EXISTS (SELECT FROM image_tombstones WHERE image_tombstones.image_id = $1)

-- tombstones.FIND_DELETED
SELECT image_tombstones.image_id
  FROM image_tombstones
 WHERE image_tombstones.image_id = ANY ($1::uuid[])

-- tombstones.OWNS_IMAGE
SELECT EXISTS (SELECT FROM images WHERE images.id = $1 AND images.tenant_id = $2)

-- tombstones.WRITE_TOMBSTONE
INSERT INTO image_tombstones AS tombstone (image_id, tenant_id, job_id, requested_by)
VALUES ($1, $2, $3, $4)
    ON CONFLICT (image_id) DO UPDATE SET job_id = excluded.job_id
     WHERE tombstone.objects_deleted_at IS NULL
       AND NOT EXISTS (SELECT FROM jobs
                        WHERE jobs.id = tombstone.job_id AND jobs.state <> 'failed')
RETURNING image_id

-- tombstones.LIST_VOID
SELECT jobs.id
  FROM jobs
 WHERE jobs.tenant_id = $1 AND jobs.target = $2
   AND jobs.state IN ('queued', 'processing', 'failed_retryable')
   AND NOT jobs.preempts AND jobs.cancel_requested_at IS NULL
 ORDER BY jobs.target_seq
 LIMIT $3

-- tombstones.FIND_DELETING_JOB
SELECT tombstone.job_id, coalesce(jobs.type, 'delete_image') AS type,
       coalesce(jobs.state, 'completed') AS state, coalesce(jobs.lane, 'fast') AS lane,
       coalesce(jobs.created_at, tombstone.requested_at) AS created_at
  FROM image_tombstones AS tombstone
  LEFT JOIN jobs ON jobs.id = tombstone.job_id
 WHERE tombstone.image_id = $1

-- tombstones.GET_DELETION
SELECT tombstone.requested_at, tombstone.requested_by, tombstone.objects_deleted_at,
       tombstone.objects, tombstone.invalidation_id, tombstone.dark_at, tombstone.emptied_again_at
  FROM image_tombstones AS tombstone
 WHERE tombstone.image_id = $1 AND tombstone.tenant_id = $2

-- upkeep.LOOK_AT_WORKERS
SELECT workers.id, workers.beats, clock_timestamp() AS seen_at
  FROM workers
 WHERE workers.dead_at IS NULL
 ORDER BY workers.id

-- upkeep.CONDEMN_WORKER
WITH silent AS MATERIALIZED (
    -- Excludes the claim, which holds this row FOR KEY SHARE, and any beat since the last look.
    SELECT workers.id
      FROM workers
     WHERE workers.id = $1 AND workers.beats = $2 AND workers.dead_at IS NULL
       FOR UPDATE
)
UPDATE workers SET dead_at = now(), dead_why = 'silent'
  FROM silent
 WHERE workers.id = silent.id
RETURNING workers.id

-- upkeep.HELD_BY_WORKER
SELECT jobs.id, jobs.claim_no FROM jobs
 WHERE jobs.locked_by = $1 AND jobs.state = 'processing'

-- upkeep.PRUNE_JOBS
WITH old AS MATERIALIZED (
    SELECT jobs.id
      FROM jobs
     WHERE jobs.state IN ('completed', 'failed')
       AND jobs.finished_at < now() - (SELECT fleet.retention FROM fleet)
       -- Asked of each candidate in turn; as NOT EXISTS it could be a join with all dead letters.
       AND (SELECT count(*) FROM dead_letters
             WHERE dead_letters.job_id = jobs.id AND dead_letters.acknowledged_at IS NULL) = 0
     ORDER BY jobs.finished_at
     LIMIT $1
       FOR UPDATE OF jobs SKIP LOCKED
),
-- By an array: how many ids a join would bring the planner cannot know, and reads whole tables.
pruned AS (
    DELETE FROM jobs WHERE jobs.id = ANY (ARRAY (SELECT old.id FROM old)) RETURNING jobs.id
),
attempts_too AS (
    DELETE FROM attempts WHERE attempts.job_id = ANY (ARRAY (SELECT old.id FROM old))
),
letters_too AS (
    DELETE FROM dead_letters WHERE dead_letters.job_id = ANY (ARRAY (SELECT old.id FROM old))
    RETURNING dead_letters.id
),
sends_too AS (
    DELETE FROM dead_letter_sends
     WHERE dead_letter_sends.dead_letter_id = ANY (ARRAY (SELECT letters_too.id FROM letters_too))
),
aliases_too AS (
    DELETE FROM idempotency_aliases
     WHERE idempotency_aliases.job_id = ANY (ARRAY (SELECT old.id FROM old))
),
counted AS (
    INSERT INTO ledger (pruned) SELECT count(*) FROM pruned HAVING count(*) > 0
)
SELECT count(*) FROM pruned

-- upkeep.PRUNE_WORKERS
DELETE FROM workers WHERE dead_at < now() - interval '7 days'

-- upkeep.FOLD_LEDGER
WITH folded AS (
    DELETE FROM ledger WHERE id IN (SELECT ledger.id FROM ledger ORDER BY ledger.id LIMIT $1)
    RETURNING accepted, pruned
)
INSERT INTO ledger (accepted, pruned)
SELECT sum(folded.accepted), sum(folded.pruned) FROM folded HAVING count(*) > 0

-- upkeep.READ_LEDGER
SELECT (SELECT coalesce(sum(ledger.accepted), 0)::bigint FROM ledger) AS accepted,
       (SELECT coalesce(sum(ledger.pruned), 0)::bigint FROM ledger) AS pruned,
       count(*) FILTER (WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')) AS open,
       count(*) FILTER (WHERE jobs.state = 'completed') AS completed,
       count(*) FILTER (WHERE jobs.state = 'failed') AS failed
  FROM jobs

-- upkeep.SAMPLE_DEPTHS
SELECT jobs.type, jobs.state, jobs.lane, count(*) AS jobs, min(jobs.run_at) AS oldest_due,
       now() - min(jobs.run_at) AS oldest_age
  FROM jobs
 WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')
 GROUP BY jobs.type, jobs.state, jobs.lane

-- upkeep.COUNT_STUCK
SELECT count(*) FROM stuck_jobs

-- uploads.CREATE_UPLOAD
INSERT INTO uploads (id, tenant_id, image_id, key, content_type, max_bytes, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8::interval)
RETURNING id, tenant_id, image_id, key, content_type, max_bytes, expires_at, job_id

-- uploads.GET_UPLOAD
SELECT uploads.id, uploads.tenant_id, uploads.image_id, uploads.key, uploads.content_type,
       uploads.max_bytes, uploads.expires_at, uploads.job_id
  FROM uploads
 WHERE uploads.id = $1 AND uploads.tenant_id = $2

-- uploads.USE_UPLOAD
UPDATE uploads SET job_id = $2, used_at = now()
 WHERE id = $1 AND (job_id IS NULL OR job_id = $2)
RETURNING id

-- walks.LIST_SHOWN
WITH page AS MATERIALIZED (
    SELECT images.id, images.tenant_id, images.revision,
           (SELECT count(*) FROM image_tombstones AS tombstones
             WHERE tombstones.image_id = images.id) = 0 AS is_kept
      FROM images
     WHERE images.id >= $1::uuid
       AND images.id <= coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
     ORDER BY images.id
     LIMIT $3
)

SELECT page.id AS image_id, page.tenant_id,
       ARRAY (SELECT variants.key
                FROM variants
               WHERE variants.image_id = page.id AND variants.revision = page.revision
                 AND page.is_kept) AS keys
  FROM page
 ORDER BY page.id

-- walks.LIST_ORIGINALS
WITH page AS MATERIALIZED (
    SELECT images.id, images.tenant_id, images.revision,
           (SELECT count(*) FROM image_tombstones AS tombstones
             WHERE tombstones.image_id = images.id) = 0 AS is_kept
      FROM images
     WHERE images.id >= $1::uuid
       AND images.id <= coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
     ORDER BY images.id
     LIMIT $3
)

SELECT page.id AS image_id, page.tenant_id,
       ARRAY (SELECT sources.key
                FROM image_sources AS sources
               WHERE sources.image_id = page.id AND page.is_kept
               ORDER BY sources.source_seq DESC
               LIMIT 1) AS keys
  FROM page
 ORDER BY page.id

-- walks.READ_WALK
SELECT periods.period_start, periods.started_at, periods.finished_at, periods.report
  FROM periods
 WHERE periods.name = 'sweep_walk'
 ORDER BY periods.period_start DESC
 LIMIT 1

-- walks.SAVE_WALK
UPDATE periods
   SET report = $2, finished_at = coalesce(finished_at, CASE WHEN $3 THEN now() END)
 WHERE name = 'sweep_walk' AND period_start = $1

-- walks.LIST_SWEEP_RUNS
SELECT periods.period_start, periods.started_at, periods.finished_at, periods.report
  FROM periods
 WHERE periods.name = 'sweep'
   AND (periods.finished_at IS NULL OR (periods.report ->> 'did')::boolean)
 ORDER BY periods.period_start DESC
 LIMIT $1

-- walks.COUNT_SUPERSEDED
SELECT count(*)
  FROM (SELECT FROM image_revisions AS old
         WHERE old.superseded_at IS NOT NULL AND old.swept_at IS NULL
         LIMIT $1) AS waiting

