"""A fleet in which everything has happened once, and every verb as it is typed there."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from imagefleet.jobs.images import Emptied
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobState, TenantId
from imagefleet.jobs.shapes.sweeping import MissingView, SweepProgress
from imagefleet.store.database import Connection
from imagefleet.store.edge.invalidations import (
    Accepted,
    BatchLimits,
    accept_batch,
    commit_batch,
    complete_batch,
    look_at_owed,
)
from imagefleet.store.fleet.elections import begin_period, finish_period
from imagefleet.store.images.sweeping import WALK, save_walk
from tests.cli.conftest import BUG, failed
from tests.support.api import ACME, JPEG, RIVAL, Running, published
from tests.support.factories import (
    CORRUPT,
    UNAVAILABLE,
    MadeJob,
    a_job,
    a_submission,
    open_breaker,
    settle_job,
)
from tests.support.http import a_jpeg, claimed

FILE: Final = "photo.jpg"
EIGHT_FILES: Final = Path(__file__).with_name("eight_files.toml")
ROOMY: Final = BatchLimits(paths=3000, wildcards=15)

VERBS: Final = (
    ("acme", "submit {file}"),
    ("acme", "images show {image}"),
    ("acme", "images show {gone}"),
    ("acme", "images list"),
    ("acme", "images list --reference nowhere"),
    ("acme", "images focal {image} 0.5 0.5"),
    ("acme", "images reprocess {image}"),
    ("acme", "images replace {image} {file}"),
    ("acme", "targets pause --reason checked image:{image}"),
    ("acme", "targets show image:{image}"),
    ("acme", "targets resume image:{image}"),
    ("acme", "targets cancel --reason unwanted image:{image}"),
    ("acme", "images delete --yes {broken}"),
    ("acme", "jobs submit noop --correlation-id nightly"),
    ("acme", "jobs types"),
    ("acme", "jobs types reprocess_images"),
    ("acme", "jobs show {failed}"),
    ("acme", "jobs show {waiting}"),
    ("acme", "jobs watch {failed}"),
    ("acme", "jobs list --status failed"),
    ("acme", "jobs list --correlation-id nobody"),
    ("operator", "jobs list --every-tenant"),
    ("operator", "jobs show --full {failed}"),
    ("operator", "jobs explain {waiting}"),
    ("operator", "jobs attempts {failed}"),
    ("operator", "jobs attempts {waiting}"),
    ("operator", "status"),
    ("operator", "workers list --jobs"),
    ("operator", "workers drain {worker} --reason mending"),
    ("operator", "queue stats"),
    ("operator", "queue rates"),
    ("operator", "queue rates --span day --lane quarantine"),
    ("operator", "queue costs"),
    ("operator", "queue explain fast"),
    ("operator", "jobs explain {failed}"),
    ("operator", "dlq list"),
    ("operator", "dlq show {failed}"),
    ("operator", "dlq groups"),
    ("operator", "dlq groups --by-tenant"),
    ("operator", "dlq groups --hourly"),
    ("operator", "dlq replay --reason mended --dry-run --all"),
    ("operator", "dlq replay-all --reason mended --dry-run --all"),
    ("operator", "dlq replay --reason mended --within 0 {failed}"),
    ("operator", "dlq ack --note known --all --yes"),
    ("operator", "dlq list --history"),
    ("operator", "dlq list"),
    ("operator", "jobs retry-now {waiting} --reason urgent"),
    ("operator", "jobs cancel {waiting} --reason unwanted"),
    ("operator", "jobs fail {held} --reason stuck"),
    ("operator", "images list --every-tenant"),
    ("operator", "images show --full {image}"),
    ("operator", "images reprocess --reason mended {image}"),
    ("operator", "images preview --into - --within 0 {image}"),
    ("operator", "images focal --reason mended {image} 0.25 0.75"),
    ("operator", "queue pauses"),
    ("operator", "queue pause --type noop --reason mending"),
    ("operator", "queue pause --target image:{image} --tenant acme --reason mending"),
    ("operator", "queue pauses"),
    ("operator", "queue resume --type noop --reason mended"),
    ("operator", "tenants list"),
    ("operator", "tenants limit acme --set uploads=9 --reason pilot"),
    ("operator", "tenants show acme"),
    ("operator", "tenants pause acme --reason flood"),
    ("operator", "tenants resume acme --reason over"),
    ("operator", "tenants cancel acme --reason flood --dry-run"),
    ("operator", "tenants cancel acme --reason flood --yes"),
    ("operator", "tenants cancel --every-tenant --type noop --reason flood --dry-run"),
    ("operator", "breaker list"),
    ("operator", "breaker open s3 --reason moving"),
    ("operator", "breaker reset s3 --reason moved"),
    ("operator", "settings live list --turned"),
    ("operator", "settings live set slots.lane.fast 2 --reason spare"),
    ("operator", "settings live list --turned"),
    ("operator", "settings live reset slots.lane.fast --reason over"),
    ("operator", "edge invalidate --reason takedown {image}"),
    ("operator", "edge status"),
    ("operator", "audit --limit 6"),
    ("operator", "audit --by nobody"),
    ("operator", "ledger"),
    ("operator", "prune"),
    ("operator", "sweep"),
    ("operator", "keys list"),
    ("operator", "keys create --tenant acme --name new"),
    ("operator", "keys revoke {key}"),
    ("operator", "migrate status"),
    ("operator", "migrate --check"),
    ("operator", "migrate --plan"),
    ("operator", "migrate"),
    ("operator", "recipes list"),
    ("operator", "recipes show default"),
    ("operator", "recipes check {recipes}"),
    ("operator", "recipes diff {recipes}"),
    ("operator", "capacity --images-per-day 1000000"),
    ("operator", "doctor"),
    ("operator", "worker"),
)
SAY_NOTHING_OF_A_FLEET: Final = {
    "up",  # tests/embedded
    "version",
    "recipes schema",  # a document
    "images original",  # tests/cli/test_images.py: an address alone
    "images download",  # tests/cli/test_downloading.py
    "api",
    "maintenance",
    "console",
}


async def a_world(
    running: Running,
    worker: Connection,
    maintenance: Connection,
    superuser: Connection,
    folder: Path,
) -> dict[str, str]:
    """Make it; the values of the names that `VERBS` have."""
    (folder / FILE).write_bytes(a_jpeg())
    image = await _uploaded(running, "holiday on the island/1.jpg")
    broken = await _uploaded(running, "holiday/2.jpg")
    gone = await _uploaded(running, "holiday/3.jpg")
    await published(worker, image)
    await settle_job(worker, await claimed(worker, broken["jobId"]), CORRUPT)
    await _delete(running, worker, superuser, gone["imageId"])
    jobs = await failed(worker, superuser, 2)
    for tenant, outcome in ((RIVAL, BUG), (ACME, UNAVAILABLE)):
        await settle_job(worker, await _held(worker, superuser, tenant), outcome)
    waiting = await a_job(worker, superuser, submission=a_submission(dedup_key="nightly"))
    held = await _held(worker, superuser, ACME)
    await open_breaker(worker)
    await _owe(running, maintenance, superuser, image["imageId"])
    await _work_of_maintenance(maintenance, image["imageId"])
    await rolled_up(superuser)
    key = await superuser.fetchval("SELECT id FROM api_keys WHERE tenant_id = 'rival'")
    return {
        "file": FILE, "recipes": str(EIGHT_FILES), "image": image["imageId"],
        "broken": broken["imageId"], "gone": gone["imageId"], "failed": str(jobs[0].job_id),
        "waiting": str(waiting.job_id), "held": str(held.job_id), "key": str(key),
        "worker": str(held.worker_id),
    }  # fmt: skip


async def _uploaded(running: Running, reference: str) -> dict[str, str]:
    async with running.client() as acme:
        answer = await acme.post(
            "/v1/images", params={"reference": reference}, content=a_jpeg(), headers=JPEG
        )
        accepted: dict[str, str] = answer.json()
        return accepted


async def _held(worker: Connection, superuser: Connection, tenant: TenantId) -> MadeJob:
    job = a_submission(tenant_id=tenant)
    return await a_job(worker, superuser, state=JobState.PROCESSING, submission=job)


async def _delete(running: Running, worker: Connection, superuser: Connection, image: str) -> None:
    async with running.client() as acme:
        deleted = (await acme.delete(f"/v1/images/{image}")).json()
    receipt = Emptied(
        image_id=UUID(image), tenant_id=ACME, deleted=5, not_there=0, errors=0, keys=("a", "b")
    )
    job = await claimed(worker, deleted["jobId"])
    await settle_job(worker, job, Completed(emptied=receipt))
    await superuser.execute(
        "UPDATE image_tombstones SET dark_at = requested_at + interval '7 seconds'"
    )


async def _owe(
    running: Running, maintenance: Connection, superuser: Connection, image: str
) -> None:
    body = {"imageIds": [image], "reason": "a takedown"}
    async with running.client("operator") as operator:
        await operator.post("/v1/operator/edge/invalidations", json=body)
        debts = [owed.debt for owed in await look_at_owed(maintenance, limit=10)]
        batch = await commit_batch(maintenance, debts, lambda tag: f"#img-{tag}", within=ROOMY)
        assert batch is not None
        await accept_batch(maintenance, batch.id, "I1")
        await complete_batch(maintenance, Accepted(batch.id, "I1"))
    await superuser.execute(
        "INSERT INTO elections (name, holder, term, until)"
        " VALUES ('flusher', gen_random_uuid(), 1, now() + interval '1 hour')"
    )


ROLLED_UP: Final = """
INSERT INTO rollups (step, at, type, lane, submitted, completed, failed, retried, published,
                     promised, late, waits, durations, longest_wait, longest_duration)
