"""Cancelling many jobs, of one tenant or of each: flags and the cursor behind them, page by page.

Whoever claims or holds a flagged job ends it. Flagging rings nothing: the dispatcher announces what
is flagged before all else of its tenant, whatever holds it, and in turn with the other tenants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from imagefleet.errors import NotFound
from imagefleet.jobs.bulk import CancelWalk, type_walked
from imagefleet.jobs.kinds import CancelJobs
from imagefleet.jobs.lifecycle import ResultReason
from imagefleet.jobs.model import CancelCode, Claim, JobId, Ring, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.jobs.leases import Renewal, report_progress
from imagefleet.store.jobs.reports import newest_first
from imagefleet.store.jobs.rings import RING_URGENTLY, URGENT, ring_of
from imagefleet.store.jobs.targets import begin_walk_of_target, find_last

PAGE: Final = 200  # jobs; they stay locked for some ten milliseconds
MOST_WALKED: Final = 1_000_000  # jobs; a longer walk has no total
MOST_CHOSEN: Final = 10_000  # jobs of a state that are looked at to say how many are chosen

IS_CANCELLABLE: Final = """
SELECT EXISTS (SELECT FROM jobs
                WHERE jobs.id = $1 AND jobs.type <> 'cancel_job'
                  AND jobs.cancel_requested_at IS NULL
                  AND jobs.state IN ('queued', 'processing', 'failed_retryable'))
"""


async def is_cancellable(connection: Connection, job_id: JobId) -> bool:
    """Whether a job is open, nobody has cancelled it yet, and it is not itself a cancellation.

    Each of those could be cancelled by another one, without end.
    """
    return bool(await connection.fetchval(IS_CANCELLABLE, job_id))


FLAG_CANCEL: Final = """
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
"""


# A statement of its own: it sees the rings that came while the flags waited for their jobs.
RING_FLAGGED: Final = f"""
WITH bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
     WHERE rings.job_id = ANY ($1::uuid[])
     ORDER BY rings.job_id
       FOR UPDATE
)
{RING_URGENTLY}
"""  # noqa: S608 - composed at import from the constants of rings.py


async def cancel_job(
    connection: Connection,
    job_id: JobId,
    *,
    code: CancelCode,
    detail: str | None,
    tenant_id: TenantId | None = None,
) -> tuple[ResultReason, tuple[Ring, ...]]:
    """Flag a job for good and ring it: whoever claims or holds it ends it as `code`.

    Answers `requested` or `already_finished`, and the doorbell to ring now.
    """
    async with connection.transaction():
        row = await connection.fetchrow(FLAG_CANCEL, job_id, tenant_id, code, detail)
        if row is None:
            raise NotFound("job")
        if row["state"] in {"completed", "failed"}:
            return ResultReason.ALREADY_FINISHED, ()
        rings = await connection.fetch(RING_FLAGGED, [job_id])
    return ResultReason.REQUESTED, tuple(ring_of(row) for row in rings)


def _newest_open(more: str = "") -> str:
    """State by state, as their index has them: what has ended is never read."""
    page = newest_first("jobs")
    pages = " UNION ALL ".join(
        f"""
       (SELECT jobs.id FROM jobs
         WHERE jobs.tenant_id = $1 AND jobs.state = '{state}' {more} {page})"""  # noqa: S608 - of the words below
        for state in ("queued", "processing", "failed_retryable")
    )
    return f"SELECT page.id FROM ({pages}) AS page ORDER BY page.id DESC LIMIT $3"  # noqa: S608


FIND_OPEN: Final = _newest_open()
FIND_OPEN_OF_TYPE: Final = _newest_open("AND jobs.type = $4")

_ASKED: Final = (
    ("lane", "lane"),
    ("type", "job_type"),
    ("state", "status"),
    ("correlation_id", "correlation_id"),
    ("parent_job_id", "parent_job_id"),
    ("target", "target"),
    ("failure_code", "code"),
    ("created_at", "submitted_after"),
)
"""What a walk may ask of a job: the column, and the field that it is compared with."""


def _is_wanted(job: str, first: int) -> str:
    """Whether this row is what a walk asks for, whose values are in that order from there on."""
    place = {column: f"${number}" for number, (column, _) in enumerate(_ASKED, start=first)}
    code, after = place.pop("failure_code"), place.pop("created_at")
    conditions = []
    for column, at in place.items():
        kind = "uuid" if column == "parent_job_id" else "text"
        conditions.append(f"({at}::{kind} IS NULL OR {job}.{column} = {at})")
    retried = f"({job}.failure_code = {code} AND {job}.state = 'failed_retryable')"
    conditions.append(f"({code}::text IS NULL OR {retried})")
    conditions.append(f"({after}::timestamptz IS NULL OR {job}.created_at > {after})")
    return " AND ".join(conditions)


def _asked(wanted: CancelJobs) -> list[object]:
    return [getattr(wanted, field) for _, field in _ASKED]


# The walk's own row is locked in its place among them, as its cursor is written at the end.
FLAG_PAGE: Final = f"""
WITH victim AS MATERIALIZED (
    SELECT jobs.id, jobs.state, jobs.lane, jobs.type, jobs.preempts, jobs.created_at,
           jobs.cancel_requested_at, jobs.correlation_id, jobs.parent_job_id, jobs.target,
           jobs.failure_code
      FROM jobs
     WHERE jobs.id = ANY ($1::uuid[])
     ORDER BY jobs.id
       FOR UPDATE
)
UPDATE jobs
   SET cancel_requested_at = now(), cancel_code = $4, cancel_detail = $2,
       updated_at = now()
  FROM victim
 WHERE jobs.id = victim.id
   AND victim.state IN ('queued', 'processing', 'failed_retryable')
   AND victim.cancel_requested_at IS NULL AND NOT victim.preempts
   AND victim.created_at < $3 AND victim.id <> $5
   AND {_is_wanted("victim", 6)}
