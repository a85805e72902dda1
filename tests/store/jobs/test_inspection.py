"""What operators see of a job, and why it does not run: by the rule that the claim obeys."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias
from uuid import uuid4

import pytest

from imagefleet.errors import NotFound
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

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState
OTHER = TenantId("other")


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
    told = {"links", "ring_due_at", "announced_at", "rung", "letter_id", "replayed_as", "children"}
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
