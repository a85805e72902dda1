"""During a rollout processes of 0.2.0 work on the new schema, beside new ones."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import asyncpg

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import (
    JobId,
    JobState,
    Lane,
    PauseScope,
    Verdict,
    WorkerId,
    new_job_id,
)
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import (
    Pause,
    pause,
)
from imagefleet.store.jobs.dispatching import FIRST_PLACE, find_levels, look_at_fleet, take_rings
from imagefleet.store.jobs.rings import adopt_rings, confirm_rings, rings_for
from imagefleet.store.jobs.submissions import submit_job
from tests.conftest import OpenConnection
from tests.support.database import driver_of
from tests.support.factories import (
    TENANT,
    TYPES,
    UNAVAILABLE,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)
from tests.support.image_rows import a_publication, a_variant, an_image
from tests.support.rows import ring_row, the_ring

RELEASE: Final = Path(__file__).parent / "releases" / "0.2.0.sql"
NAMED: Final = re.compile(r"^-- (\w+\.\w+)\n(.*?)(?=^-- \w+\.\w+\n|\Z)", re.MULTILINE | re.DOTALL)
STATEMENTS: Final = dict(NAMED.findall(RELEASE.read_text(encoding="utf-8")))


def older(name: str) -> str:
    return str(STATEMENTS[name])


async def test_every_statement_of_0_2_0_is_understood(superuser: OpenConnection) -> None:
    refused: dict[str, str] = {}
    for name, statement in STATEMENTS.items():
        try:
            await driver_of(superuser).prepare(statement)
        except asyncpg.PostgresError as error:
            refused[name] = str(error)

    assert refused == {}
    assert len(STATEMENTS) == 184


async def older_submit(api: Connection, **wishes: object) -> JobId:
    job_id = new_job_id()
    document = {
        "id": job_id, "tenant_id": TENANT, "type": "noop", "lane": "fast", "priority": 100,
        "preempts": False, "services": [], "pause_target_on_failure": False, "max_attempts": 5,
        "payload": {}, "fingerprint": "", "correlation_id": "c", "created_by": "t",
        "generation": 0,
    }  # fmt: skip
    await api.fetch(older("submissions.INSERT_JOBS"), [document | wishes])
    return job_id


async def older_claim(worker: Connection, job_id: JobId, me: WorkerId) -> str:
    (row,) = await worker.fetch(
        older("claims.CLAIM_JOBS"), [job_id], ["fast"], list(TYPES), me, "exhausted", "poison"
    )
    return str(row["verdict"])


async def test_what_they_submit_is_adopted_and_announced(
    api: OpenConnection, maintenance: OpenConnection
) -> None:
    job_id = await older_submit(api)
    assert await find_levels(maintenance, Lane.FAST, FIRST_PLACE, limit=9) == []

    assert await adopt_rings(maintenance, limit=10) == 1

    (level,) = await find_levels(maintenance, Lane.FAST, FIRST_PLACE, limit=9)
    assert (level.tenant_id, level.type, level.job_id) == (TENANT, "noop", job_id)
    assert await adopt_rings(maintenance, limit=10) == 0


async def test_what_was_rung_before_the_migration_is_adopted_as_sent(
    api: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    job_id = await older_submit(api)
    await superuser.execute(
        "UPDATE rings SET rings = 3, since = now() - interval '1 hour', due_at = now()"
    )
    await superuser.execute("UPDATE rings SET sent_at = NULL, sends = 0")  # as it was before 0009

    await adopt_rings(maintenance, limit=10)

    row = await the_ring(api, job_id)
    assert (row["sent_at"], row["sends"]) == (row["since"], 3)


async def test_what_they_retry_is_adopted_with_its_time(
    api: OpenConnection, worker: OpenConnection, maintenance: OpenConnection
) -> None:
    job_id = await older_submit(api)
    me = await a_worker(worker)
    assert await older_claim(worker, job_id, me) == "claimed"
    later = await worker.fetchval("SELECT now() + interval '1 hour'")
    await worker.execute(
        older("endings.RETRY_JOBS"),
        [job_id], [1], ["unavailable"], ["x"], [None], [later], [True], [False], ["fast"],
        "retried", [None],
    )  # fmt: skip
    await adopt_rings(maintenance, limit=10)

    row = await the_ring(api, job_id)
    assert (row["tenant_id"], row["next_at"], row["sent_at"]) == (TENANT, later, None)


async def test_they_claim_and_end_what_new_processes_submitted(
    api: OpenConnection, worker: OpenConnection
) -> None:
    answer = await submit_job(api, a_submission())
    me = await a_worker(worker)

    assert await older_claim(worker, answer.job_id, me) == "claimed"

    assert await ring_row(api, answer.job_id) is None
    await settle_job(worker, MadeJob(job_id=answer.job_id, claim_no=1, worker_id=me), UNAVAILABLE)


async def test_new_workers_claim_what_they_submitted_before_anybody_adopted_it(
    api: OpenConnection, worker: OpenConnection
) -> None:
    job_id = await older_submit(api)

    assert (await claim_job(worker, job_id, await a_worker(worker))).verdict is Verdict.CLAIMED


async def test_a_message_that_they_send_counts_as_sent(
    api: OpenConnection, superuser: OpenConnection, maintenance: OpenConnection
) -> None:
    by_api, by_dispatcher = [(await submit_job(api, a_submission())).job_id for _ in range(2)]
    due_at = await api.fetchval("SELECT due_at FROM rings WHERE job_id = $1", by_api)
    await api.execute(older("rings.CONFIRM_RINGS"), [by_api], [due_at])
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")  # time goes by
        await superuser.execute("UPDATE rings SET due_at = now() WHERE job_id = $1", by_dispatcher)
    rows = await maintenance.fetch(older("rings.TAKE_DUE_RINGS"), "fast", 10, False)  # noqa: FBT003 - no repeats

    assert [row["job_id"] for row in rows] == [by_dispatcher]
    for job_id in (by_api, by_dispatcher):
        row = await the_ring(api, job_id)
        assert (row["sent_at"] is not None, row["sends"]) == (True, 1)


async def test_what_they_defer_has_no_message_any_more(
    api: OpenConnection, worker: OpenConnection, operator: OpenConnection
) -> None:
    submission = a_submission()
    rings = rings_for([(submission, await submit_job(api, submission))])
    await confirm_rings(api, rings)
    await pause(operator, Pause(scope=PauseScope.TYPE, name="noop"), by="tests", reason="why")

    assert await older_claim(worker, submission.job_id, await a_worker(worker)) == "paused"

    row = await the_ring(api, submission.job_id)
    assert (row["sent_at"], row["next_at"]) == (None, row["due_at"])
    assert timedelta(seconds=50) < row["next_in"] <= timedelta(seconds=60)


async def test_they_pass_over_the_pause_of_a_tenant(
    api: OpenConnection, worker: OpenConnection, operator: OpenConnection
) -> None:
    """They do not know it; what they would hold back otherwise, they still do."""
    job_id = await older_submit(api)
    of_tenant = Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name="noop")
    await pause(operator, of_tenant, by="tests", reason="why", refuse_new=True)

    assert await api.fetch(older("control.FIND_REFUSAL"), "noop", "fast") == []
    assert await older_claim(worker, job_id, await a_worker(worker)) == "claimed"


async def test_what_they_make_due_is_announced_anew(
    api: OpenConnection, operator: OpenConnection, maintenance: OpenConnection
) -> None:
    submission = a_submission()
    rings = rings_for([(submission, await submit_job(api, submission))])
    await confirm_rings(api, rings)

    await operator.fetch(older("control.RING_JOB"), submission.job_id)

    (level,) = await find_levels(maintenance, Lane.FAST, FIRST_PLACE, limit=9)
    ((_, ring),) = await take_rings(maintenance, Lane.FAST, [(level, 5)])
    assert (level.due, ring.job_id) == (True, submission.job_id)


async def test_they_find_judge_and_sweep_pictures_of_several_names(
    api: OpenConnection, worker: OpenConnection, maintenance: OpenConnection
) -> None:
    """A key that is named twice they tell twice; S3 is asked to delete it once."""
    image_id = await an_image(api)
    keys = [f"i/{image_id}/{revision}.1/small.webp" for revision in (1, 2)]
    for revision, key in enumerate(keys, 1):
        variants = [a_variant(key, name=name) for name in ("small", "large")]
        job = await a_job(worker, api, state=JobState.PROCESSING)
        made = a_publication(job, image_id, revision, variants)
        await settle_job(worker, job, Completed(publication=made))

    for name in ("small", "large"):
        found = older("pointers.FIND_CURRENT"), image_id, name, "webp"
        assert await api.fetchval(*found) == keys[1]
    (row,) = await api.fetch(older("images.GET_IMAGE"), image_id, TENANT)
    assert [made["key"] for made in row["variants"]] == [keys[1], keys[1]]
    long_ago = await api.fetchval("SELECT now() - interval '1 day'")
    judged = await maintenance.fetch(
        older("sweeping.JUDGE_OUTPUTS"), keys, [long_ago] * 2, [image_id] * 2, [1, 2], [1, 1],
        timedelta(hours=1),
    )  # fmt: skip
    assert judged == []
    (old,) = await maintenance.fetch(
        older("sweeping.LIST_SUPERSEDED"),
        timedelta(0),
        *(False, None, None, None, 10),  # without an edge
    )
    assert (old["keys"], old["ripe"]) == ([keys[0], keys[0]], True)


async def test_their_beat_and_their_workers_are_taken(
    worker: OpenConnection, maintenance: OpenConnection
) -> None:
    me = uuid4()
    await worker.execute(
        older("control.REGISTER_WORKER"), me, "h", 1, "0.2.0", ["fast"], ["noop"], [3]
    )
    rows: list[Any] = await worker.fetch(older("leases.RENEW_CLAIMS"), me, [], [], [])

    assert rows[-1]["alive"]
    fleet = await look_at_fleet(maintenance)
    assert (fleet[Lane.FAST].free, fleet[Lane.FAST].silent_at) == (3, None)