RETURNING jobs.id
"""  # noqa: S608 - composed at import


@dataclass(frozen=True, slots=True, kw_only=True)
class FlaggedPage:
    """What one step of a walk did."""

    walk: CancelWalk
    over: bool
    cancelled: bool
    """Somebody asked the walk itself to stop: nothing of the page was flagged."""


class _Cancelled(Exception):
    """On its way out of a transaction that must leave no trace."""


async def flag_page(
    connection: Connection, claim: Claim, renewal: Renewal, wanted: CancelJobs, walk: CancelWalk
) -> FlaggedPage:
    """Flag the next page and move the cursor behind it, both or neither.

    Raises ClaimLost if the claim does not stand any more; then the page belongs to another.
    """
    try:
        async with connection.transaction():
            return await _flag_in_transaction(connection, claim, renewal, wanted, walk)
    except _Cancelled:
        return FlaggedPage(walk=walk, over=False, cancelled=True)


async def _flag_in_transaction(
    connection: Connection, claim: Claim, renewal: Renewal, wanted: CancelJobs, walk: CancelWalk
) -> FlaggedPage:
    tenant_id = TenantId(walk.tenant or claim.tenant_id)
    page, place = await _next_jobs(connection, tenant_id, wanted, walk)
    flagged = await connection.fetch(
        FLAG_PAGE,
        [*page, claim.job_id],
        wanted.reason or None,
        walk.until,
        CancelCode.CANCELLED,
        claim.job_id,
        *_asked(wanted),
    )
    if flagged:
        await connection.execute(RING_FLAGGED, [row["id"] for row in flagged])
    seen = walk.seen if walk.again else walk.seen + len(page)
    walked = walk.behind(page, seen, flagged=walk.flagged + len(flagged), place=place)
    if await report_progress(
        connection, renewal, done=walked.seen, total=walked.total, cursor=walked.cursor
    ):
        raise _Cancelled
    over = len(page) < PAGE or (walk.oldest is not None and page[-1] < walk.oldest)
    return FlaggedPage(walk=walked, over=over, cancelled=False)


async def _next_jobs(
    connection: Connection, tenant_id: TenantId, wanted: CancelJobs, walk: CancelWalk
) -> tuple[Sequence[JobId], int | None]:
    """The jobs of a page, and of a target the place of the last of them."""
    if wanted.target is not None:
        return await find_last(connection, tenant_id, wanted.target, walk.place or 0, PAGE)
    job_type = type_walked(wanted, walk)
    if job_type is None:
        rows = await connection.fetch(FIND_OPEN, tenant_id, walk.before, PAGE)
    else:
        rows = await connection.fetch(FIND_OPEN_OF_TYPE, tenant_id, walk.before, PAGE, job_type)
    return [JobId(row["id"]) for row in rows], None


RING_FIRST: Final = f"""
UPDATE rings SET priority = {URGENT} WHERE rings.job_id = $1
"""  # noqa: S608 - composed at import from the constant of rings.py


async def ring_first(connection: Connection, job_id: JobId) -> None:
    """Let a walk stand behind none of the jobs that it is to cancel, whatever their priority."""
    await connection.execute(RING_FIRST, job_id)


_OPEN: Final = """
SELECT count(*)
  FROM (SELECT FROM jobs
         WHERE jobs.tenant_id = $1
           AND jobs.state IN ('queued', 'processing', 'failed_retryable')
"""

COUNT_WALK: Final = f"{_OPEN} LIMIT $2) AS counted"
COUNT_WALK_OF_TYPE: Final = f"{_OPEN} AND jobs.type = $3 LIMIT $2) AS counted"


async def count_walk(
    connection: Connection, tenant_id: TenantId, job_type: str | None
) -> int | None:
    """How many jobs a walk looks at; None if they are more than are counted."""
    if job_type is None:
        counted = await connection.fetchval(COUNT_WALK, tenant_id, MOST_WALKED + 1)
    else:
        most = MOST_WALKED + 1
        counted = await connection.fetchval(COUNT_WALK_OF_TYPE, tenant_id, most, job_type)
    return int(counted) if counted <= MOST_WALKED else None


# The limit keeps it to a look at the index for each tenant, however much one of them has open.
FIND_NEXT_OWNER: Final = """
SELECT tenants.id
  FROM tenants
  CROSS JOIN LATERAL (
      SELECT FROM jobs
       WHERE jobs.tenant_id = tenants.id
         AND jobs.state IN ('queued', 'processing', 'failed_retryable')
       LIMIT 1
  ) AS open
 WHERE tenants.id > $1
 ORDER BY tenants.id
 LIMIT 1
"""

# Until when a job must have been submitted to be in a walk that begins now.
BEGIN_WALK: Final = "SELECT least($1::timestamptz, now()) AS until"


async def begin_walk(
    connection: Connection, own: TenantId, wanted: CancelJobs, behind: CancelWalk | None
) -> CancelWalk | None:
    """The part of a walk behind this one, at the newest job; None: there are no more tenants.

    Of jobs that submit others there are few, and nobody counts them.
    """
    others_follow = behind is not None and behind.parents
    whose = None if behind is None else behind.tenant
    if wanted.every_tenant and not others_follow:
        whose = await connection.fetchval(FIND_NEXT_OWNER, whose or "")
        if whose is None:
            return None
    tenant_id = TenantId(whose or own)
    if wanted.target is not None:
        walk = await begin_walk_of_target(connection, tenant_id, wanted)
    else:
        until = await connection.fetchval(BEGIN_WALK, wanted.submitted_before)
        walk = CancelWalk(until=until, parents=wanted.job_type is None and not others_follow)
        if not walk.parents and not wanted.every_tenant:
            total = await count_walk(connection, tenant_id, wanted.job_type)
            walk = walk.model_copy(update={"total": total})
    if behind is None:
        return walk.model_copy(update={"tenant": whose})
    seen = behind.seen if wanted.every_tenant else 0
    return walk.model_copy(update={"tenant": whose, "flagged": behind.flagged, "seen": seen})


def _chosen(owners: str, more: str = "") -> str:
    """In the order of the index, of each owner: what has ended is never read."""
    return f"""
SELECT count(*) FILTER (WHERE NOT open.preempts AND open.cancel_requested_at IS NULL
                          AND open.created_at < coalesce($3::timestamptz, now())
                          AND {_is_wanted("open", 4)}) AS jobs,
       coalesce(max(open.place) < $2, true) AS complete
  FROM unnest(ARRAY ['queued', 'processing', 'failed_retryable']) AS states (state)
  CROSS JOIN LATERAL (
      SELECT jobs.*, row_number() OVER () AS place
        FROM ({owners}) AS owners (id)
        CROSS JOIN LATERAL (
            SELECT jobs.state, jobs.preempts, jobs.cancel_requested_at, jobs.lane, jobs.type,
                   jobs.created_at, jobs.correlation_id, jobs.parent_job_id, jobs.target,
                   jobs.failure_code
              FROM jobs
             WHERE jobs.tenant_id = owners.id AND jobs.state = states.state {more}
             ORDER BY jobs.id DESC NULLS LAST
             LIMIT $2
        ) AS jobs
       LIMIT $2
  ) AS open
"""  # noqa: S608 - composed at import


_ONE: Final = "SELECT $1::text"
_EACH: Final = "SELECT tenants.id FROM tenants WHERE $1::text IS NULL"
_OF_TYPE: Final = "AND jobs.type = $5"

COUNT_CHOSEN: Final = _chosen(_ONE)
COUNT_CHOSEN_OF_TYPE: Final = _chosen(_ONE, _OF_TYPE)
COUNT_CHOSEN_OF_EACH: Final = _chosen(_EACH)
COUNT_CHOSEN_OF_EACH_OF_TYPE: Final = _chosen(_EACH, _OF_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a walk would flag if it began now."""

    jobs: int
    complete: bool
    """False: there are more open jobs than were looked at."""


async def count_chosen(
    connection: Connection, tenant_id: TenantId | None, wanted: CancelJobs
) -> Chosen:
    """How many open jobs a walk would flag, of the newest of each state; None: of every tenant."""
    if tenant_id is None:
        statements = COUNT_CHOSEN_OF_EACH, COUNT_CHOSEN_OF_EACH_OF_TYPE
    else:
        statements = COUNT_CHOSEN, COUNT_CHOSEN_OF_TYPE
    bounds = (tenant_id, MOST_CHOSEN, wanted.submitted_before)
    (row,) = await connection.fetch(
        statements[wanted.job_type is not None], *bounds, *_asked(wanted)
    )
    return Chosen(**dict(row))
