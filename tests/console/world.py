"""A fleet in which enough went wrong to fill every page; and one whose names mean harm."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from imagefleet.jobs.lifecycle import Completed, Failed, Retry
from imagefleet.jobs.model import JobId, JobState, Submission, TenantId
from imagefleet.store.database import Connection
from tests.support.api import ACME, RIVAL
from tests.support.factories import MadeJob, a_job, a_submission, open_breaker, settle_job
from tests.support.image_rows import an_image

CORRUPT: Final = "The image cannot be decoded: premature end of a JPEG file."
BUCKET: Final = "The bucket does not exist: NoSuchBucket."
TARGET: Final = "sku:4711"
PAUSE: Final = (
    "INSERT INTO pauses (scope, name, tenant_id, reason, paused_by) VALUES ($1, $2, $3, $4, $5)"
)

# An hour in which it went now faster, now slower, and sometimes wrong.
RATES: Final = """
INSERT INTO rollups (step, at, type, lane, submitted, completed, failed, retried, published, waits,
                     durations, longest_wait, longest_duration)
SELECT 'minute', date_trunc('minute', counted_until, 'UTC') - n * interval '1 minute',
       'process_image', 'fast', 80 + n % 13, 75 + n % 17, n % 19 / 16, n % 7 / 5, 70,
       array_fill(0, ARRAY[10 + n % 9]) || '{40,20,1}',
       array_fill(0, ARRAY[30 + n % 5]) || '{30,9}',
       interval '3 s', interval '9 s'
  FROM rollup_progress, generate_series(1, 59) AS n
"""
COSTS: Final = """
INSERT INTO rollup_costs (step, at, sqs_requests, s3_writes, invalidation_paths)
SELECT 'minute', date_trunc('minute', counted_until, 'UTC') - n * interval '1 minute', 160, 760, 1
  FROM rollup_progress, generate_series(1, 59) AS n
"""

# Ends an attribute and an element, runs in both, and is a template; where a name may be written.
MARKUP: Final = (
    "'\"></p></td><img src=x onerror=window.owned=1><script>window.owned=2</script>"
    "<svg/onload=window.owned=3>{{7*191}}{% raise %}<a href=javascript:window.owned=4>x</a>&lt;b"
)
TAKEN: Final = f"{MARKUP}\u202e\u2066\u200b\U000e0041[2J"
FORGED: Final = f"\n\r\x1b[2J\x1b]0;owned\x07\x9b31m\x85\x08\x7f\u2028{TAKEN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Jobs by what became of them."""

    corrupt: list[JobId]
    denied: list[JobId]
    running: JobId
    waiting: JobId
    retried: JobId
    completed: JobId
    image: UUID
    """Of which nothing is made yet."""


class Making:
    """Makes jobs, each in the hands of a worker for a moment."""

    def __init__(self, worker: Connection, superuser: Connection) -> None:
        self._worker = worker
        self._superuser = superuser

    async def held(self, tenant: TenantId = ACME, submission: Submission | None = None) -> MadeJob:
        wanted = submission or a_submission(tenant_id=tenant)
        state = JobState.PROCESSING
        return await a_job(self._worker, self._superuser, state=state, submission=wanted)

    async def failed(self, tenant: TenantId, how: Failed) -> JobId:
        job = await self.held(
            submission=a_submission(tenant_id=tenant, payload={"note": how.message})
        )
        await settle_job(self._worker, job, how)
        return job.job_id


async def a_world(worker: Connection, superuser: Connection) -> World:
    """Two kinds of dead letters, an open breaker, a pause, and jobs in every state."""
    making = Making(worker, superuser)
    log = "decoding\nreading marker 0xffd9\nend of file"
    corrupt = Failed(code="corrupt", message=CORRUPT, detail="broken data", log_excerpt=log)
    storage = Failed(code="storage", message=BUCKET, detail="PutObject: NoSuchBucket")
    completed, retried = await making.held(), await making.held(RIVAL)
    await settle_job(worker, completed, Completed(result={"bytes": 1234}))
    again = Retry(code="unavailable", message="S3 did not answer.", detail="ReadTimeout")
    await settle_job(worker, retried, again)
    world = World(
        corrupt=[await making.failed(tenant, corrupt) for tenant in (*[ACME] * 5, RIVAL)],
        denied=[await making.failed(ACME, storage) for _ in range(3)],
        completed=completed.job_id,
        retried=retried.job_id,
        running=(await making.held(submission=a_submission(target=TARGET))).job_id,
        waiting=(await a_job(worker, superuser, submission=a_submission(target=TARGET))).job_id,
        image=await an_image(superuser, tenant_id=ACME, reference="order-7"),
    )
    await open_breaker(worker)
    await superuser.execute(RATES)
    await superuser.execute(COSTS)
    await superuser.execute(PAUSE, "type", "webhook", "", "their endpoint moves", "dana")
    return world


async def a_hostile_world(worker: Connection, superuser: Connection) -> dict[str, str]:
    """Wherever a tenant, a handler or a worker may write something, it means harm; its pages."""
    making = Making(worker, superuser)
    wanted = a_submission(payload={"note": FORGED, MARKUP: [FORGED]}, dedup_key=TAKEN, target=TAKEN)
    failed = await making.held(submission=wanted)
    bad = Failed(code="corrupt", message=FORGED, detail=FORGED, log_excerpt=FORGED)
    await settle_job(worker, failed, bad)
    retried = await making.held(submission=a_submission(target=f"{TAKEN}2"))
    await settle_job(worker, retried, Retry(code="bug", message=FORGED, detail=FORGED))
    done = await making.held()
    await settle_job(worker, done, Completed(result={MARKUP: FORGED}))
    waiting = await a_job(worker, superuser, submission=a_submission(target=f"{TAKEN}2"))
    await superuser.execute("UPDATE workers SET host = $1, version = $1", FORGED)
    await superuser.execute(PAUSE, "target", TAKEN, "acme", FORGED, FORGED)
    await superuser.execute(PAUSE, "type", "webhook", "", FORGED, FORGED)
    image = await an_image(superuser, tenant_id=ACME, reference=TAKEN)
    await superuser.execute(
        "INSERT INTO audit (actor, action, kind, name, reason, after)"
        " VALUES ($1, 'pause', 'pause', $1, $1, jsonb_build_object('note', $1::text))",
        FORGED,
    )
    fault = await superuser.fetchval("SELECT fingerprint FROM dead_letters")
    return {
        "now": "/",
        "faults": "/faults",
        "fault": f"/faults/{fault}",
        "failed": f"/jobs/{failed.job_id}",
        "retried": f"/jobs/{retried.job_id}",
        "completed": f"/jobs/{done.job_id}",
        "waiting": f"/jobs/{waiting.job_id}",
        "jobs": "/jobs",
        "tenant": "/tenants/acme",
        "images": "/images",
        "image": f"/images/{image}",
        "timeline": "/timeline?span=all",
        "workers": "/workers?gone=yes",
        "controls": "/controls",
    }
