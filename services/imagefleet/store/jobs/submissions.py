"""Accepting jobs: the row and its ring in one transaction, the same answer for the same request.

The idempotency key is a column of the job, unique per tenant. Submit inserts first. What the insert
skipped already stands for the request (same key, same dedup key, a replay of the same failure); a
second statement asks for it: its fresh snapshot sees what the insert waited for.

A request that is answered with a job of another key leaves its own as an alias, which the insert
respects as it does keys. That no alias is written beside a job of the same key, or the reverse, is
what the locks on keys are for. The insert takes them itself, by a function that looks for an alias
once it has the lock (`take_key`, migration 0019): its own snapshot may be older than the wait.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Final, TypeAlias

from asyncpg import Record

from imagefleet.errors import IdempotencyConflict, LimitReached, RequestRejected, Unavailable
from imagefleet.jobs.model import JobId, JobState, Lane, Submission, Submitted
from imagefleet.store.database import Connection
from imagefleet.store.jobs.verdicts import pauses_target, pauses_tenant

TRIES: Final = 5  # the job that stood in the way may end between the insert and the second look

MOST_KEYS: Final = 100  # of other requests that one job answers, each remembered beside it
Answer: TypeAlias = Submitted | IdempotencyConflict | LimitReached

_FORGOTTEN: Final = "What this repeats was just forgotten; try again."
_TOO_MANY_KEYS: Final = "This job answers as many requests with keys of their own as it may."


async def submit_job(connection: Connection, submission: Submission) -> Submitted:
    """Accept one job, or find the one that already stands for this request."""
    (answer,) = await submit_jobs(connection, [submission])
    if isinstance(answer, RequestRejected):
        raise answer
    return answer


async def find_standing(connection: Connection, asking: Submission) -> Submitted:
    """The job that stands for this request's key; nothing is written, whatever is found.

    Unavailable if there is none any more.
    """
    (answer,) = await find_standing_jobs(connection, [asking])
    if not isinstance(answer, Submitted):
        raise answer
    return answer


async def find_living(connection: Connection, asking: Submission) -> Submitted:
    """The same of a request with a dedup key, whose own key is remembered beside what it finds.

    By the way of an insert, which meets what stands under its locks, and of which nothing stays.
    """
    if asking.dedup_key is None or asking.idempotency_key is None:
        return await find_standing(connection, asking)
    async with connection.transaction():
        answer = await insert_submission(connection, replace(asking, target=None))
        if answer.created:  # what stood has ended meanwhile
            raise Unavailable("database_conflict", _FORGOTTEN)
        return answer


async def find_standing_jobs(
    connection: Connection, asked: Sequence[Submission]
) -> list[Answer | Unavailable]:
    """The same of many, each by itself."""
    answers = {row["id"]: _answer(row) for row in await _look_for_standing(connection, asked)}
    forgotten = Unavailable("database_conflict", _FORGOTTEN)
    return [answers.get(request.job_id, forgotten) for request in asked]


async def submit_together(
    connection: Connection, submissions: Sequence[Submission]
) -> list[Submitted | Exception | None]:
    """Accept jobs without targets and dedup keys that have nothing to do with each other.

    What is wrong with one is its own: they are written one by one where the database refuses any.
    None has to be submitted by itself: its key was used before, or is being used, and who waits for
    that is not to be waited for; or nothing was written, as something was in the way of all.
    """
    try:
        taken = await _insert(connection, submissions, waits=False)
    except Unavailable as error:
        if error.code != "database_conflict":
            raise
        return [None] * len(submissions)
    except Exception as error:  # noqa: BLE001 - whoever asked for it raises it
        if len(submissions) == 1:
            return [error]
        return await _submit_each(connection, submissions)
    return [taken.get(job.job_id) for job in submissions]


async def _submit_each(
    connection: Connection, submissions: Sequence[Submission]
) -> list[Submitted | Exception | None]:
    """One by one; what was written before Postgres went away is told, and nobody waits for it."""
    answers: list[Submitted | Exception | None] = []
    for job in submissions:
        try:
            answers += await submit_together(connection, [job])
        except Unavailable as error:
            return answers + [error] * (len(submissions) - len(answers))
    return answers


async def submit_jobs(connection: Connection, submissions: Sequence[Submission]) -> list[Answer]:
    """Accept many jobs in one transaction; one answer for each, in order."""
    for _ in range(TRIES):
        try:
            async with connection.transaction():
                return await insert_submissions(connection, submissions)
        except Unavailable as error:
            # Two batches that met the same keys in another order: nothing was written, go again.
            if error.code != "database_conflict" or connection.is_in_transaction():
                raise
    raise Unavailable("database_conflict", "The database is busy; try again.")


async def insert_submissions(
    connection: Connection, submissions: Sequence[Submission]
) -> list[Answer]:
    """The same inside a transaction of the caller, with its other writes."""
    answers: dict[JobId, Answer] = {}
    waiting = list(submissions)
    for _ in range(TRIES):
        for answer in (_insert, _find_standing):
            answers |= await answer(connection, waiting)
            waiting = [job for job in waiting if job.job_id not in answers]
            if not waiting:
                return [answers[job.job_id] for job in submissions]
    raise Unavailable("database_conflict", "The database is busy; try again.")


async def insert_submission(connection: Connection, submission: Submission) -> Submitted:
    """The same of one."""
    (answer,) = await insert_submissions(connection, [submission])
    if isinstance(answer, RequestRejected):
        raise answer
    return answer


def _number(row: str) -> str:
    """Of the lock on the key of this row; earlier releases count the same."""
    return f"hashtextextended({row}.tenant_id || '/' || {row}.idempotency_key, 0)"


TAKE_PLACES: Final = f"""
WITH locked AS MATERIALIZED (
    SELECT count(CASE WHEN keys.alone THEN pg_advisory_xact_lock(keys.number)
                      ELSE pg_advisory_xact_lock_shared(keys.number) END) AS keys
      FROM (SELECT {_number("keyed")} AS number, keyed.alone
              FROM unnest($1::text[], $2::text[], $3::boolean[])
                   AS keyed (tenant_id, idempotency_key, alone)
             ORDER BY number, keyed.alone DESC) AS keys
)
INSERT INTO targets (tenant_id, target, next_seq)
SELECT wanted.tenant_id, wanted.target, 1 + wanted.jobs
  FROM locked
  CROSS JOIN unnest($4::text[], $5::text[], $6::bigint[]) AS wanted (tenant_id, target, jobs)
 ORDER BY wanted.tenant_id, wanted.target
    ON CONFLICT (tenant_id, target)
    DO UPDATE SET next_seq = targets.next_seq + excluded.next_seq - 1
