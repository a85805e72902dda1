"""What may be read of a job, page by page, and why it waits: in the words of the claim itself."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import uuid4

import pytest

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.lifecycle import Completed, Released, Retry
from imagefleet.jobs.model import (
    CancelCode,
    JobId,
    JobState,
    Lane,
    PauseScope,
    TenantId,
    Verdict,
    new_job_id,
)
from imagefleet.jobs.shapes.jobs import JobView
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import force_open
from imagefleet.store.fleet.pauses import (
    Pause,
    pause,
)
from imagefleet.store.jobs.claims import CLAIM_JOBS, claim_jobs
from imagefleet.store.jobs.inspection import (
    EXPLAIN_JOB,
    explain_job,
    get_operator_job,
    list_attempts,
)
from imagefleet.store.jobs.reports import JobFilter, get_job, list_jobs
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.jobs.verdicts import HOLDS, UNTIL, VERDICT, WHY
from tests.support.factories import (
    CORRUPT,
    TENANT,
    TYPES,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    expire_lock,
    make_due,
    open_breaker,
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
        return [(await submit_job(worker, one)).job_id for one in submissions]

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


# For operators.


async def test_an_operator_sees_every_column_of_any_tenants_job(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    theirs = await submit_job(worker, a_submission(tenant_id=OTHER))
    columns = await superuser.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'jobs'::regclass AND attnum > 0"
    )

    shown = await get_operator_job(operator, theirs.job_id)

    renamed = {"id": "job_id", "tenant_id": "tenant", "type": "job_type", "state": "status"}
    told = {"links", "ring_due_at", "announced_at", "rung"}
    told |= {renamed.get(row[0], row[0]) for row in columns}
    assert told == set(type(shown).model_fields)
    assert OTHER == shown.tenant


async def test_an_operator_is_told_when_there_is_no_such_job(operator: Connection) -> None:
    with pytest.raises(NotFound):
        await get_operator_job(operator, new_job_id())


async def test_attempts_are_listed_oldest_first(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=FAILED_RETRYABLE)
    await claim_job(worker, job.job_id, job.worker_id)
    await settle_job(worker, replace(job, claim_no=2), CORRUPT)

    attempts = await list_attempts(operator, job.job_id)

    assert [(1, "retried", "unavailable", "s3: 503"), (2, "failed", "corrupt", "bad header")] == [
        (attempt.claim_no, attempt.outcome, attempt.why, attempt.detail) for attempt in attempts
    ]


# Why does it wait? What `explain` says is compared with what a claim of the same job is told, both
# in one transaction, where now() stands still and the spans are equal to the microsecond.

Make: TypeAlias = Callable[[Connection, Connection], Awaitable[MadeJob]]
IMAGE = "image:1"


def made(**how: object) -> Make:
    async def make(worker: Connection, superuser: Connection) -> MadeJob:
        submission = how.get("submission", a_submission)
        assert callable(submission)
        arguments = how | {"submission": submission()}
        return await a_job(worker, superuser, **arguments)  # type: ignore[arg-type]

    return make


async def behind_a_running_job(worker: Connection, superuser: Connection) -> MadeJob:
    await a_job(worker, superuser, state=PROCESSING, submission=a_submission(target=IMAGE))
    return await a_job(worker, superuser, submission=a_submission(target=IMAGE))


async def preempting_behind_a_running_job(worker: Connection, superuser: Connection) -> MadeJob:
    await a_job(worker, superuser, state=PROCESSING, submission=a_submission(target=IMAGE))
    return await a_job(worker, superuser, submission=a_submission(target=IMAGE, preempts=True))


def behind_an_elder(*, preempts: bool = False, **elder: object) -> Make:
    async def make(worker: Connection, superuser: Connection) -> MadeJob:
        await a_job(worker, superuser, submission=a_submission(target=IMAGE), **elder)  # type: ignore[arg-type]
        submission = a_submission(target=IMAGE, preempts=preempts)
        return await a_job(worker, superuser, submission=submission)

    return make


def under_a_pause(what: Pause, **how: object) -> Make:
    async def make(worker: Connection, superuser: Connection) -> MadeJob:
        job = await made(submission=lambda: a_submission(target=IMAGE), **how)(worker, superuser)
        await pause(superuser, what, by="tests", reason="why")
        return job

    return make


async def preempting_under_a_pause(worker: Connection, superuser: Connection) -> MadeJob:
    await pause(superuser, Pause(scope=PauseScope.ALL), by="tests", reason="why")
    submission = a_submission(target=IMAGE, preempts=True)
    return await a_job(worker, superuser, submission=submission)


def needs_s3() -> object:
    return a_submission(services=("s3",))


async def with_an_open_breaker(worker: Connection, superuser: Connection) -> MadeJob:
    await open_breaker(worker)
    return await made(submission=needs_s3)(worker, superuser)


async def with_a_forced_breaker(worker: Connection, superuser: Connection) -> MadeJob:
    await force_open(superuser, "s3", by="tests")
    return await made(submission=needs_s3)(worker, superuser)


async def with_a_half_open_breaker(worker: Connection, superuser: Connection) -> MadeJob:
    await open_breaker(worker)
    await superuser.execute("UPDATE circuit_breakers SET retry_at = now() - interval '1 second'")
    return await made(submission=needs_s3)(worker, superuser)


async def expired_with_an_open_breaker(worker: Connection, superuser: Connection) -> MadeJob:
    job = await made(state=PROCESSING, submission=needs_s3)(worker, superuser)
    await expire_lock(superuser, job.job_id)
    await open_breaker(worker)
    return job


async def a_second_attempt(worker: Connection, superuser: Connection) -> MadeJob:
    job = await a_job(worker, superuser, state=FAILED_RETRYABLE)
    await make_due(superuser, job.job_id)
    return job


TYPE_PAUSE = Pause(scope=PauseScope.TYPE, name="noop")
SITUATIONS: dict[str, tuple[Make, Verdict]] = {
    "completed": (made(state=COMPLETED), Verdict.FINISHED),
    "failed": (made(state=FAILED), Verdict.FINISHED),
    "running": (made(state=PROCESSING), Verdict.BUSY),
    "running, flagged": (made(state=PROCESSING, flag=CancelCode.CANCELLED), Verdict.BUSY),
    "for later": (made(due=False), Verdict.NOT_DUE),
    "in backoff": (made(state=FAILED_RETRYABLE, due=False), Verdict.NOT_DUE),
    "its target runs another": (behind_a_running_job, Verdict.TARGET_BUSY),
    "preempting, its target runs another": (preempting_behind_a_running_job, Verdict.TARGET_BUSY),
    "an elder waits": (behind_an_elder(), Verdict.TARGET_BUSY),
    "an elder is in backoff": (
        behind_an_elder(state=FAILED_RETRYABLE, due=False),
        Verdict.TARGET_BUSY,
    ),
    "an elder is for later": (behind_an_elder(due=False), Verdict.CLAIMED),
    "an elder is only to be cancelled": (
        behind_an_elder(flag=CancelCode.CANCELLED),
        Verdict.CLAIMED,
    ),
    "an elder is finished": (behind_an_elder(state=COMPLETED), Verdict.CLAIMED),
    "preempting, an elder waits": (behind_an_elder(preempts=True), Verdict.CLAIMED),
    "its target is paused": (
        under_a_pause(Pause(scope=PauseScope.TARGET, name=IMAGE, tenant_id=TENANT)),
        Verdict.PAUSED,
    ),
    "its type is paused": (under_a_pause(TYPE_PAUSE), Verdict.PAUSED),
    "its lane is paused": (
        under_a_pause(Pause(scope=PauseScope.LANE, name="fast")),
        Verdict.PAUSED,
    ),
    "everything is paused": (under_a_pause(Pause(scope=PauseScope.ALL)), Verdict.PAUSED),
    "another target is paused": (
        under_a_pause(Pause(scope=PauseScope.TARGET, name="image:2", tenant_id=TENANT)),
        Verdict.CLAIMED,
    ),
    "another tenant's target is paused": (
        under_a_pause(Pause(scope=PauseScope.TARGET, name=IMAGE, tenant_id=OTHER)),
        Verdict.CLAIMED,
    ),
    "preempting, everything is paused": (preempting_under_a_pause, Verdict.CLAIMED),
    "its service is down": (with_an_open_breaker, Verdict.BREAKER),
    "its service is held by force": (with_a_forced_breaker, Verdict.BREAKER),
    "its service may be back": (with_a_half_open_breaker, Verdict.CLAIMED),
    "flagged": (made(flag=CancelCode.CANCELLED), Verdict.CANCELLED),
    "flagged, for later": (made(due=False, flag=CancelCode.CANCELLED), Verdict.CANCELLED),
    "flagged, lock expired": (
        made(state=PROCESSING, lock_expired=True, flag=CancelCode.CANCELLED),
        Verdict.CANCELLED,
    ),
    "lock expired": (made(state=PROCESSING, lock_expired=True), Verdict.CLAIMED),
    "lock expired, type paused": (
        under_a_pause(TYPE_PAUSE, state=PROCESSING, lock_expired=True),
        Verdict.BUSY,
    ),
    "lock expired, service down": (expired_with_an_open_breaker, Verdict.BUSY),
    "lock expired on the last attempt": (
        made(state=PROCESSING, lock_expired=True, submission=lambda: a_submission(max_attempts=1)),
        Verdict.EXHAUSTED,
    ),
    "of a type that nobody runs": (
        made(submission=lambda: a_submission(type="unheard_of")),
        Verdict.UNROUTABLE,
    ),
    "in a lane that nobody serves": (
        made(submission=lambda: a_submission(lane=Lane.QUARANTINE)),
        Verdict.ELSEWHERE,
    ),
    "due": (made(), Verdict.CLAIMED),
    "due for a second attempt": (a_second_attempt, Verdict.CLAIMED),
}
NO_UNTIL = {Verdict.CLAIMED, Verdict.CANCELLED, Verdict.EXHAUSTED}


@pytest.mark.parametrize("name", SITUATIONS)
async def test_explain_says_what_a_claim_is_told(
    name: str, worker: Connection, superuser: Connection
) -> None:
    make, verdict = SITUATIONS[name]
    job = await make(worker, superuser)
    lanes = (Lane.FAST, Lane.GENERAL)
    await superuser.execute("UPDATE workers SET draining_since = now()")
    asker = await a_worker(worker, lanes=lanes)

    async with superuser.transaction():
        explained = await explain_job(superuser, job.job_id)
        (told,) = await claim_jobs(
            superuser, [job.job_id], worker_id=asker, lanes=lanes, types=TYPES
        )

    assert (verdict, verdict) == (explained.verdict, told.verdict)
    assert explained.why == told.why
    assert (None if verdict in NO_UNTIL else explained.until) == told.until


def test_every_verdict_that_one_job_can_get_was_explained() -> None:
    # Two received ids are needed for `contended`, none of a job for the other two.
    of_no_single_job = {Verdict.CONTENDED, Verdict.UNKNOWN, Verdict.UNREADABLE}

    assert set(Verdict) - of_no_single_job == {verdict for _, verdict in SITUATIONS.values()}


def test_the_claim_and_explain_ask_in_the_same_words() -> None:
    for words in (VERDICT, UNTIL, WHY, HOLDS):
        assert (1, 1) == (CLAIM_JOBS.count(words), EXPLAIN_JOB.count(words))


async def test_explain_names_what_holds_a_job_back(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    elder = await a_job(worker, superuser, submission=a_submission(target=IMAGE))
    behind = await a_job(worker, superuser, submission=a_submission(target=IMAGE))

    explained = await explain_job(operator, behind.job_id)

    assert (Verdict.TARGET_BUSY, str(elder.job_id)) == (explained.verdict, explained.why)


async def test_explain_tells_when_no_living_worker_takes_such_jobs(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser)
    await superuser.execute("UPDATE workers SET dead_at = now(), dead_why = 'silent'")

    explained = await explain_job(operator, job.job_id)

    assert ((), ()) == (explained.living_lanes, explained.living_types)


async def test_explain_changes_nothing(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser)
    before = await get_operator_job(operator, job.job_id)

    await explain_job(operator, job.job_id)

    assert before == await get_operator_job(operator, job.job_id)


async def test_an_unknown_job_is_not_explained(operator: Connection) -> None:
    with pytest.raises(NotFound):
        await explain_job(operator, JobId(uuid4()))
