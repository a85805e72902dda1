"""Pauses: what each holds back, what it lets pass, and what a resume lets go."""

from typing import Any

import pytest

from imagefleet.jobs.model import (
    JobState,
    Lane,
    PauseScope,
    TenantId,
    Verdict,
)
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.jobs.admissions import find_refusals
from imagefleet.store.jobs.submissions import submit_job
from tests.support.factories import (
    CORRUPT,
    TENANT,
    MadeJob,
    a_job,
    a_submission,
    claim_job,
    push_rings_forward,
    settle_job,
)
from tests.support.rows import due_now, job_row

IMAGE = "image:1"


EVERYTHING = Pause(scope=PauseScope.ALL)


TYPE = Pause(scope=PauseScope.TYPE, name="noop")


LANE = Pause(scope=PauseScope.LANE, name="fast")


TARGET = Pause(scope=PauseScope.TARGET, name=IMAGE, tenant_id=TENANT)


OF_TENANT = Pause(scope=PauseScope.TENANT, tenant_id=TENANT)


OF_TENANT_AND_TYPE = Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name="noop")


EACH_SCOPE = pytest.mark.parametrize(
    "what", [EVERYTHING, TYPE, LANE, TARGET, OF_TENANT, OF_TENANT_AND_TYPE], ids=str
)


# Pauses.


async def three_jobs(worker: Connection, superuser: Connection) -> tuple[MadeJob, MadeJob, MadeJob]:
    """Due, for later, and one about something else altogether."""
    return (
        await a_job(worker, superuser, submission=a_submission(target=IMAGE)),
        await a_job(worker, superuser, submission=a_submission(target=IMAGE), due=False),
        await a_job(
            worker,
            superuser,
            submission=a_submission(type="process_image", lane=Lane.GENERAL, target="image:2"),
        ),
    )


@EACH_SCOPE
async def test_a_pause_holds_back_what_matches_and_nothing_else(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    held, _, other = await three_jobs(worker, superuser)
    await pause(operator, what, by="tests", reason="why")

    verdicts = [
        (await claim_job(worker, job.job_id, job.worker_id)).verdict for job in (held, other)
    ]

    others = Verdict.PAUSED if what in {EVERYTHING, OF_TENANT} else Verdict.CLAIMED
    assert [Verdict.PAUSED, others] == verdicts


@pytest.mark.parametrize(
    "what",
    [
        Pause(scope=PauseScope.TENANT, tenant_id="rival"),
        Pause(scope=PauseScope.TENANT, tenant_id="rival", name="noop"),
        Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name="process_image"),
    ],
    ids=str,
)
async def test_a_pause_of_another_tenant_or_of_another_type_of_it_holds_nothing_of_ours(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser)
    await pause(operator, what, by="tests", reason="why")

    assert Verdict.CLAIMED is (await claim_job(worker, job.job_id, job.worker_id)).verdict


async def test_what_is_submitted_for_a_paused_tenant_is_not_rung_by_who_submits(
    api: Connection, operator: Connection
) -> None:
    """But what no pause holds back is, and so is what others submit."""
    await pause(operator, OF_TENANT_AND_TYPE, by="tests", reason="why")
    wishes: list[dict[str, Any]] = [
        {},
        {"preempts": True},
        {"type": "process_image"},
        {"tenant_id": TenantId("rival")},
    ]

    rung = [(await submit_job(api, a_submission(**wish))).next_at is not None for wish in wishes]

    assert [False, True, True, True] == rung


@EACH_SCOPE
async def test_a_preempting_job_ignores_every_pause(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    await pause(operator, what, by="tests", reason="why")
    job = await a_job(worker, superuser, submission=a_submission(target=IMAGE, preempts=True))

    assert Verdict.CLAIMED is (await claim_job(worker, job.job_id, job.worker_id)).verdict


@EACH_SCOPE
async def test_a_running_job_finishes_under_a_pause(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    submission = a_submission(target=IMAGE)
    job = await a_job(worker, superuser, state=JobState.PROCESSING, submission=submission)
    await pause(operator, what, by="tests", reason="why")

    await settle_job(worker, job, CORRUPT)

    assert JobState.FAILED == (await job_row(worker, job.job_id))["state"]


@EACH_SCOPE
async def test_resume_lets_go_what_was_held_back_and_writes_no_row_but_the_head_of_a_target(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    """A pause of a million jobs is one row, and so is its end."""
    held, _, _ = await three_jobs(worker, superuser)
    await pause(operator, what, by="tests", reason="why")
    await push_rings_forward(superuser)
    before = await superuser.fetch("SELECT * FROM rings ORDER BY job_id")

    assert await resume(operator, what)

    after = await superuser.fetch("SELECT * FROM rings ORDER BY job_id")
    changed = [row["job_id"] for row, was in zip(after, before, strict=True) if row != was]
    assert ([held.job_id] if what is TARGET else []) == changed
    assert await due_now(worker, held.job_id) is (what is TARGET)
    assert [] == await operator.fetch("SELECT FROM pauses")
    assert Verdict.CLAIMED is (await claim_job(worker, held.job_id, held.worker_id)).verdict


@EACH_SCOPE
async def test_resume_says_when_nothing_was_paused(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    held, _, _ = await three_jobs(worker, superuser)
    await push_rings_forward(superuser)

    assert not await resume(operator, what)
    assert not await due_now(worker, held.job_id)


async def test_a_second_pause_tells_its_own_reason(operator: Connection) -> None:
    await pause(operator, TYPE, by="ada", reason="first", refuse_new=True)

    await pause(operator, TYPE, by="ben", reason="second")

    rows = await operator.fetch("SELECT paused_by, reason, refuse_new FROM pauses")
    assert [("ben", "second", False)] == [tuple(row) for row in rows]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (EVERYTHING, "all: maintenance"),
        (TYPE, "type noop: maintenance"),
        (LANE, "lane fast: maintenance"),
        (OF_TENANT, "tenant: maintenance"),
        (OF_TENANT_AND_TYPE, "tenant noop: maintenance"),
    ],
)
async def test_a_pause_that_refuses_new_jobs_says_why(
    what: Pause, expected: str, api: Connection, operator: Connection
) -> None:
    await pause(operator, what, by="tests", reason="maintenance", refuse_new=True)

    mine, rivals = ("noop", Lane.FAST, TENANT), ("process_image", Lane.GENERAL, TenantId("rival"))
    both = {mine: expected} | ({rivals: expected} if what is EVERYTHING else {})
    assert both == await find_refusals(api, [mine, rivals])


async def test_a_pause_that_refuses_nothing_is_no_refusal(
    api: Connection, operator: Connection
) -> None:
    await pause(operator, EVERYTHING, by="tests", reason="why")

    assert {} == await find_refusals(api, [("noop", Lane.FAST, TENANT)])


async def test_a_refusal_of_other_jobs_is_none_of_ours(
    api: Connection, operator: Connection
) -> None:
    await pause(operator, TYPE, by="tests", reason="why", refuse_new=True)
    await pause(operator, LANE, by="tests", reason="why", refuse_new=True)
    await pause(operator, OF_TENANT_AND_TYPE, by="tests", reason="why", refuse_new=True)
    rivals = Pause(scope=PauseScope.TENANT, tenant_id="rival")
    await pause(operator, rivals, by="tests", reason="why", refuse_new=True)

    assert {} == await find_refusals(api, [("process_image", Lane.GENERAL, TENANT)])
