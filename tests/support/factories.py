"""Rows in any state, made the way the product makes them wherever that is possible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Retry
from imagefleet.jobs.model import (
    CancelCode,
    ClaimAnswer,
    JobId,
    JobState,
    JsonObject,
    Lane,
    Ring,
    Submission,
    TenantId,
    WorkerId,
    new_job_id,
)
from imagefleet.jobs.policies import BreakerLimits, RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import Calls, report_calls
from imagefleet.store.fleet.workers import WorkerCard, register_worker
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.dispatching import FIRST_PLACE, find_levels, take_rings
from imagefleet.store.jobs.rings import confirm_rings
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from imagefleet.store.settling import Receipt, Settlement, settle_jobs

TENANT = TenantId("acme")
ALL_LANES = tuple(Lane)
TYPES = (
    *("process_image", "delete_image", "cancel_job", "cancel_jobs", "noop", "reprocess_images"),
    *("replay_jobs", "preview_original"),
)
SLOTS = {Lane.FAST: 3, Lane.GENERAL: 5, Lane.QUARANTINE: 1}


def a_submission(
    *,
    job_id: JobId | None = None,
    tenant_id: TenantId = TENANT,
    type: str = "noop",  # noqa: A002 - the field's own name
    lane: Lane = Lane.FAST,
    priority: int = 100,
    max_attempts: int = 5,
    payload: JsonObject | None = None,
    target: str | None = None,
    preempts: bool = False,
    services: tuple[str, ...] = (),
    pause_target_on_failure: bool = False,
    run_at: datetime | None = None,
    idempotency_key: str | None = None,
    fingerprint: str = "",
    dedup_key: str | None = None,
    replay_of: JobId | None = None,
) -> Submission:
    return Submission(
        job_id=job_id or new_job_id(),
        tenant_id=tenant_id,
        type=type,
        lane=lane,
        priority=priority,
        max_attempts=max_attempts,
        payload=payload or {},
        target=target,
        preempts=preempts,
        services=services,
        pause_target_on_failure=pause_target_on_failure,
        run_at=run_at,
        idempotency_key=idempotency_key,
        fingerprint=fingerprint,
        dedup_key=dedup_key,
        replay_of=replay_of,
        generation=0 if replay_of is None else 1,
        correlation_id="tests",
        created_by="tests",
    )


async def a_worker(
    worker: Connection,
    *,
    lanes: Sequence[Lane] = ALL_LANES,
    types: Sequence[str] = TYPES,
    type_slots: Mapping[str, int] | None = None,
    memory_bytes: int | None = None,
) -> WorkerId:
    worker_id = WorkerId(uuid4())
    card = WorkerCard(
        worker_id=worker_id,
        host="tests",
        pid=1,
        version="0",
        types=tuple(types),
        slots={lane: SLOTS[lane] for lane in lanes},
        type_slots=type_slots or {},
        memory_bytes=memory_bytes,
    )
    await register_worker(worker, card)
    return worker_id


UNAVAILABLE = Retry(code="unavailable", message="A service did not answer.", detail="s3: 503")
CORRUPT = Failed(code="corrupt", message="The image is damaged.", detail="bad header")
AGE_LOCK = """
UPDATE jobs SET locked_at = locked_at - fleet.lock_timeout - interval '1 second',
                claimed_at = claimed_at - fleet.lock_timeout - interval '1 second'
  FROM fleet
 WHERE jobs.id = $1 AND jobs.state = 'processing'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeJob:
    """A job as `a_job` made it: its last claim (0: none yet), and the worker that is its holder."""

    job_id: JobId
    claim_no: int
    worker_id: WorkerId


async def claim_job(worker: Connection, job_id: JobId, worker_id: WorkerId) -> ClaimAnswer:
    """The verdict for one id, asked by a worker of every lane and type."""
    (answer,) = await claim_jobs(
        worker, [job_id], worker_id=worker_id, lanes=ALL_LANES, types=TYPES
    )
    return answer


async def hold_job(worker: Connection, job_id: JobId, worker_id: WorkerId | None = None) -> MadeJob:
    """The job in the hands of this worker, or of one that has nothing else."""
    holder = worker_id or await a_worker(worker)
    answer = await claim_job(worker, job_id, holder)
    assert answer.claim is not None, answer
    return MadeJob(job_id=job_id, claim_no=answer.claim.claim_no, worker_id=holder)


async def settle_job(worker: Connection, job: MadeJob, outcome: Outcome) -> Receipt:
    settlement = Settlement(
        job_id=job.job_id, claim_no=job.claim_no, outcome=outcome, policy=RetryPolicy()
    )
    report = await settle_jobs(worker, job.worker_id, [settlement])
    return report.receipts[0]