RETURNING tenant_id, target, next_seq
"""  # noqa: S608 - composed at import


async def _take_places(
    connection: Connection, submissions: Sequence[Submission]
) -> dict[tuple[str, str], Iterator[int]]:
    """Lock the targets, after the keys; the numbers of each target that are ours to give."""
    counts = Counter((job.tenant_id, job.target) for job in submissions if job.target is not None)
    if not counts:
        return {}
    rows = await connection.fetch(
        TAKE_PLACES,
        [job.tenant_id for job in submissions],
        [job.idempotency_key for job in submissions],
        [job.dedup_key is not None or job.replay_of is not None for job in submissions],
        [tenant for tenant, _ in counts],
        [target for _, target in counts],
        list(counts.values()),
    )
    taken = {(row["tenant_id"], row["target"]): row["next_seq"] for row in rows}
    return {place: count(taken[place] - jobs) for place, jobs in counts.items()}


# One job, and what is written with it, in one statement: `ACCEPTING`, more of it, `ANSWERING`.
ACCEPTING: Final = f"""
WITH asked AS MATERIALIZED (
    -- Every writer takes keys in the order of their numbers, and before anything else. A request
    -- that may be answered with a job of another key decides alone what becomes of its own: with
    -- two keys it meets two unique indexes, and only a lock makes both decisions one.
    SELECT asked.*, {_number("asked")} AS number,
           coalesce(asked.dedup_key, asked.replay_of::text) IS NOT NULL AS alone
      FROM jsonb_to_recordset($1::jsonb) AS asked (
          id uuid, tenant_id text, type text, lane text, priority integer, run_at timestamptz,
          target text, target_seq bigint, preempts boolean, services text[],
          pause_target_on_failure boolean, max_attempts integer, payload jsonb,
          idempotency_key text, fingerprint text, dedup_key text, correlation_id text,
          parent_job_id uuid, created_by text, replay_of uuid, generation integer,
          replay_reason text, traceparent text, tracestate text)
     ORDER BY number, alone DESC
),
new AS MATERIALIZED (
    SELECT *
      FROM asked
     WHERE asked.idempotency_key IS NULL
        OR take_key(asked.number, asked.tenant_id, asked.idempotency_key, asked.alone, $2)
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
     -- First what no lock has decided; idempotency keys are locked, whatever else a row bears.
     ORDER BY new.tenant_id, new.dedup_key, new.replay_of, new.idempotency_key, new.id
        ON CONFLICT DO NOTHING
    RETURNING id, tenant_id, type, state, lane, priority, run_at, target, target_seq, preempts,
              created_at
),
placed AS (
    -- Behind whom does it wait? Its target is locked by us: whoever ends the job in front of it
    -- comes after our commit, and rings the next one. A hundred elders are looked at; should none
    -- of these stand in its way, a claim will tell. (Asked of each in turn: an EXISTS could become
    -- a hash of every target there is.)
    SELECT accepted.*,
           accepted.target IS NOT NULL AND NOT accepted.preempts AND accepted.run_at <= now()
           AND (count(*) FILTER (WHERE accepted.run_at <= now())
                    OVER (PARTITION BY accepted.tenant_id, accepted.target
                          ORDER BY accepted.target_seq
                          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > 0
                OR (SELECT targets.running_job
                      FROM targets
                     WHERE targets.tenant_id = accepted.tenant_id
                       AND targets.target = accepted.target) IS NOT NULL
                OR (SELECT pauses.scope
                      FROM pauses
                     WHERE {pauses_target("accepted")}) IS NOT NULL
                OR EXISTS (
                    SELECT FROM (
                        SELECT jobs.state, jobs.run_at, jobs.cancel_requested_at
                          FROM jobs
                         WHERE jobs.tenant_id = accepted.tenant_id
                           AND jobs.target = accepted.target
                           AND jobs.target_seq < accepted.target_seq
                           AND jobs.state IN ('queued', 'processing', 'failed_retryable')
                         ORDER BY jobs.target_seq
                         LIMIT 100) AS elders
                     WHERE elders.state = 'processing'
                        OR (elders.cancel_requested_at IS NULL
                            AND NOT (elders.state = 'queued' AND elders.run_at > now())))
           ) AS parked
      FROM accepted
),
bell AS (
    -- Where the lane has room the submitter rings by itself right after commit; this is for when
    -- it does not live to do so.
    INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at)
    SELECT placed.id, placed.lane, placed.tenant_id, placed.type, placed.priority,
           CASE WHEN placed.parked THEN 'infinity'
                WHEN (SELECT lanes.room
                        FROM lanes
                       WHERE lanes.lane = placed.lane
                         AND lanes.looked_at > now() - interval '1 second') > 0
                    THEN greatest(placed.run_at, now() + interval '500 milliseconds')
                ELSE greatest(placed.run_at, now()) END
      FROM placed
    RETURNING job_id, next_at
)"""  # noqa: S608 - composed at import from the rule in verdicts.py

ANSWERING: Final = f"""
SELECT placed.id, placed.id AS job_id, placed.type, placed.state, placed.lane,
       placed.target, placed.created_at,
       -- Who submits for a tenant that is paused does not ring: it would use up the others' room.
       CASE WHEN placed.run_at <= now() AND NOT placed.parked
                 AND (placed.preempts
                      OR (SELECT pauses.scope
                            FROM pauses
                           WHERE {pauses_tenant("placed")}
                           LIMIT 1) IS NULL)
            THEN bell.next_at END AS next_at
  FROM placed
  JOIN bell ON bell.job_id = placed.id
