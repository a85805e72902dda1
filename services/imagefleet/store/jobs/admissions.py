"""What is asked before a job is accepted: whether it was before, or is refused, and for room."""

from collections.abc import Collection, Sequence
from typing import Final, TypeAlias

from imagefleet.jobs.kinds import Draft
from imagefleet.jobs.model import JobId, Lane, Submission, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.jobs.verdicts import pauses_job

# No EXISTS, since the planner would rather read the whole of a table than look into it a hundred
# times.
_KEY_STANDS: Final = """(SELECT true FROM jobs
         WHERE jobs.tenant_id = asked.tenant_id AND jobs.idempotency_key = asked.idempotency_key)
       OR (SELECT true FROM idempotency_aliases
            WHERE idempotency_aliases.tenant_id = asked.tenant_id
              AND idempotency_aliases.idempotency_key = asked.idempotency_key)"""

_STANDS: Final = f"""{_KEY_STANDS}
       OR (SELECT true FROM jobs
            WHERE jobs.tenant_id = asked.tenant_id AND jobs.type = asked.type
              AND jobs.dedup_key = asked.dedup_key
              AND jobs.state IN ('queued', 'processing', 'failed_retryable'))"""  # noqa: S608 - of the rule above

LIST_STANDING: Final = f"""
SELECT asked.place
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
       WITH ORDINALITY AS asked (tenant_id, idempotency_key, type, dedup_key, place)
 WHERE {_STANDS}
"""  # noqa: S608 - composed at import from the rule above


async def list_standing(connection: Connection, asked: Sequence[Submission | Draft]) -> set[int]:
    """The places, from 0, of those requests that a job stands for already, which would add none."""
    rows = await connection.fetch(
        LIST_STANDING,
        [request.tenant_id for request in asked],
        [request.idempotency_key for request in asked],
        [request.type for request in asked],
        [request.dedup_key for request in asked],
    )
    return {row["place"] - 1 for row in rows}


async def is_standing(connection: Connection, asked: Submission | Draft) -> bool:
    """Whether a job stands for this request already."""
    return bool(await list_standing(connection, [asked]))


LIST_PARENTS: Final = """
SELECT jobs.tenant_id, jobs.id
  FROM jobs
 WHERE jobs.id = ANY($1::uuid[])
"""


async def list_parents(
    connection: Connection, wanted: Collection[JobId]
) -> set[tuple[TenantId, JobId]]:
    """Those of these jobs that there are, and whose each is."""
    rows = await connection.fetch(LIST_PARENTS, list(wanted))
    return {(TenantId(row["tenant_id"]), JobId(row["id"])) for row in rows}


Group: TypeAlias = tuple[str, Lane, TenantId]
"""New jobs of one type, lane and tenant."""

# A target is paused for those that run, and takes new ones.
_WHY: Final = "concat_ws(' ', pauses.scope, nullif(pauses.name, '')) || ': ' || pauses.reason"

FIND_REFUSALS: Final = f"""
SELECT DISTINCT ON (new.type, new.lane, new.tenant_id)
       new.type, new.lane, new.tenant_id, {_WHY} AS why
  FROM pauses
  JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[])
       AS new (type, lane, tenant_id, target) ON {pauses_job("new")}
 WHERE pauses.refuse_new
 ORDER BY new.type, new.lane, new.tenant_id, pauses.scope
"""  # noqa: S608 - composed at import from the rule in verdicts.py


async def find_refusals(connection: Connection, groups: Collection[Group]) -> dict[Group, str]:
    """Why new jobs of some of these groups are refused at present; of the others there is none."""
    columns = [list(column) for column in zip(*groups, strict=True)]
    rows = await connection.fetch(FIND_REFUSALS, *columns, [None] * len(groups))
    return {(row["type"], Lane(row["lane"]), row["tenant_id"]): row["why"] for row in rows}


