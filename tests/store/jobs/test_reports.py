"""What a tenant may read of its jobs, and page by page."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.lifecycle import Completed, Released, Retry
from imagefleet.jobs.model import (
    CancelCode,
    JobId,
    JobState,
    TenantId,
    new_job_id,
)
from imagefleet.jobs.shapes.jobs import JobView
from imagefleet.store.database import Connection
from imagefleet.store.jobs.reports import JobFilter, get_job, list_jobs
from imagefleet.store.jobs.submissions import submit_job
from tests.support.factories import (
    TENANT,
    a_job,
    a_submission,
    claim_job,
    settle_job,
)

OTHER = TenantId("other")
QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState


def test_the_public_sees_these_fields_and_no_other() -> None:
    assert {
        "job_id",
        "job_type",
        "status",
        "image_id",
        "progress",
        "failure",
        "result",
        "created_by",
        "next_attempt_at",
        "created_at",
        "updated_at",
        "finished_at",
        "links",
    } == JobView.model_fields.keys()


SECRETS = """
UPDATE jobs SET payload = '{"a": "SECRET"}', result = '{"a": "SECRET"}', fingerprint = 'SECRET',
                progress_cursor = '{"a": "SECRET"}', failure_detail = 'SECRET',
                idempotency_key = 'SECRET', dedup_key = 'SECRET', created_by = 'SECRET',
                cancel_detail = 'SECRET', replay_reason = 'SECRET', traceparent = 'SECRET',
                tracestate = 'SECRET', services = '{SECRET}'