"""  # noqa: S608 - composed at import from the rule in verdicts.py

INSERT_JOBS: Final = f"{ACCEPTING}{ANSWERING}"


async def _insert(
    connection: Connection, submissions: Sequence[Submission], *, waits: bool = True
) -> dict[JobId, Answer]:
    """Those that no other stands for; who is taking a key is waited for, or stands as well."""
    if not submissions:
        return {}
    places = await _take_places(connection, submissions)
    documents = [
        document_of(job, None if job.target is None else next(places[job.tenant_id, job.target]))
        for job in submissions
    ]
    rows = await connection.fetch(INSERT_JOBS, documents, waits)
    return {row["id"]: submitted_of(row, created=True) for row in rows}


def document_of(job: Submission, target_seq: int | None) -> dict[str, object]:
    """What ACCEPTING takes a list of."""
    known = {"id": job.job_id, "target_seq": target_seq}
    return {name: getattr(job, name) for name in _COLUMNS} | known


_COLUMNS: Final = tuple(
    name for name in Submission.__dataclass_fields__ if name != "job_id"
)  # the fields of a submission are the columns of the same names

FIND_STANDING: Final = """
SELECT wanted.id, jobs.id AS job_id, jobs.type, jobs.state, jobs.lane, jobs.target,
       jobs.created_at, NULL::timestamptz AS next_at,
       standing.how IN ('key', 'alias') AND standing.fingerprint <> wanted.fingerprint AS differs,
       standing.how IN ('replay', 'dedup') AND wanted.idempotency_key IS NOT NULL AS is_strange,
       wanted.idempotency_key
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
"""

# Roughly as many as a job may answer: others count at the same moment.
REMEMBER_ALIASES: Final = """
INSERT INTO idempotency_aliases (tenant_id, idempotency_key, fingerprint, job_id)
SELECT other.tenant_id, other.idempotency_key, other.fingerprint, other.job_id
  FROM (SELECT others.*, row_number() OVER (PARTITION BY others.job_id) AS place
          FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[])
               AS others (tenant_id, idempotency_key, fingerprint, job_id)) AS other
 WHERE other.place + (SELECT count(*) FROM idempotency_aliases AS aliases
                       WHERE aliases.job_id = other.job_id) <= $5
    ON CONFLICT DO NOTHING
