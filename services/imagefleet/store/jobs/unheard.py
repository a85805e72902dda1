"""What was committed though its answer was lost: ends of claims, read again from `attempts`.

A worker's own are found by settling again. A claim or a rescue cannot be sent again for that: the
first one has changed what the second would find. So the ends that they write of others' claims say
who wrote them.
"""

from collections.abc import Collection
from types import MappingProxyType
from typing import Final
from uuid import UUID

from asyncpg import Record

from imagefleet.jobs.model import Ended, Fence, JobId, JobState, Lane, WorkerId
from imagefleet.store.database import Connection
from imagefleet.store.jobs.claims import LOCK_WORKER
from imagefleet.store.jobs.endings import lock_claims
from imagefleet.store.jobs.rescue import WAIT_BRIEFLY

# A run that was given back was charged while it lasted; the settling of a flagged job, which fails
# it, never was.
_ENDS: Final = """
SELECT attempts.job_id, attempts.claim_no, attempts.tenant_id, attempts.type, attempts.lane,
       attempts.worker_id, attempts.duration, attempts.queue_time, attempts.outcome, attempts.why,
       (SELECT count(*) FROM attempts AS earlier
         WHERE earlier.job_id = attempts.job_id AND earlier.claim_no < attempts.claim_no
           AND earlier.charged)
       + (attempts.charged OR attempts.outcome IN ('completed', 'retried', 'released')
          OR (attempts.outcome = 'rescued' AND attempts.why = 'worker_lost'))::int AS attempts,
       jobs.max_attempts, jobs.correlation_id, jobs.traceparent,
       CASE WHEN attempts.outcome <> 'completed' OR jobs.parent_job_id IS NOT NULL THEN NULL
            WHEN attempts.claim_no = 1 THEN attempts.queue_time + attempts.duration
            ELSE attempts.ended_at - jobs.created_at
       END AS age,
       attempts.cpu_seconds, attempts.peak_bytes, attempts.read_bytes, attempts.made_bytes
"""

_ENDS_OF_JOBS: Final = f"""
{_ENDS}
  FROM attempts
  JOIN jobs ON jobs.id = attempts.job_id
 WHERE attempts.job_id = ANY ($1::uuid[])
"""

FIND_OWN_ENDS: Final = f"""
{_ENDS_OF_JOBS}
   AND attempts.worker_id = $2
   AND attempts.outcome IN ('completed', 'retried', 'failed', 'released')
"""


async def find_own_ends(
    connection: Connection, worker_id: WorkerId, job_ids: Collection[JobId]
) -> list[Ended]:
    """What this worker itself has ended of these jobs."""
    return [_end_of(row) for row in await connection.fetch(FIND_OWN_ENDS, list(job_ids), worker_id)]


FIND_CLAIMED_ENDS: Final = f"{_ENDS_OF_JOBS} AND attempts.ended_by = $2"


async def find_claimed_ends(
    connection: Connection, worker_id: WorkerId, job_ids: Collection[JobId]
) -> list[Ended]:
    """What claims of this worker have ended of these jobs: also long ago, and told since."""
    async with connection.transaction():
        # A claim that is still under way holds this row; what it ends is seen after it.
        await connection.execute(LOCK_WORKER, worker_id)
        rows = await connection.fetch(FIND_CLAIMED_ENDS, list(job_ids), worker_id)
    return [_end_of(row) for row in rows]


FIND_RESCUED_ENDS: Final = f"""
{_ENDS}
  FROM unnest($1::uuid[], $2::bigint[]) AS claims (job_id, claim_no)
  JOIN attempts ON attempts.job_id = claims.job_id AND attempts.claim_no = claims.claim_no
  JOIN jobs ON jobs.id = attempts.job_id
 WHERE attempts.ended_by = $3
"""


async def find_rescued_ends(
    connection: Connection, rescuer_id: UUID, claims: Collection[Fence]
) -> list[Ended]:
    """The ends of these claims that this rescuer wrote; there will be no more of them."""
    job_ids, numbers = [job_id for job_id, _ in claims], [number for _, number in claims]
    async with connection.transaction():
        await connection.execute(WAIT_BRIEFLY)
        # A rescue that is still under way holds the claims it ends; what it ends is seen after it.
        await lock_claims(connection, list(claims))
        rows = await connection.fetch(FIND_RESCUED_ENDS, job_ids, numbers, rescuer_id)
    return [_end_of(row) for row in rows]


_LEAVES: Final = MappingProxyType(
    {
        "completed": JobState.COMPLETED,
        "retried": JobState.FAILED_RETRYABLE,
        "released": JobState.FAILED_RETRYABLE,
        "taken_over": JobState.PROCESSING,
    }
)


def _end_of(row: Record) -> Ended:
    """A rescue that could not give the job back has failed it, as has what is not named above."""
    given_back = row["outcome"] == "rescued" and row["why"] == "worker_lost"
    failed = JobState.FAILED_RETRYABLE if given_back else JobState.FAILED
    columns = dict(row) | {"lane": Lane(row["lane"]), "state": _LEAVES.get(row["outcome"], failed)}
    return Ended(**columns)