"""


@pytest.mark.parametrize("state", list(JobState))
async def test_nothing_of_the_machinery_is_in_what_the_public_reads(
    state: JobState,
    api: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser, state=state, flag=CancelCode.CANCELLED)
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute(SECRETS)

    shown = repr(await get_job(api, job.job_id, TENANT))

    assert "SECRET" not in shown
    assert str(job.worker_id) not in shown


@pytest.mark.parametrize("filters", [JobFilter(), JobFilter(type="noop"), JobFilter(state=QUEUED)])
async def test_a_tenant_lists_its_own_jobs_only(
    filters: JobFilter, api: Connection, worker: Connection
) -> None:
    mine = await submit_job(worker, a_submission())
    await submit_job(worker, a_submission(tenant_id=OTHER))

    listed = await list_jobs(api, TENANT, filters)

    assert [mine.job_id] == [job.job_id for job in listed]


async def test_another_tenants_job_is_not_found(api: Connection, worker: Connection) -> None:
    theirs = await submit_job(worker, a_submission(tenant_id=OTHER))

    with pytest.raises(NotFound):
        await get_job(api, theirs.job_id, TENANT)


async def test_an_unknown_job_is_not_found(api: Connection) -> None:
    with pytest.raises(NotFound):
        await get_job(api, new_job_id(), TENANT)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (QUEUED, None),
        (PROCESSING, None),
        (COMPLETED, None),
        (FAILED_RETRYABLE, "unavailable"),
        (FAILED, "corrupt"),
    ],
)
async def test_a_failure_is_shown_of_a_job_that_failed(
    state: JobState,
    code: str | None,
    api: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser, state=state)

    shown = await get_job(api, job.job_id, TENANT)

    assert (state, code) == (shown.status, shown.failure and shown.failure.code)


async def test_no_failure_is_shown_of_a_job_that_was_released(
    api: Connection, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)

    await settle_job(worker, job, Released(why="drain"))

    shown = await get_job(api, job.job_id, TENANT)
    assert (FAILED_RETRYABLE, None) == (shown.status, shown.failure)


async def test_the_failure_of_an_earlier_attempt_is_not_shown_while_the_next_one_runs(
    api: Connection, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=FAILED_RETRYABLE)
    again = await claim_job(worker, job.job_id, job.worker_id)
    running = await get_job(api, job.job_id, TENANT)
    assert again.claim is not None
    await settle_job(worker, replace(job, claim_no=again.claim.claim_no), Completed())

    completed = await get_job(api, job.job_id, TENANT)

    assert [(PROCESSING, None), (COMPLETED, None)] == [
        (shown.status, shown.failure) for shown in (running, completed)
    ]


async def test_the_next_attempt_of_a_retry_is_when_it_becomes_due(
    api: Connection, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)
    later = datetime.now(UTC) + timedelta(hours=3)

    await settle_job(worker, job, Retry(code="unavailable", message="x", run_at=later))

    assert later == (await get_job(api, job.job_id, TENANT)).next_attempt_at


async def test_the_next_attempt_of_a_job_for_later_is_its_run_at(
    api: Connection, worker: Connection
) -> None:
    later = datetime.now(UTC) + timedelta(hours=3)
    job = await submit_job(worker, a_submission(run_at=later))

    assert later == (await get_job(api, job.job_id, TENANT)).next_attempt_at


@pytest.mark.parametrize("state", [QUEUED, PROCESSING, COMPLETED, FAILED])
async def test_other_jobs_have_no_next_attempt(
    state: JobState,
    api: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser, state=state)

    assert (await get_job(api, job.job_id, TENANT)).next_attempt_at is None


# Lists.


async def ids(
    api: Connection, filters: JobFilter, *, before: JobId | None = None, limit: int = 50
) -> list[JobId]:
    return [job.job_id for job in await list_jobs(api, TENANT, filters, before=before, limit=limit)]


@pytest.mark.parametrize(
    "filters",
    [
        JobFilter(),
        JobFilter(state=QUEUED),
        JobFilter(type="noop"),
        JobFilter(type="noop", state=QUEUED),
        JobFilter(correlation_id="tests"),
        JobFilter(target="image:1"),
    ],
    ids=str,
)
async def test_pages_are_whole_and_stand_still_though_jobs_keep_coming(
    filters: JobFilter, api: Connection, worker: Connection
) -> None:
    async def submit_some() -> list[JobId]:
        submissions = [a_submission(target="image:1") for _ in range(7)]
        return [(await submit_job(worker, submission)).job_id for submission in submissions]

    before_the_first_page = await submit_some()
    listed: list[JobId] = []

    while page := await ids(api, filters, before=listed[-1] if listed else None, limit=3):
        listed += page
        await submit_some()

    assert sorted(before_the_first_page, reverse=True) == listed


async def test_each_filter_shows_what_it_names(
    api: Connection, worker: Connection, superuser: Connection
) -> None:
    failed = await a_job(worker, superuser, state=FAILED)
    child = await submit_job(worker, replace(a_submission(), parent_job_id=failed.job_id))
    image = await submit_job(worker, a_submission(type="process_image", target="image:1"))
    traced = await submit_job(worker, replace(a_submission(), correlation_id="mine"))

    found = {
        "state": await ids(api, JobFilter(state=FAILED)),
        "type": await ids(api, JobFilter(type="process_image")),
        "type and state": await ids(api, JobFilter(type="noop", state=FAILED)),
        "correlation": await ids(api, JobFilter(correlation_id="mine")),
        "target": await ids(api, JobFilter(target="image:1")),
        "parent": await ids(api, JobFilter(parent_job_id=failed.job_id)),
        "nothing": await ids(api, JobFilter(type="process_image", state=FAILED)),
    }

    assert {
        "state": [failed.job_id],
        "type": [image.job_id],
        "type and state": [failed.job_id],
        "correlation": [traced.job_id],
        "target": [image.job_id],
        "parent": [child.job_id],
        "nothing": [],
    } == found


async def test_a_list_by_type_is_newest_first_across_states(
    api: Connection, worker: Connection, superuser: Connection
) -> None:
    jobs = [await a_job(worker, superuser, state=state) for state in JobState]

    newest_first = sorted((job.job_id for job in jobs), reverse=True)
    assert newest_first[:3] == await ids(api, JobFilter(type="noop"), limit=3)


@pytest.mark.parametrize(
    "filters",
    [
        JobFilter(state=QUEUED, target="image:1"),
        JobFilter(type="noop", correlation_id="x"),
        JobFilter(target="image:1", correlation_id="x"),
        JobFilter(target="image:1", parent_job_id=new_job_id()),
    ],
    ids=["state+target", "type+correlation", "target+correlation", "target+parent"],
)
async def test_filters_without_a_common_index_are_refused(
    filters: JobFilter, api: Connection
) -> None:
    with pytest.raises(RequestRejected, match="invalid_filter"):
        await list_jobs(api, TENANT, filters)