"""


async def _find_standing(
    connection: Connection, submissions: Sequence[Submission]
) -> dict[JobId, Answer]:
    """The jobs that already stand for these requests, where there are any."""
    wanted = {job.job_id: job for job in submissions}
    rows = await _look_for_standing(connection, submissions)
    if strange := [(wanted[row["id"]], row["job_id"]) for row in rows if row["is_strange"]]:
        await connection.execute(
            REMEMBER_ALIASES,
            [job.tenant_id for job, _ in strange],
            [job.idempotency_key for job, _ in strange],
            [job.fingerprint for job, _ in strange],
            [job_id for _, job_id in strange],
            MOST_KEYS,
        )
        # Answered by what is remembered: one batch may ask two things under one key.
        rows += await _look_for_standing(connection, [job for job, _ in strange])
    too_many = LimitReached("job_keys", _TOO_MANY_KEYS)
    return {row["id"]: too_many if row["is_strange"] else _answer(row) for row in rows}


def _answer(row: Record) -> Submitted | IdempotencyConflict:
    if row["differs"]:
        return IdempotencyConflict(row["idempotency_key"])
    return submitted_of(row, created=False)


async def _look_for_standing(connection: Connection, asked: Sequence[Submission]) -> list[Record]:
    return await connection.fetch(
        FIND_STANDING,
        [request.job_id for request in asked],
        [request.tenant_id for request in asked],
        [request.type for request in asked],
        [request.idempotency_key for request in asked],
        [request.fingerprint for request in asked],
        [request.dedup_key for request in asked],
        [request.replay_of for request in asked],
    )


def submitted_of(row: Record, *, created: bool) -> Submitted:
    """The answer that these columns are."""
    columns = {name: row[name] for name in _ANSWER}
    columns |= {"state": JobState(row["state"]), "lane": Lane(row["lane"])}
    return Submitted(**columns, created=created)


_ANSWER: Final = tuple(Submitted.__dataclass_fields__.keys() - {"created"})