# Both at once, of one request that will be in one of these lanes.
FIND_KEY_OR_REFUSAL: Final = f"""
SELECT asked.lane, {_STANDS} AS stands,
       (SELECT {_WHY}
          FROM pauses
         WHERE pauses.refuse_new AND {pauses_job("asked")}
         ORDER BY pauses.scope
         LIMIT 1) AS why
  FROM (SELECT $1::text AS tenant_id, $2::text AS idempotency_key, $3::text AS type,
               $4::text AS dedup_key, lanes.lane, NULL::text AS target
          FROM unnest($5::text[]) AS lanes (lane)) AS asked
"""  # noqa: S608 - composed at import from the rule in verdicts.py


async def find_key_or_refusal(
    connection: Connection, asked: Submission | Draft, lanes: Collection[Lane]
) -> tuple[bool, dict[Lane, str]]:
    """Whether a job stands for this request already; and which lanes refuse a new one, and why."""
    rows = await connection.fetch(
        FIND_KEY_OR_REFUSAL,
        asked.tenant_id,
        asked.idempotency_key,
        asked.type,
        asked.dedup_key,
        list(lanes),
    )
    refusals = {Lane(row["lane"]): row["why"] for row in rows if row["why"] is not None}
    return any(row["stands"] for row in rows), refusals


def _room(creator: str, but: str = "") -> str:
    """Counts no further than the limits; the caller keeps the answer for a while.

    Whose key a job is of no index knows: the tenant's open jobs are read for that, the newest
    first, and only where a key may have fewer than its tenant. Else none are counted for it.
    """
    return f"""
SELECT tenants.max_open_jobs
       - (SELECT count(*)
            FROM (SELECT FROM jobs
                   WHERE jobs.tenant_id = $1
                     AND jobs.state IN ('queued', 'processing', 'failed_retryable') {but}
                   LIMIT (SELECT quota.max_open_jobs FROM tenants AS quota WHERE quota.id = $1)
                 ) AS open) AS of_tenant,
       $3::bigint
       - CASE WHEN $3 < tenants.max_open_jobs THEN
             (SELECT count(*)
                FROM (SELECT FROM unnest(ARRAY['queued', 'processing', 'failed_retryable'])
                               AS open (state)
                       CROSS JOIN LATERAL (
                           SELECT jobs.created_by FROM jobs
                            WHERE jobs.tenant_id = $1 AND jobs.state = open.state {but}
                            ORDER BY jobs.id DESC NULLS LAST
                            LIMIT (SELECT quota.max_open_jobs FROM tenants AS quota
                                    WHERE quota.id = $1)) AS newest
                       WHERE newest.created_by = {creator}
                       LIMIT $3) AS own)
         ELSE 0 END AS of_key
  FROM tenants
 WHERE tenants.id = $1
"""  # noqa: S608 - composed at import


ROOM_FOR_JOBS: Final = _room("$2")


async def room_for_jobs(
    connection: Connection, tenant_id: TenantId, created_by: str, most_of_key: int
) -> tuple[int, int]:
    """How many more jobs this tenant, and this key of it, may have open.

    None for a tenant that does not exist.
    """
    row = await connection.fetchrow(ROOM_FOR_JOBS, tenant_id, created_by, most_of_key)
    return (0, 0) if row is None else (row["of_tenant"], row["of_key"])


# No set is counted: they wait for this room, and would wait for each other for ever.
ROOM_FOR_A_SET: Final = _room(
    "(SELECT sets.created_by FROM jobs AS sets WHERE sets.id = $2)",
    "AND jobs.type <> 'reprocess_images'",
)


async def room_for_a_set(
    connection: Connection, tenant_id: TenantId, job_id: JobId, most_of_key: int
) -> int:
    """How many jobs a set of images may submit now, whatever other sets of this tenant are open."""
    row = await connection.fetchrow(ROOM_FOR_A_SET, tenant_id, job_id, most_of_key)
    return 0 if row is None else min(row["of_tenant"], row["of_key"])
