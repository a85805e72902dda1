"""How a worker ends: real processes, real signals, idle and at work, once and twice.

One that is killed outright is in tests/maintenance/test_main.py, with what becomes of its job.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import pytest

from imagefleet.jobs.model import JobId, Lane
from imagefleet.runtime import Drain
from imagefleet.store.database import Connection
from imagefleet.store.fleet.workers import request_drain
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.worker.consumer import Consumer
from imagefleet.worker.lease import ASKED_TO_DRAIN
from tests.support.eventually import eventually
from tests.support.factories import a_submission, a_worker, claim_job, expire_lock
from tests.support.fleet import Inside, Line, Place, Running, inside, running
from tests.support.rows import attempts_rows, job_row
from tests.support.wires import Gate, Wire, a_wire, gate_before

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


async def test_a_worker_that_is_idle_in_every_lane_ends_with_its_long_polls(
    place: Place, superuser: Connection
) -> None:
    """Nothing ran, nothing was given back; and what is sent afterwards is lost to no poll."""
    async with running(place, "worker", environment=LONG_POLLS) as worker:
        assert 0 == await worker.drains(), worker.story()

    assert "stopped" == await died(superuser)
    (line,) = worker.told("worker.ended")
    assert line["holds_nothing"] is True
    assert ("SIGTERM", 0, 0, 0) == told_of(line)
    assert [] == worker.told("drain.grace_over") + worker.told("process.failed")
    for lane in Lane:
        await place.submit(superuser, a_submission(lane=lane))
        await eventually(partial(is_visible, place, lane), within=5)


async def test_a_worker_that_an_operator_drains_finishes_what_runs_and_takes_nothing_new(
    place: Place, api: Connection, operator: Connection, superuser: Connection
) -> None:
    async with running(place, "worker") as worker:
        job_id = await at_work(place, api, worker, milliseconds=3_000)
        (asked,) = await superuser.fetch("SELECT id FROM workers")
        assert await request_drain(operator, asked["id"])
        await worker.tells("process.draining")
        later = a_submission(lane=Lane.GENERAL)
        await place.submit(api, later)
        assert 0 == await worker.ends(), worker.story()

    assert "completed" == (await job_row(superuser, job_id))["state"]
    assert "queued" == (await job_row(superuser, later.job_id))["state"]
    await eventually(partial(is_visible, place, Lane.GENERAL), within=5)
    assert "stopped" == await died(superuser)
    assert (ASKED_TO_DRAIN, 1, 0, 0) == told_of(worker.told("worker.ended")[0])


@asynccontextmanager
async def behind_a_gate(place: Place, **settings: str) -> AsyncIterator[tuple[Gate, Running]]:
    """A worker whose Postgres can go away."""
    parts = urlsplit(place.database.url("worker"))
    async with gate_before(parts.hostname or "", parts.port or 0) as gate:
        login = parts.netloc.rpartition("@")[0]
        url = parts._replace(netloc=f"{login}@127.0.0.1:{gate.port}").geturl()
        quick = {"DATABASE_URL": url, "DATABASE_CONNECT_TIMEOUT_SECONDS": "1", **settings}
        async with running(place, "worker", environment=quick) as worker:
            yield gate, worker


async def test_a_worker_that_can_tell_nobody_of_its_end_ends_with_an_error(
    place: Place, superuser: Connection
) -> None:
    """Postgres is away: the registry still has it, and whoever started it is told."""
    async with behind_a_gate(place) as (gate, worker):
        gate.close()
        assert 1 == await worker.drains(), worker.story()

    assert await died(superuser) is None, "the rescuer will find out"
    (line,) = worker.told("worker.ended")
    assert "database_unavailable" == line["code"]
    assert ("SIGTERM", 0, 0, 0) == told_of(line)
    assert "database_unavailable" == worker.told("process.failed")[0]["code"]
    assert [] == worker.errors, "an outage is no bug: nobody reads a stack for it"


async def test_what_it_cannot_give_back_is_told_as_abandoned(
    place: Place, api: Connection, superuser: Connection
) -> None:
    """The grace is over, and so is the time to settle what was stopped then."""
    async with behind_a_gate(place, SHUTDOWN_GRACE_PERIOD_SECONDS="0") as (gate, worker):
        job_id = await at_work(place, api, worker, milliseconds=60_000)
        gate.close()
        worker.signal(signal.SIGTERM)
        assert 1 == await worker.ends(within=40), worker.story()

    assert ("SIGTERM", 0, 0, 1) == told_of(worker.told("worker.ended")[0])
    assert "processing" == (await job_row(superuser, job_id))["state"]


@asynccontextmanager
async def by_wire(place: Place, **settings: str) -> AsyncIterator[tuple[Wire, Running]]:
    """A worker whose answers can be lost."""
    async with AsyncExitStack() as stack:
        wire = await stack.enter_async_context(a_wire(place.database.url("worker")))
        environment = {"DATABASE_URL": wire.url, "DATABASE_CONNECT_TIMEOUT_SECONDS": "1"}
        environment |= settings
        yield (
            wire,
            await stack.enter_async_context(running(place, "worker", environment=environment)),
        )


async def settled_unheard(place: Place, api: Connection, wire: Wire) -> JobId:
    """A job that this worker completes, and does not learn of it."""
    submission = a_submission()
    wire.once_after, wire.cut_after = b"SET state = 'completed'", submission.job_id.bytes
    await place.submit(api, submission)
    return submission.job_id


async def exhausted_unheard(place: Place, api: Connection, wire: Wire) -> JobId:
    """A job of somebody dead that the claim of this worker ends, and it does not learn of it."""
    submission = a_submission(max_attempts=1)
    async with place.database.connect("superuser") as superuser:
        await submit_job(superuser, submission)
        await claim_job(superuser, submission.job_id, worker_id=await a_worker(superuser))
        await expire_lock(superuser, submission.job_id)
    wire.cut_after = submission.job_id.bytes
    await place.ring(submission)
    return submission.job_id


UNHEARD = {"completed": settled_unheard, "exhausted": exhausted_unheard}


@pytest.mark.parametrize("outcome", UNHEARD)
async def test_what_it_ended_unheard_is_told_once_postgres_is_back(
    place: Place, api: Connection, superuser: Connection, outcome: str
) -> None:
    """It was told to end meanwhile, and asked more than once in vain."""
    async with by_wire(place) as (wire, worker):
        job_id = await UNHEARD[outcome](place, api, wire)
        await eventually(partial(has_ended, superuser, job_id, outcome), within=10)
        await drain_begins(worker)
        before = wire.lost
        await eventually(lambda: wire.lost > before + 5, within=15)
        assert [] == worker.told(f"job.{outcome}")
        wire.mend()
        assert 0 == await worker.ends(), worker.story()

    (line,) = worker.told(f"job.{outcome}")
    assert str(job_id) == line["job_id"]
    assert [] == worker.told("ends.untold")
    assert worker.told("worker.ended")[0]["holds_nothing"] is True


@pytest.mark.timeout(60)
@pytest.mark.parametrize("outcome", UNHEARD)
async def test_who_was_never_answered_says_how_many_ends_are_untold_and_fails(
    place: Place, api: Connection, superuser: Connection, outcome: str
) -> None:
    """The grace is over, and the time to settle; nobody waits for Postgres for ever."""
    async with by_wire(place, SHUTDOWN_GRACE_PERIOD_SECONDS="0") as (wire, worker):
        job_id = await UNHEARD[outcome](place, api, wire)
        await eventually(partial(has_ended, superuser, job_id, outcome), within=10)
        worker.signal(signal.SIGTERM)
        assert 1 == await worker.ends(within=40), worker.story()

    assert [1] == [line["at_most"] for line in worker.told("ends.untold")]
    assert [] == worker.told(f"job.{outcome}")
    assert [] == worker.errors


async def test_what_it_ended_unheard_is_told_though_a_part_of_it_broke(
    place: Place, api: Connection, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, run = asyncio.Event(), Consumer.run

    async def run_or_break(consumer: Consumer, drain: Drain) -> None:
        if consumer._lane is Lane.GENERAL:
            await broken.wait()
            message = "general is broken"
            raise RuntimeError(message)
        await run(consumer, drain)

    async def break_unheard(wire: Wire, worker: Inside) -> JobId:
        job_id = await exhausted_unheard(place, api, wire)
        await eventually(partial(has_ended, superuser, job_id, "exhausted"), within=10)
        before = wire.lost
        broken.set()
        await eventually(lambda: wire.lost > before + 2, within=15)
        assert [] == worker.told("job.exhausted")
        wire.mend()
        return job_id

    monkeypatch.setattr(Consumer, "run", run_or_break)
    async with a_wire(place.database.url("worker")) as wire:
        by_wire = {"DATABASE_URL": wire.url, "DATABASE_CONNECT_TIMEOUT_SECONDS": "1"}
        with pytest.raises(ExceptionGroup) as failed:
            async with inside(place, "worker", environment=by_wire) as worker:
                job_id = await break_unheard(wire, worker)

    assert failed.group_contains(RuntimeError, match="general is broken")
    assert [str(job_id)] == [line["job_id"] for line in worker.told("job.exhausted")]


async def has_ended(connection: Connection, job_id: JobId, outcome: str) -> bool:
    return outcome in {row["outcome"] for row in await attempts_rows(connection, job_id)}


async def test_a_second_signal_does_not_wait_for_postgres(
    place: Place, api: Connection, superuser: Connection
) -> None:
    async with behind_a_gate(place) as (gate, worker):
        job_id = await at_work(place, api, worker, milliseconds=60_000)
        gate.close()
        await drain_begins(worker)
        worker.signal(signal.SIGTERM)
        assert 128 + signal.SIGTERM == await worker.ends(), worker.story()

    (line,) = worker.told("worker.ended")
    assert ("SIGTERM", 0, 0, 1) == told_of(line)
    assert line["at_once"] is True
    assert "processing" == (await job_row(superuser, job_id))["state"]


async def test_its_running_job_is_finished_first(
    place: Place, api: Connection, superuser: Connection
) -> None:
    """In the midst of long polls of the other lanes; no slot, message or row is left behind."""
    async with running(place, "worker", environment=LONG_POLLS) as worker:
        # What was over by then is no part of what it tells in the end.
        await place.submit(api, a_submission())
        await worker.tells("job.completed")
        job_id = await at_work(place, api, worker, milliseconds=1500)
        assert 0 == await worker.drains(), worker.story()

    assert "completed" == (await job_row(superuser, job_id))["state"]
    assert "stopped" == await died(superuser)
    (line,) = worker.told("worker.ended")
    assert line["holds_nothing"] is True
    assert ("SIGTERM", 1, 0, 0) == told_of(line)
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
    (line,) = worker.told("worker.ended")
    assert ("SIGTERM", 0, 1, 0) == told_of(line)


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
    (told,) = worker.told("job.released")
    assert (str(job_id), "stopped") == (told["job_id"], told["why"])
    assert "SIGTERM" == worker.told("process.stopping")[0]["signal"]
    (line,) = worker.told("worker.ended")
    assert line["at_once"] is True
    assert ("SIGTERM", 0, 1, 0) == told_of(line)


def told_of(line: Line) -> tuple[object, ...]:
    """Why it ended, and what became of what ran by then."""
    return line["reason"], line["finished"], line["released"], line["abandoned"]


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
    assert worker.told("worker.ended")[0]["dead"] is True
    assert "processing" == (await job_row(superuser, job_id))["state"], "it wrote nothing"
    assert worker.told("job.lost")
