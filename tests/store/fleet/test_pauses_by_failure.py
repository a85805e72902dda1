"""A type may ask that a failed job pauses its target; whoever fails it need not know of that."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released, Retry
from imagefleet.jobs.model import CancelCode, JobId, JobState, Lane, PauseScope, TenantId, Verdict
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import (
    Pause,
    list_pauses,
    pause,
    resume,
)
from imagefleet.store.jobs.inspection import explain_job
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.submissions import submit_job
from tests.conftest import OpenConnection
from tests.support.database import driver_of
from tests.support.factories import (
    CORRUPT,
    TENANT,
    UNAVAILABLE,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    make_due,
    settle_job,
)

PROCESSING = JobState.PROCESSING
TARGET = "album:1"
CRASH = Retry(code="crashed", message="It crashed.", crashed=True)
UNWRITABLE = Completed(result={"a": "\0"})  # jsonb has no such character


@dataclass(frozen=True, slots=True)
class Roles:
    """Each part of the product under its own role; the superuser moves time."""

    worker: Connection
    maintenance: Connection
    superuser: Connection


@pytest.fixture
def roles(worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection) -> Roles:
    return Roles(worker, maintenance, superuser)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The job that is to end; its type asks for the pause unless told otherwise."""

    asked: bool = True
    target: str | None = TARGET
    lane: Lane = Lane.FAST
    max_attempts: int = 5
    flag: CancelCode | None = None
    flagged_before_claim: bool = False
    lock_expired: bool = False


async def running(roles: Roles, wish: Wish) -> MadeJob:
    return await a_job(
        roles.worker,
        roles.superuser,
        state=PROCESSING,
        flag=wish.flag,
        flagged_before_claim=wish.flagged_before_claim,
        lock_expired=wish.lock_expired,
        submission=a_submission(
            target=wish.target,
            lane=wish.lane,
            max_attempts=wish.max_attempts,
            pause_target_on_failure=wish.asked,
        ),
    )


End: TypeAlias = Callable[[Roles], Awaitable[MadeJob]]


def settled(outcome: Outcome, wish: Wish = Wish()) -> End:
    async def end(roles: Roles) -> MadeJob:
        job = await running(roles, wish)
        await settle_job(roles.worker, job, outcome)
        return job

    return end


def exhausted(wish: Wish) -> End:
    async def end(roles: Roles) -> MadeJob:
        job = await running(roles, wish)
        answer = await claim_job(roles.worker, job.job_id, await a_worker(roles.worker))
        assert answer.verdict is Verdict.EXHAUSTED
        return job

    return end


def rescued(wish: Wish) -> End:
    async def end(roles: Roles) -> MadeJob:
        job = await running(roles, wish)
        for seen in await look_at_workers(roles.maintenance):
            await rescue_worker(roles.maintenance, seen)
        return job

    return end


EXPIRED = Wish(lock_expired=True, max_attempts=1)
SUSPECT = Wish(lane=Lane.QUARANTINE)
EXPIRED_SUSPECT = Wish(lock_expired=True, max_attempts=1, lane=Lane.QUARANTINE)

