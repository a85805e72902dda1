"""What was committed though its answer was lost: the ends that a process wrote of others' claims.

Settling finds out by settling again. A claim or a rescue cannot be sent again for that: the first
one has changed what the second would find. So their rows of `attempts` say who wrote them.
"""

from collections.abc import Collection
from typing import Final
from uuid import UUID

from asyncpg import Record

from imagefleet.jobs.model import Ended, Fence, JobId, JobState, Lane, TenantId, WorkerId
from imagefleet.store.database import Connection
from imagefleet.store.jobs.claims import LOCK_WORKER

# A rescued run that was its job's last is given back, and was charged while it lasted.
_ENDS: Final = """
SELECT attempts.job_id, attempts.claim_no, attempts.tenant_id, attempts.type, attempts.lane,
       attempts.worker_id, attempts.duration, attempts.queue_time, attempts.outcome, attempts.why,
       attempts.ended_by,
       (SELECT count(*) FROM attempts AS earlier
         WHERE earlier.job_id = attempts.job_id AND earlier.claim_no < attempts.claim_no
           AND earlier.charged)
       + (attempts.charged
          OR (attempts.outcome = 'rescued' AND attempts.why = 'worker_lost'))::int AS attempts,
       jobs.max_attempts, jobs.correlation_id, jobs.traceparent
"""

FIND_CLAIMED_ENDS: Final = f"""
{_ENDS}
  FROM attempts
  JOIN jobs ON jobs.id = attempts.job_id
 WHERE attempts.job_id = ANY ($1::uuid[]) AND attempts.ended_by = $2
"""


async def find_claimed_ends(
    connection: Connection, worker_id: WorkerId, job_ids: Collection[JobId]
) -> list[Ended]:
    """What claims of this worker have ended of these jobs: also long ago, and told since."""
    async with connection.transaction():
        # A claim that is still under way holds this row; what it ends is seen after it.
        await connection.execute(LOCK_WORKER, worker_id)
        rows = await connection.fetch(FIND_CLAIMED_ENDS, list(job_ids), worker_id)
    return [_ended(row) for row in rows]


FIND_RESCUED_ENDS: Final = f"""
{_ENDS}
  FROM unnest($1::uuid[], $2::bigint[]) AS claims (job_id, claim_no)
  JOIN attempts ON attempts.job_id = claims.job_id AND attempts.claim_no = claims.claim_no
  JOIN jobs ON jobs.id = attempts.job_id
"""


async def find_rescued_ends(
    connection: Connection, rescuer_id: UUID, claims: Collection[Fence]
) -> tuple[list[Ended], set[Fence]]:
    """Of these claims: the ends that this rescuer wrote, and all that ended, whoever wrote it."""
    rows = await connection.fetch(
        FIND_RESCUED_ENDS, [one for one, _ in claims], [number for _, number in claims]
    )
    mine = [_ended(row) for row in rows if row["ended_by"] == rescuer_id]
    return mine, {(JobId(row["job_id"]), row["claim_no"]) for row in rows}


def _ended(row: Record) -> Ended:
    return Ended(
        job_id=JobId(row["job_id"]),
        claim_no=row["claim_no"],
        tenant_id=TenantId(row["tenant_id"]),
        type=row["type"],
        lane=Lane(row["lane"]),
        worker_id=WorkerId(row["worker_id"]),
        duration=row["duration"],
        queue_time=row["queue_time"],
        outcome=row["outcome"],
        why=row["why"],
        state=_left_as(row["outcome"], row["why"]),
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        correlation_id=row["correlation_id"],
        traceparent=row["traceparent"],
    )


def _left_as(outcome: str, why: str) -> JobState:
    """What the end left its job as: a rescue that could not give it back has failed it."""
    if outcome == "taken_over":
        return JobState.PROCESSING
    given_back = outcome == "rescued" and why == "worker_lost"
    return JobState.FAILED_RETRYABLE if given_back else JobState.FAILED