SELECT step, date_trunc(step, counted_until - interval '5 minutes', 'UTC'), type, 'fast', 600, 540,
       20, 40, 500, 510, 4, '{300,200,100}', array_fill(0::bigint, ARRAY[26]) || '{400,200}',
       interval '1.4 ms', interval '130 ms'
  FROM rollup_progress, unnest('{minute,hour}'::text[]) AS step,
       unnest('{process_image,noop}'::text[]) AS type
"""
COUNTED_BY_NOW: Final = "UPDATE rollup_progress SET counted_until = date_trunc('minute', now())"
BILLED: Final = """
INSERT INTO rollup_costs (step, at, sqs_requests, s3_writes, invalidation_paths)
SELECT step, date_trunc(step, counted_until - interval '5 minutes', 'UTC'), 2300, 11002, 40
  FROM rollup_progress, unnest('{minute,hour}'::text[]) AS step
"""


async def rolled_up(superuser: Connection) -> None:
    """What maintenance would have counted of a busy minute, not long ago."""
    await superuser.execute(COUNTED_BY_NOW)
    await superuser.execute(ROLLED_UP)
    await superuser.execute(BILLED)


async def _work_of_maintenance(maintenance: Connection, image: str) -> None:
    missing = MissingView(
        bucket="imagefleet-outputs",
        key=f"i/{image}/1.1/thumb.webp",
        tenant_id="acme",
        image_id=UUID(image),
        found_at=datetime(2026, 1, 2, tzinfo=UTC),
        reprocess=True,
    )
    walk = await begin_period(maintenance, WALK, timedelta(hours=6), uuid4())
    assert walk is not None
    await save_walk(maintenance, walk, SweepProgress(listed=7, missing=(missing,)), is_through=True)
    done: dict[str, dict[str, object]] = {
        "sweep": {"did": True, "objects": 4321},
        "prune": {"jobs": 12},
    }
    for step, did in done.items():
        period = await begin_period(maintenance, step, timedelta(minutes=1), uuid4())
        assert period is not None
        await finish_period(maintenance, step, period, did)