async def finish_many(worker: Connection, worker_id: WorkerId, jobs: int) -> None:
    """That many are completed, every second one about something of its own."""
    for first in range(0, jobs, 100):
        numbers = range(first, min(jobs, first + 100))
        asked = [a_submission(target=f"thing:{n}" if n % 2 else None) for n in numbers]
        await submit_jobs(worker, asked)
        ids = [job.job_id for job in asked]
        answers = await claim_jobs(worker, ids, worker_id=worker_id, lanes=ALL_LANES, types=TYPES)
        claims = [answer.claim for answer in answers if answer.claim is not None]
        completed = [Settlement.of(claim, Completed(), RetryPolicy()) for claim in claims]
        await settle_jobs(worker, worker_id, completed)


AT_ONCE = BreakerLimits(failures=1, listen_for=timedelta(0))


async def open_breaker(worker: Connection, service: str = "s3") -> None:
    """By one failure, with limits that nobody would set."""
    calls = Calls(service=service, failures=1, code=f"{service}_unavailable")
    judged = await report_calls(worker, calls, AT_ONCE)
    assert judged.held_for is not None, "an operator holds it open"


async def expire_lock(superuser: Connection, job_id: JobId) -> None:
    await superuser.execute(AGE_LOCK, job_id)


async def make_due(superuser: Connection, job_id: JobId) -> None:
    await superuser.execute(
        "UPDATE jobs SET run_at = now() - interval '1 second' WHERE id = $1", job_id
    )
    await superuser.execute(
        "UPDATE rings SET next_at = now() - interval '1 second' WHERE job_id = $1", job_id
    )


async def ring_for(connection: Connection, job_id: JobId) -> Ring:
    """What somebody rings who takes the row as it stands now."""
    row = await connection.fetchrow("SELECT *, now() AS now FROM rings WHERE job_id = $1", job_id)
    assert row is not None
    return Ring(
        job_id=job_id,
        lane=Lane(row["lane"]),
        next_at=row["next_at"],
        tenant_id=TenantId(row["tenant_id"]),
        announced_at=row["now"],
    )


async def announce(connection: Connection, job_id: JobId) -> Ring:
    """As after a send that SQS took."""
    ring = await ring_for(connection, job_id)
    await confirm_rings(connection, [ring])
    assert await connection.fetchval("SELECT sent_at FROM rings WHERE job_id = $1", job_id)
    return ring


async def due_rings(connection: Connection, lane: Lane = Lane.FAST) -> list[Ring]:
    """What a dispatcher with room for all would send, whatever holds it back."""
    levels = await find_levels(connection, lane, FIRST_PLACE, limit=100)
    taken = await take_rings(connection, lane, ((level, 1000) for level in levels))
    return [ring for _, ring in taken]


async def push_rings_forward(superuser: Connection) -> None:
    """As after some rounds of ringing."""
    await superuser.execute(
        "UPDATE rings SET next_at = now() + interval '1 hour', sent_at = now(), sends = 7"
    )


async def age_finished_jobs(superuser: Connection) -> None:
    """Past retention. A finished row may not change, not even by a superuser: triggers are off."""
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute(
            "UPDATE jobs SET finished_at = finished_at - retention - interval '1 day' FROM fleet"
        )


async def a_job(
    worker: Connection,
    superuser: Connection,
    *,
    state: JobState = JobState.QUEUED,
    due: bool = True,
    lock_expired: bool = False,
    flag: CancelCode | None = None,
    flagged_before_claim: bool = False,
    submission: Submission | None = None,
) -> MadeJob:
    """One job in this state, by the store's own statements; only time is moved behind their back.

    `due` speaks of `queued` and `failed_retryable`, the lock of `processing`.
    """
    wanted = submission or a_submission()
    if state is JobState.QUEUED and not due:
        wanted = replace(wanted, run_at=datetime.now(UTC) + timedelta(hours=1))
    worker_id = await a_worker(worker)
    await submit_job(worker, wanted)
    job = MadeJob(job_id=wanted.job_id, claim_no=0, worker_id=worker_id)
    if flag is not None and flagged_before_claim:
        await cancel_job(worker, job.job_id, code=flag, detail="by a test")
    if state is not JobState.QUEUED:
        job = await hold_job(worker, job.job_id, worker_id)
    if state is JobState.COMPLETED:
        await settle_job(worker, job, Completed())
    elif state is JobState.FAILED:
        await settle_job(worker, job, CORRUPT)
    elif state is JobState.FAILED_RETRYABLE:
        await settle_job(worker, job, UNAVAILABLE)
        if due:
            await make_due(superuser, job.job_id)
    elif lock_expired:
        await expire_lock(superuser, job.job_id)
    if flag is not None and not flagged_before_claim:
        await cancel_job(worker, job.job_id, code=flag, detail="by a test")
    return job