FAILURES: dict[str, End] = {
    "a permanent error": settled(CORRUPT),
    "the last attempt": settled(UNAVAILABLE, Wish(max_attempts=1)),
    "a crash in quarantine": settled(CRASH, SUSPECT),
    "a result that cannot be written": settled(UNWRITABLE),
    "a lock that expired on the last attempt": exhausted(EXPIRED),
    "a lock that expired in quarantine": exhausted(EXPIRED_SUSPECT),
    "a worker lost in quarantine": rescued(SUSPECT),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_each_way_to_fail_pauses_the_target(name: str, roles: Roles) -> None:
    job = await FAILURES[name](roles)

    (standing,) = await list_pauses(roles.worker)
    named = (standing.scope, standing.tenant, standing.name)
    assert (PauseScope.TARGET, TENANT, TARGET) == named
    assert ("policy", f"job {job.job_id} failed") == (standing.paused_by, standing.reason)
    assert not standing.refuse_new


NO_FAILURES: dict[str, End] = {
    "completed": settled(Completed()),
    "to be retried": settled(UNAVAILABLE),
    "released": settled(Released(why="drain")),
    "its worker was lost": rescued(Wish()),
    "cancelled": settled(UNAVAILABLE, Wish(flag=CancelCode.CANCELLED)),
    "cancelled before it was claimed": settled(
        Released(why="flagged"), Wish(flag=CancelCode.CANCELLED, flagged_before_claim=True)
    ),
    "cancelled, and its worker was lost": rescued(
        Wish(flag=CancelCode.CANCELLED, lane=Lane.QUARANTINE)
    ),
    "its image was deleted": settled(UNAVAILABLE, Wish(flag=CancelCode.IMAGE_DELETED)),
    "ended by an operator": settled(
        Released(why="drain"), Wish(flag=CancelCode.FAILED_BY_OPERATOR)
    ),
    "a failure of a type that does not ask": settled(CORRUPT, Wish(asked=False)),
    "a poison of a type that does not ask": rescued(Wish(asked=False, lane=Lane.QUARANTINE)),
    "a failure of a job without a target": settled(CORRUPT, Wish(target=None)),
}


@pytest.mark.parametrize("name", NO_FAILURES)
async def test_whatever_else_happens_pauses_nothing(name: str, roles: Roles) -> None:
    await NO_FAILURES[name](roles)

    assert [] == await list_pauses(roles.worker)


async def behind(roles: Roles) -> JobId:
    """Another job of the target, of a type that asks for nothing, and due."""
    job = await a_job(roles.worker, roles.superuser, submission=a_submission(target=TARGET))
    await make_due(roles.superuser, job.job_id)
    return job.job_id


@pytest.mark.parametrize("name", FAILURES)
async def test_what_is_behind_it_waits_until_somebody_resumes(
    name: str, roles: Roles, operator: OpenConnection
) -> None:
    await FAILURES[name](roles)
    waiting = await behind(roles)
    me = await a_worker(roles.worker)

    held = await claim_job(roles.worker, waiting, me)
    explained = await explain_job(operator, waiting)
    lifted = await resume(operator, Pause(scope=PauseScope.TARGET, tenant_id=TENANT, name=TARGET))

    assert (Verdict.PAUSED, f"target:{TARGET}") == (held.verdict, held.why)
    assert (held.verdict, held.why) == (explained.verdict, explained.why)
    assert 1 == lifted
    assert (await claim_job(roles.worker, waiting, me)).claim is not None


async def test_the_same_target_of_another_tenant_goes_on(roles: Roles) -> None:
    await FAILURES["a permanent error"](roles)
    other = a_submission(tenant_id=TenantId("other"), target=TARGET)
    await submit_job(roles.worker, other)

    answer = await claim_job(roles.worker, other.job_id, await a_worker(roles.worker))

    assert answer.claim is not None


async def test_a_pause_that_stands_keeps_its_own_reason(
    roles: Roles, operator: OpenConnection
) -> None:
    job = await running(roles, Wish())
    what = Pause(scope=PauseScope.TARGET, tenant_id=TENANT, name=TARGET)
    await pause(operator, what, by="ops", reason="moving house", refuse_new=True)

    receipt = await settle_job(roles.worker, job, CORRUPT)

    assert isinstance(receipt.outcome, Failed)
    (standing,) = await list_pauses(roles.worker)
    assert ("ops", "moving house", True) == (
        standing.paused_by,
        standing.reason,
        standing.refuse_new,
    )


async def test_a_failure_that_is_rolled_back_pauses_nothing(roles: Roles) -> None:
    job = await running(roles, Wish())

    undo = driver_of(roles.worker).transaction()
    await undo.start()
    await settle_job(roles.worker, job, CORRUPT)
    inside = await list_pauses(roles.worker)
    await undo.rollback()

    assert (1, []) == (len(inside), await list_pauses(roles.worker))
