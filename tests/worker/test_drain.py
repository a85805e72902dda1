"""How a worker ends: real processes, real signals, idle and at work, once and twice.

One that is killed outright is in tests/maintenance/test_main.py, with what becomes of its job.
"""

import signal

from imagefleet.jobs.model import JobId, Lane
from imagefleet.store.database import Connection
from tests.support.eventually import eventually
from tests.support.factories import a_submission
from tests.support.fleet import Place, Running, running
from tests.support.rows import attempts_rows, job_row

LONG_POLLS = {"RECEIVE_WAIT_SECONDS": "3"}


async def at_work(place: Place, api: Connection, worker: Running, *, milliseconds: int) -> JobId:
    """One noop of this length, begun."""
    submission = a_submission(payload={"milliseconds": milliseconds})
    await place.submit(api, submission)

    async def begun() -> bool:
        state = (await job_row(api, submission.job_id))["state"]
        assert "processing" == state, worker.story()
        return True

    await eventually(begun, within=10)
    return submission.job_id


async def died(superuser: Connection) -> str | None:
    why: str | None = await superuser.fetchval("SELECT dead_why FROM workers")
    return why


async def is_visible(place: Place, lane: Lane) -> bool:
    depth = await (await place.queue(lane)).depth()
    return (1, 0) == (depth.visible, depth.in_flight)


async def test_an_idle_worker_ends_and_its_running_job_is_finished_first(
    place: Place, api: Connection, superuser: Connection
) -> None:
    """In the midst of long polls of the other lanes; no slot, message or row is left behind."""
    async with running(place, "worker", environment=LONG_POLLS) as worker:
        job_id = await at_work(place, api, worker, milliseconds=1500)
        assert 0 == await worker.drains(), worker.story()

    assert "completed" == (await job_row(superuser, job_id))["state"]
    assert "stopped" == await died(superuser)
    (line,) = worker.told("worker.ended")
    assert line["holds_nothing"] is True
    assert [] == worker.told("job.released")
    depth = await (await place.queue(Lane.FAST)).depth()
    assert (0, 0) == (depth.visible, depth.in_flight)


async def test_after_the_grace_what_runs_is_given_back_uncharged(
    place: Place, api: Connection, superuser: Connection
) -> None:
    no_grace = {"SHUTDOWN_GRACE_PERIOD_SECONDS": "0"}
    async with running(place, "worker", environment=no_grace) as worker:
        job_id = await at_work(place, api, worker, milliseconds=60_000)
        assert 0 == await worker.drains(), worker.story()

    await given_back(superuser, job_id, why="drain")
    assert "stopped" == await died(superuser)


async def test_a_second_signal_ends_it_at_once_and_still_gives_back(
    place: Place, api: Connection, superuser: Connection
) -> None:
    async with running(place, "worker", environment=LONG_POLLS) as worker:
        job_id = await at_work(place, api, worker, milliseconds=60_000)
        worker.signal(signal.SIGTERM)
        await worker.tells("process.draining")
        worker.signal(signal.SIGTERM)
        assert 128 + signal.SIGTERM == await worker.ends(), worker.story()

    await given_back(superuser, job_id, why="stopped")


async def given_back(superuser: Connection, job_id: JobId, *, why: str) -> None:
    row = await job_row(superuser, job_id)
    (attempt,) = await attempts_rows(superuser, job_id)
    assert ("failed_retryable", 0) == (row["state"], row["attempts"])
    assert ("released", why, False) == (attempt["outcome"], attempt["why"], attempt["charged"])


async def test_a_message_that_arrives_during_the_drain_is_given_back_visible(
    place: Place, api: Connection, superuser: Connection
) -> None:
    """The long poll is on its way when the drain begins; what it brings is for others, now."""
    async with running(place, "worker", environment=LONG_POLLS) as worker:
        await drain_begins(worker)
        submission = a_submission(lane=Lane.GENERAL)
        await place.submit(api, submission)
        assert 0 == await worker.ends(), worker.story()

    await eventually(lambda: is_visible(place, Lane.GENERAL), within=5)
    assert "queued" == (await job_row(superuser, submission.job_id))["state"]


async def drain_begins(worker: Running) -> None:
    worker.signal(signal.SIGTERM)
    await worker.tells("process.draining")


async def test_a_worker_that_was_declared_dead_ends_with_an_error(
    place: Place, api: Connection, superuser: Connection
) -> None:
    async with running(place, "worker") as worker:
        job_id = await at_work(place, api, worker, milliseconds=60_000)
        await superuser.execute("UPDATE workers SET dead_at = now(), dead_why = 'silent'")
        assert 1 == await worker.ends(), worker.story()

    (line,) = worker.told("process.failed")
    assert "claim_lost" == line["code"]
    assert "processing" == (await job_row(superuser, job_id))["state"], "it wrote nothing"
    assert worker.told("job.lost")
