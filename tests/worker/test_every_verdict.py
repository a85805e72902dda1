"""Every verdict happens to a real worker on a real queue, and its message is treated as it says."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

import pytest

from imagefleet.jobs.model import (
    CancelCode,
    JobId,
    JobMessage,
    JobState,
    Lane,
    PauseScope,
    Submission,
    Verdict,
    encode_message,
    new_job_id,
)
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import force_open
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.worker import messages
from tests.support.eventually import eventually
from tests.support.factories import a_job, a_submission
from tests.support.fleet import Inside, Place, inside
from tests.support.rows import job_row, ring_row

TARGET = "photo"
LIMITED = {"WORKER_LANES": "fast", "WORKER_JOB_TYPES": "noop"}

Message: TypeAlias = Literal["deleted", "waits", "comes back", "buried"]


@dataclass(frozen=True, slots=True)
class Scene:
    worker: Connection
    superuser: Connection
    stack: AsyncExitStack

    async def made(
        self,
        state: JobState = JobState.QUEUED,
        submission: Submission | None = None,
        *,
        lock_expired: bool = False,
    ) -> JobId:
        job = await a_job(
            self.worker,
            self.superuser,
            state=state,
            lock_expired=lock_expired,
            submission=submission or a_submission(target=TARGET),
        )
        return job.job_id

    async def submitted(self, submission: Submission) -> JobId:
        return (await submit_job(self.worker, submission)).job_id


How: TypeAlias = Callable[[Scene], Awaitable[JobId]]


async def behind_another(scene: Scene) -> JobId:
    await scene.made(JobState.PROCESSING)
    return await scene.made()


async def paused(scene: Scene) -> JobId:
    await pause(scene.superuser, Pause(scope=PauseScope.ALL), by="tests", reason="a test")
    return await scene.made()


async def behind_a_breaker(scene: Scene) -> JobId:
    await force_open(scene.superuser, "s3", by="tests")
    return await scene.made(submission=a_submission(services=("s3",)))


async def flagged(scene: Scene) -> JobId:
    job_id = await scene.made()
    await cancel_job(scene.worker, job_id, code=CancelCode.CANCELLED, detail=None)
    return job_id


async def contended(scene: Scene) -> JobId:
    """Somebody holds the row until the end of the test."""
    job_id = await scene.made()
    await scene.stack.enter_async_context(scene.superuser.transaction())
    await scene.superuser.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", job_id)
    return job_id


async def rung_in_another_lane(scene: Scene) -> JobId:
    job_id = await scene.made(submission=a_submission(lane=Lane.GENERAL))
    await scene.superuser.execute("UPDATE rings SET lane = 'fast'")
    return job_id


async def nobodys(scene: Scene) -> JobId:
    return new_job_id()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    how: How
    message: Message
    state: str | None
    times: int = 1
    """How often the verdict is told until then."""
    rings_in: tuple[int, int] | None = None
    """Seconds until the ring row is due, which knows of no message; None: there is none."""


HOUR = timedelta(hours=1)
SOON = (-30, 1)  # a second after it was told, some time ago
PARKED = (0, 0)  # until its target is free


def later() -> Submission:
    return a_submission(run_at=datetime.now(UTC) + HOUR)


CASES: dict[Verdict, Case] = {
    Verdict.CLAIMED: Case(how=lambda s: s.made(), message="deleted", state="completed"),
    Verdict.CANCELLED: Case(how=flagged, message="deleted", state="failed"),
    Verdict.FINISHED: Case(
        how=lambda s: s.made(JobState.COMPLETED), message="deleted", state="completed"
    ),
    Verdict.BUSY: Case(
        how=lambda s: s.made(JobState.PROCESSING),
        message="comes back",
        times=2,
        state="processing",
    ),
    Verdict.NOT_DUE: Case(
        how=lambda s: s.submitted(later()), message="deleted", state="queued", rings_in=(3500, 3600)
    ),
    Verdict.TARGET_BUSY: Case(
        how=behind_another, message="deleted", state="queued", rings_in=PARKED
    ),
    Verdict.PAUSED: Case(how=paused, message="deleted", state="queued", rings_in=SOON),
    Verdict.BREAKER: Case(how=behind_a_breaker, message="deleted", state="queued", rings_in=SOON),
    Verdict.EXHAUSTED: Case(
        how=lambda s: s.made(
            JobState.PROCESSING,
            lock_expired=True,
            submission=a_submission(target=TARGET, max_attempts=1),
        ),
        message="deleted",
        state="failed",
    ),
    Verdict.UNROUTABLE: Case(
        how=lambda s: s.made(submission=a_submission(type="cancel_job")),
        message="deleted",
        state="queued",
        rings_in=SOON,
    ),
    Verdict.ELSEWHERE: Case(
        how=rung_in_another_lane,
        message="deleted",
        state="queued",
        rings_in=(-30, 0),
    ),
    Verdict.CONTENDED: Case(
        how=contended, message="comes back", times=2, state="queued", rings_in=(-60, 60)
    ),
    Verdict.UNKNOWN: Case(how=nobodys, message="buried", times=5, state=None),
    Verdict.UNREADABLE: Case(how=nobodys, message="buried", state=None),
}


def test_there_is_a_case_for_every_verdict() -> None:
    assert set(Verdict) == set(CASES)


@pytest.mark.parametrize("verdict", CASES)
async def test_each_verdict_happens_and_its_message_goes_where_it_should(
    verdict: Verdict,
    place: Place,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each of the five receives of an unknown job is ten seconds after the one before.
    monkeypatch.setattr(messages, "UNKNOWN_FOR", timedelta(0))
    monkeypatch.setattr(messages, "BUSY_FOR", timedelta(seconds=1))
    case = CASES[verdict]
    async with AsyncExitStack() as stack:
        job_id = await case.how(Scene(worker, superuser, stack))
        body = encode_message(JobMessage(job_id=job_id))
        async with inside(place, "worker", environment=LIMITED) as running:
            await place.send(Lane.FAST, "not ours" if verdict is Verdict.UNREADABLE else body)
            await eventually(lambda: has_told(running, verdict, case.times), within=10)
            await eventually(lambda: went(place, case.message), within=10)
            # Once, unless it comes back for as long as anybody listens.
            assert case.message == "comes back" or case.times == await told(running, verdict)
        # It has ended, and with it all that it still had to say of the message.
        assert await went(place, case.message)
        if case.message == "buried":
            (dead,) = await (await place.dead_letters()).receive(most=1, wait=timedelta(0))
            reason = "unknown_job" if verdict is Verdict.UNKNOWN else "unreadable"
            assert reason == dead.attributes["reason"]
    if case.state is not None:
        await is_left(superuser, job_id, case)


async def test_the_second_message_of_a_job_is_soon_gone_when_the_job_is_done(
    place: Place, api: Connection, superuser: Connection
) -> None:
    """Whoever scales by the queue sees that it is done."""
    async with inside(place, "worker", environment=LIMITED) as running:
        submission = a_submission(payload={"milliseconds": 1500})
        await place.submit(api, submission)
        await place.ring(submission)
        await eventually(lambda: has_told(running, Verdict.BUSY, 1), within=10)
        await eventually(lambda: went(place, "deleted"), within=20)

    row = await job_row(superuser, submission.job_id)
    assert ("completed", 1) == (row["state"], row["claim_no"])


async def has_told(running: Inside, verdict: Verdict, times: int) -> bool:
    return times <= await told(running, verdict)


async def told(running: Inside, verdict: Verdict) -> float:
    return await running.counted(f'claim_verdict_total{{verdict="{verdict}"}}')


async def went(place: Place, message: Message) -> bool:
    lane = await (await place.queue(Lane.FAST)).depth()
    dead = await (await place.dead_letters()).depth()
    kept, buried = lane.visible + lane.in_flight, dead.visible + dead.in_flight
    if message == "waits" and lane.visible:
        return False
    where = {"deleted": (0, 0), "waits": (1, 0), "comes back": (1, 0), "buried": (0, 1)}
    return where[message] == (kept, buried)


async def is_left(superuser: Connection, job_id: JobId, case: Case) -> None:
    row, ring = await job_row(superuser, job_id), await ring_row(superuser, job_id)
    assert case.state == row["state"]
    assert (case.rings_in is None) == (ring is None)
    if case.rings_in is not None:
        assert ring is not None
        least, most = case.rings_in
        assert ring["sent_at"] is None
        assert ring["parked"] is (case.rings_in == PARKED)
        assert ring["parked"] or least <= ring["next_in"].total_seconds() <= most
        assert row["lane"] == ring["lane"]
