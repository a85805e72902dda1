"""Taking jobs: one statement, a verdict for every id.

The protocol: a message only names a job, and the claim says who may work on it. One statement for
all received ids locks the target rows, then the job rows, each in order, skipping what anybody else
holds this instant. It drops every row that is no longer what its own snapshot saw (`state` and
`claim_no` of the job, `running_job` and `runs` of the target): such a job is `contended`, its
message comes back in two seconds, and whatever is decided is decided about rows that stand still.

What it promises: a job is claimed by one worker at a time, under a `claim_no` that never comes
again, and every write of its holder names it. Of one target one job runs, and in order: which one
is read from the locked target row alone. A worker that was declared dead claims nothing, since its
own row is locked first. The attempt is charged here, before anything runs, so that a job which
kills its worker is counted too. Every id gets a verdict, and so its message a way to go.

What was tried, with fifty backends and 1,200 targets: NOT EXISTS over the running jobs, a partial
unique index on them, and an advisory lock inside the statement. Each let two jobs of a target run,
ran them out of order, or failed with errors: under READ COMMITTED a statement sees the snapshot of
its beginning, but for the rows that it locks. For the same reason membership is asked of an array
where rows are locked: a subquery would be run again with the row that changed meanwhile.

docs/decisions/0003 has the figures, and 0005 what becomes of a charge when a worker dies.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from asyncpg import Record

from imagefleet.errors import ClaimLost
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.jobs.model import (
    USED,
    CancelCode,
    Claim,
    ClaimAnswer,
    Ended,
    JobId,
    JobState,
    Lane,
    Verdict,
    WorkerId,
)
from imagefleet.store.database import Connection
from imagefleet.store.jobs.verdicts import HOLDS, NEXT_OF_TARGET, UNTIL, VERDICT, WHY

ROOM_FOR_ALL: Final[Mapping[str, int]] = {}
NO_ROOM: Final = "room"

CLAIM_JOBS: Final = f"""
WITH me AS MATERIALIZED (
    -- The rescuer marks a worker dead under FOR UPDATE of this row: a dead id claims nothing.
    SELECT workers.id FROM workers WHERE workers.id = $4 AND workers.dead_at IS NULL FOR KEY SHARE
),
seen AS MATERIALIZED (
    SELECT jobs.id, jobs.state, jobs.claim_no, jobs.tenant_id, jobs.target,
           targets.running_job, targets.runs,
           (SELECT rings.next_at FROM rings WHERE rings.job_id = jobs.id) AS next_at
      FROM jobs
      LEFT JOIN targets ON targets.tenant_id = jobs.tenant_id AND targets.target = jobs.target
     WHERE jobs.id = ANY ($1::uuid[])
       AND jobs.finished_at IS NULL  -- no index of open jobs has that: it goes by the key
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
           {VERDICT} AS first_verdict, {UNTIL} AS until, {WHY} AS why,
           half_open.services AS half_open, half_open.mine AS may_probe
      FROM job
      CROSS JOIN fleet
      LEFT JOIN target ON target.tenant_id = job.tenant_id AND target.target = job.target
      {HOLDS}
      LEFT JOIN LATERAL (
          SELECT array_agg(breakers.service ORDER BY breakers.service) AS services,
                 bool_and(breakers.service IN (SELECT probe.service FROM probe)) AS mine
            FROM circuit_breakers AS breakers
           WHERE breakers.service = ANY (job.services)
             AND breakers.state = 'open' AND NOT breakers.forced AND breakers.retry_at <= now()
      ) AS half_open ON true
),
able AS MATERIALIZED (
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
           END AS second_verdict
      FROM judged
),
chosen AS MATERIALIZED (
    -- Of some types the worker has room for so many more only, $6: the most urgent and oldest.
    -- What is too much is announced again by a dispatcher; where there is none the message stays.
    SELECT able.*,
           CASE WHEN able.second_verdict = 'claimed' AND row_number() OVER (
                    PARTITION BY able.second_verdict, able.type ORDER BY able.priority, able.id
                ) > ($6::integer[])[array_position($3::text[], able.type)]
                THEN CASE WHEN able.state <> 'processing' AND EXISTS (
                              SELECT FROM lanes
                               WHERE lanes.lane = able.lane
                                 AND lanes.looked_at > now() - interval '10 seconds')
                          THEN 'unroutable' ELSE 'busy' END
                ELSE able.second_verdict END AS verdict
      FROM able
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
           -- Of a suspect too: what else its worker held nobody can tell by now.
           failure_code = 'attempts_exhausted', failure_message = $5,
           failure_detail = 'the lock of claim ' || jobs.claim_no || ' expired on the last attempt',
           finished_at = now(), updated_at = now()
      FROM chosen
     WHERE jobs.id = chosen.id AND chosen.verdict = 'exhausted'
),
ended AS (
    -- The claim that we take over, or that was the last one, ends here: its attempts row is ours to
    -- write.
    INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                          queue_time, charged, outcome, why, ended_by)
    SELECT chosen.id, chosen.claim_no, chosen.tenant_id, chosen.type, chosen.lane, chosen.locked_by,
           chosen.claimed_at, now() - chosen.claimed_at,
           greatest(chosen.claimed_at - chosen.run_at, interval '0'),
           chosen.claim_charged,
           CASE chosen.verdict WHEN 'exhausted' THEN 'exhausted' ELSE 'taken_over' END,
           'lock_expired', $4
      FROM chosen
     WHERE chosen.state = 'processing' AND chosen.verdict IN ('claimed', 'cancelled', 'exhausted')
    RETURNING attempts.job_id, attempts.claim_no, attempts.tenant_id, attempts.type, attempts.lane,
              attempts.worker_id, attempts.duration, attempts.queue_time, attempts.outcome,
              attempts.why
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
      {NEXT_OF_TARGET}
     WHERE freed.verdict = 'exhausted'
),
bell AS MATERIALIZED (
    -- Every multi-row write takes its rows in the order of their ids, so that no two can deadlock.
    -- ANY of an array, never IN: when a row changed while we waited for it, Postgres asks the
    -- condition again, and would run the subquery of an IN again with it, locks and all. Said of
    -- each access to rings it also means its key: by statistics of a moment without any rings a
    -- join looks cheapest through all of them.
    SELECT rings.job_id, rings.next_at FROM rings
     WHERE rings.job_id = ANY (ARRAY (
               SELECT chosen.id FROM chosen
                WHERE chosen.verdict IN ('claimed', 'cancelled', 'not_due', 'target_busy', 'paused',
                                         'breaker', 'elsewhere', 'unroutable')
               UNION ALL SELECT successor.id FROM successor))
     ORDER BY rings.job_id
       FOR UPDATE
),
rung AS (
    DELETE FROM rings USING bell, chosen
     WHERE rings.job_id = ANY (ARRAY (SELECT bell.job_id FROM bell))
       AND rings.job_id = bell.job_id AND chosen.id = bell.job_id
       AND chosen.verdict IN ('claimed', 'cancelled')
),
deferred AS (
    -- The message is deleted: from here on none exists. Every deferral changes next_at, so that a
    -- late confirmation of the very send that brought us here finds another row. Who waits behind
    -- a target is parked until that is freed or resumed; all others the dispatcher judges by group.
    UPDATE rings
       SET next_at = CASE WHEN bell.job_id = ANY (ARRAY (SELECT successor.id FROM successor))
                               THEN now()
                          WHEN chosen.verdict = 'elsewhere' THEN now()
                          WHEN chosen.verdict = 'not_due' THEN chosen.run_at
                          WHEN chosen.verdict = 'target_busy'
                               OR (chosen.verdict = 'paused' AND chosen.why LIKE 'target:%')
                               THEN 'infinity'
                          -- Another worker may have room now: it keeps its place in the line.
                          WHEN chosen.second_verdict = 'claimed'
                               THEN least(bell.next_at, now()) + interval '1 microsecond'
                          ELSE now() + interval '1 second' END,
           sent_at = NULL, sends = 0,
           lane = coalesce(chosen.lane, rings.lane)
      FROM bell
      LEFT JOIN chosen ON chosen.id = bell.job_id
      LEFT JOIN seen ON seen.id = bell.job_id
     WHERE rings.job_id = ANY (ARRAY (SELECT bell.job_id FROM bell))
       AND rings.job_id = bell.job_id
       AND chosen.verdict IS DISTINCT FROM 'claimed' AND chosen.verdict IS DISTINCT FROM 'cancelled'
       -- Whoever set it since our snapshot knows more: a resume rang it while we saw the pause.
       AND (bell.next_at = seen.next_at
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
       CASE WHEN chosen.second_verdict = 'claimed' AND chosen.verdict <> 'claimed' THEN 'room'
            ELSE chosen.why END AS why,
       taken.claim_no, taken.tenant_id, taken.type, taken.lane, taken.payload, taken.target,
       taken.target_seq, taken.priority, taken.attempts, taken.max_attempts, taken.crashes,
       taken.progress_cursor AS cursor, taken.progress_done, taken.correlation_id,
       taken.parent_job_id, taken.replay_of, taken.traceparent, taken.tracestate,
       taken.created_at, taken.claimed_at,
       greatest(taken.claimed_at - taken.run_at, interval '0') AS queue_time, taken.cancel_code,
       CASE chosen.verdict WHEN 'claimed' THEN chosen.half_open END AS probes,
       ARRAY (SELECT breakers.service FROM circuit_breakers AS breakers
               WHERE breakers.service = ANY (chosen.services)
                 AND breakers.state = 'closed' AND breakers.judged_from IS NOT NULL
                 AND breakers.window_ends_at > now()) AS watched,
       ended.claim_no AS ended_claim_no, ended.tenant_id AS ended_tenant_id,
       ended.type AS ended_type, ended.lane AS ended_lane, ended.worker_id AS ended_worker_id,
       ended.duration AS ended_duration, ended.queue_time AS ended_queue_time,
       ended.outcome AS ended_outcome, ended.why AS ended_why, chosen.attempts AS ended_attempts,
       chosen.max_attempts AS ended_max_attempts, chosen.correlation_id AS ended_correlation_id,
       chosen.traceparent AS ended_traceparent
  FROM unnest($1::uuid[]) AS asked (id)
  CROSS JOIN fleet
  LEFT JOIN jobs AS known ON known.id = asked.id
  LEFT JOIN chosen ON chosen.id = asked.id
  LEFT JOIN taken ON taken.id = asked.id
  LEFT JOIN ended ON ended.job_id = asked.id
"""  # noqa: S608 - composed at import from the constants of verdicts.py, never from values

# Excludes the claim, which holds this row FOR KEY SHARE; the next statement sees what it took.
LOCK_WORKER: Final = """
SELECT workers.id FROM workers WHERE workers.id = $1 FOR UPDATE
"""


async def claim_jobs(
    connection: Connection,
    job_ids: Sequence[JobId],
    *,
    worker_id: WorkerId,
    lanes: Sequence[Lane],
    types: Sequence[str],
    rooms: Mapping[str, int] = ROOM_FOR_ALL,
) -> list[ClaimAnswer]:
    """One verdict for every id, in their order; raises ClaimLost if this worker was declared dead.

    The same id twice in one receive is one claim; its other messages are `busy`. Of the types in
    `rooms` no more than so many are claimed; what is beyond it says why, NO_ROOM.
    """
    distinct = list(dict.fromkeys(job_ids))
    rows = await connection.fetch(
        CLAIM_JOBS,
        distinct,
        list(lanes),
        list(types),
        worker_id,
        failure_sentence("attempts_exhausted"),
        [rooms.get(name) for name in types],
    )
    if rows and not rows[0]["alive"]:
        raise ClaimLost.of_worker(worker_id)
    answers = {row["job_id"]: _answer(row) for row in rows}
    return [_once(answers, job_id, job_ids[:index]) for index, job_id in enumerate(job_ids)]


def _once(answers: dict[JobId, ClaimAnswer], job_id: JobId, before: Sequence[JobId]) -> ClaimAnswer:
    answer = answers[job_id]
    if answer.claim is not None and job_id in before:
        why = "received twice at once"
        return ClaimAnswer(job_id=job_id, verdict=Verdict.BUSY, wait=answer.wait, why=why)
    return replace(answer, ended=None) if job_id in before else answer


def _answer(row: Record) -> ClaimAnswer:
    return ClaimAnswer(
        job_id=JobId(row["job_id"]),
        verdict=Verdict(row["verdict"]),
        claim=None if row["claim_no"] is None else _claim(row),
        until=row["until"],
        wait=row["wait"],
        why=row["why"],
        ended=None if row["ended_claim_no"] is None else _ended(row),
    )


def _ended(row: Record) -> Ended:
    exhausted = row["ended_outcome"] == "exhausted"
    columns = {name: row[f"ended_{name}"] for name in _ENDED}
    return Ended(
        **columns | {"lane": Lane(columns["lane"])},
        job_id=JobId(row["job_id"]),
        state=JobState.FAILED if exhausted else JobState.PROCESSING,
    )


_ENDED: Final = tuple(Ended.__dataclass_fields__.keys() - {"job_id", "state", "age", *USED})
_CLAIM: Final = tuple(Claim.__dataclass_fields__)  # the columns of the answer have their names


def _claim(row: Record) -> Claim:
    code = row["cancel_code"]
    fields = {name: row[name] for name in _CLAIM} | {
        "lane": Lane(row["lane"]),
        "cancel_code": None if code is None else CancelCode(code),
        "probes": tuple(row["probes"] or ()),
        "watched": tuple(row["watched"]),
    }
    return Claim(**fields)


COUNT_OVER: Final = """
SELECT count(*) FROM jobs WHERE jobs.id = ANY ($1::uuid[]) AND jobs.state IN ('completed', 'failed')
"""


async def count_over(connection: Connection, job_ids: Collection[JobId]) -> int:
    """How many of these jobs have ended, and are never claimed again."""
    over: int = await connection.fetchval(COUNT_OVER, list(job_ids))
    return over
