"""Rescue: whose silence counts, and who must not be condemned."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta

import pytest

from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobId, WorkerId
from imagefleet.maintenance.rescuer import LONGEST_GAP, RESCUE_AFTER, Rescuer
from imagefleet.store.database import Connection, OwnConnection
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.leases import renew_claims
from imagefleet.store.jobs.rescue import Rescue, look_at_workers, rescue_worker
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.conftest import OpenConnection
from tests.support.database import Database, driver_of
from tests.support.eventually import eventually
from tests.support.factories import (
    ALL_LANES,
    TYPES,
    a_submission,
    a_worker,
    claim_job,
)
from tests.support.races import many_connections
from tests.support.rows import attempts_rows, job_row, running_job, the_ring

NOBODY: list[Rescue] = []

# The database's clock, seen by one session only: `clock_timestamp()` of its own schema comes first
# in its search path, and this is how an hour passes in a millisecond.
CLOCK = """
CREATE TABLE IF NOT EXISTS moved (by interval NOT NULL);
INSERT INTO moved VALUES ('0');
CREATE SCHEMA clock;
CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql
RETURN pg_catalog.clock_timestamp() + (SELECT max(moved.by) FROM public.moved);
GRANT USAGE ON SCHEMA clock TO imagefleet_maintenance;
GRANT SELECT ON moved TO imagefleet_maintenance;
"""


class Clock:
    """Moves the time that the rescuer's session is told."""

    def __init__(self, superuser: Connection) -> None:
        self._superuser = superuser

    async def advance(self, span: timedelta) -> None:
        await self._superuser.execute("UPDATE moved SET by = by + $1::interval", span)


@pytest.fixture
async def clock(superuser: OpenConnection, maintenance: OpenConnection) -> Clock:
    await superuser.execute(CLOCK)
    await listen_to_the_clock(maintenance)
    return Clock(superuser)


async def listen_to_the_clock(session: OwnConnection) -> None:
    await session.execute("SET search_path = clock, pg_catalog, public")


def a_rescuer(
    *, rescue_after: timedelta = RESCUE_AFTER, longest_gap: timedelta = LONGEST_GAP
) -> Rescuer:
    return Rescuer(MaintenanceMetrics(()), rescue_after=rescue_after, longest_gap=longest_gap)


async def watch(
    rescuer: Rescuer,
    session: OwnConnection,
    clock: Clock,
    span: timedelta,
    *,
    every: timedelta = timedelta(seconds=2),
) -> int:
    """Look again and again for this long; how many workers were condemned."""
    condemned = len(await rescuer.run_once(session))
    for _ in range(span // every):
        await clock.advance(every)
        condemned += len(await rescuer.run_once(session))
    return condemned


async def many_held(
    worker: Connection, workers: int, jobs: int
) -> tuple[list[WorkerId], list[JobId]]:
    """So many jobs, dealt out to so many workers."""
    names = [await a_worker(worker) for _ in range(workers)]
    submissions = [a_submission(target=f"photo-{n}" if n % 2 else None) for n in range(jobs)]
    await submit_jobs(worker, submissions)
    ids = [submission.job_id for submission in submissions]
    for at, name in enumerate(names):
        mine = ids[at::workers]
        await claim_jobs(worker, mine, worker_id=name, lanes=ALL_LANES, types=TYPES)
    return names, ids


async def test_a_silent_worker_loses_all_its_jobs(
    worker: OpenConnection, maintenance: OpenConnection, clock: Clock
) -> None:
    (_, alive), ids = await many_held(worker, 2, 40)
    rescuer = a_rescuer()
    lost, kept = ids[0::2], ids[1::2]

    answers: list[list[Rescue]] = []
    for _ in range(16):
        await renew_claims(worker, alive, [])
        await clock.advance(timedelta(seconds=2))
        answers.append(await rescuer.run_once(maintenance))

    assert answers[:-1] == [NOBODY] * 15
    (rescue,) = answers[-1]
    assert (len(rescue.retried), len(rescue.failed)) == (20, 0)
    dues: list[timedelta] = []
    for job_id in lost:
        row, (ended,) = await job_row(worker, job_id), await attempts_rows(worker, job_id)
        ring = await the_ring(worker, job_id)
        assert (row["state"], row["attempts"], row["crashes"], row["lane"]) == (
            "failed_retryable",
            1,
            1,
            "fast",
        )
        assert row["failure_code"] == "worker_lost"
        assert (ended["outcome"], ended["why"], ended["charged"]) == (
            "rescued",
            "worker_lost",
            True,
        )
        assert ring["next_at"] == row["run_at"]
        dues.append(row["run_at"] - row["updated_at"])
    assert all(timedelta(0) <= due <= timedelta(seconds=5) for due in dues)
    assert len(set(dues)) > 10  # they do not all come back at one moment
    assert [(await job_row(worker, job_id))["state"] for job_id in kept] == ["processing"] * 20


async def test_silence_counts_from_the_first_look_and_not_from_the_last_beat(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection, clock: Clock
) -> None:
    await many_held(worker, 1, 1)
    await superuser.execute("UPDATE workers SET beat_at = now() - interval '1 day'")
    rescuer = a_rescuer()

    before = await watch(rescuer, maintenance, clock, RESCUE_AFTER - timedelta(seconds=2))
    after = await watch(rescuer, maintenance, clock, timedelta(seconds=2))

    assert (before, after) == (0, 1)


async def test_one_beat_starts_the_watch_anew(
    worker: OpenConnection, maintenance: OpenConnection, clock: Clock
) -> None:
    (me,), _ = await many_held(worker, 1, 1)
    rescuer = a_rescuer()
    await watch(rescuer, maintenance, clock, timedelta(seconds=28))
    await renew_claims(worker, me, [])

    after_the_beat = await watch(rescuer, maintenance, clock, timedelta(seconds=28))
    silent = await watch(rescuer, maintenance, clock, timedelta(seconds=2))

    assert (after_the_beat, silent) == (0, 1)


async def test_rescue_after_zero_rescues_nobody(
    worker: OpenConnection, maintenance: OpenConnection, clock: Clock
) -> None:
    await many_held(worker, 1, 1)

    answer = await watch(
        a_rescuer(rescue_after=timedelta(0)),
        maintenance,
        clock,
        timedelta(minutes=5),
    )

    assert answer == 0


async def test_an_outage_of_forty_seconds_condemns_nobody(
    worker: OpenConnection, maintenance: OpenConnection, clock: Clock
) -> None:
    """Nobody can beat, and the rescuer cannot look: its first look afterwards proves nothing."""
    _, ids = await many_held(worker, 8, 160)
    rescuer = a_rescuer()
    await watch(rescuer, maintenance, clock, timedelta(seconds=10))

    await clock.advance(timedelta(seconds=40))
    condemned = await watch(rescuer, maintenance, clock, timedelta(seconds=28))

    assert condemned == 0
    assert await worker.fetchval(HELD) == len(ids) == 160


@pytest.mark.parametrize(("gap", "condemned"), [(timedelta(seconds=-1), 1), (LONGEST_GAP, 0)])
async def test_looks_that_are_too_far_apart_are_no_watch(
    worker: OpenConnection,
    maintenance: OpenConnection,
    clock: Clock,
    gap: timedelta,
    condemned: int,
) -> None:
    await many_held(worker, 1, 1)

    every = LONGEST_GAP + gap
    answer = await watch(a_rescuer(), maintenance, clock, every * 8, every=every)

    assert answer == condemned


async def test_a_clock_that_is_set_back_starts_the_watch_anew(
    worker: OpenConnection, maintenance: OpenConnection, clock: Clock
) -> None:
    await many_held(worker, 1, 1)
    rescuer = a_rescuer()
    await watch(rescuer, maintenance, clock, timedelta(seconds=28))

    await clock.advance(-timedelta(hours=1))
    before = await watch(rescuer, maintenance, clock, timedelta(seconds=28))
    silent = await watch(rescuer, maintenance, clock, timedelta(seconds=2))

    assert (before, silent) == (0, 1)


async def test_another_session_starts_the_watch_anew(
    database: Database, worker: OpenConnection, maintenance: OpenConnection, clock: Clock
) -> None:
    await many_held(worker, 1, 1)
    rescuer = a_rescuer()
    await watch(rescuer, maintenance, clock, timedelta(seconds=28))

    async with database.connect("maintenance") as another:
        await listen_to_the_clock(another)
        await clock.advance(timedelta(seconds=2))
        before = await watch(rescuer, another, clock, timedelta(seconds=28))
        silent = await watch(rescuer, another, clock, timedelta(seconds=2))

    assert (before, silent) == (0, 1)


async def test_a_look_that_failed_starts_the_watch_anew(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection, clock: Clock
) -> None:
    """On the same session, and short: a lock that somebody held, a statement that timed out."""
    await many_held(worker, 1, 1)
    rescuer = a_rescuer()
    await watch(rescuer, maintenance, clock, timedelta(seconds=28))

    await maintenance.execute("SET lock_timeout = '10ms'")
    async with superuser.transaction():
        await superuser.execute("LOCK workers")
        with pytest.raises(Unavailable):
            await rescuer.run_once(maintenance)
    answer = await watch(rescuer, maintenance, clock, timedelta(seconds=28))

    assert answer == 0


async def test_a_worker_that_wakes_between_look_and_rescue_keeps_its_new_claims(
    worker: OpenConnection, maintenance: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(target="photo"))
    (seen,) = await look_at_workers(maintenance)

    await renew_claims(worker, me, [])
    await claim_job(worker, submitted.job_id, me)
    rescue = await rescue_worker(maintenance, seen)

    assert rescue is None
    assert (await job_row(worker, submitted.job_id))["state"] == "processing"
    assert (await renew_claims(worker, me, [])).alive
    assert await running_job(worker, "photo") == submitted.job_id


async def test_two_rescuers_rescue_a_worker_once(
    worker: OpenConnection, maintenance: OpenConnection
) -> None:
    await many_held(worker, 1, 3)
    (seen,) = await look_at_workers(maintenance)

    first = await rescue_worker(maintenance, seen)
    second = await rescue_worker(maintenance, seen)

    assert first is not None
    assert len(first.retried) == 3
    assert second is None


# A real outage, a thirtieth of the size: the backends stand still for 40 s / 30, the rescuer would
# condemn after 30 s / 30, and everybody beats every 2 s / 30.
SCALE = 30
WORKERS = 8
WAIT = "SELECT pg_sleep($1)"  # an outage has a length; the database's clock measures it
HELD = "SELECT count(*) FROM jobs WHERE state = 'processing'"


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """These backends do not run; what they were asked waits in their sockets."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def beating(
    connections: Sequence[Connection], workers: Sequence[WorkerId]
) -> AsyncIterator[asyncio.Event]:
    """Every worker beats; the event ends that."""
    silence = asyncio.Event()

    async def beat(connection: Connection, me: WorkerId) -> None:
        while not silence.is_set():
            await renew_claims(connection, me, [])
            with suppress(TimeoutError):
                await asyncio.wait_for(silence.wait(), 2 / SCALE)

    async with asyncio.TaskGroup() as group:
        for connection, me in zip(connections, workers, strict=True):
            group.create_task(beat(connection, me))
        yield silence
        silence.set()


@pytest.mark.skipif(
    "TEST_DATABASE_URL" in os.environ,  # noqa: TID251 - no setting of the product
    reason="the server's processes may be on another machine",
)
async def test_backends_that_stand_still_condemn_nobody_and_dead_workers_are_found(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    rescuer = Rescuer(
        MaintenanceMetrics(()), rescue_after=RESCUE_AFTER / SCALE, longest_gap=LONGEST_GAP / SCALE
    )
    workers, _ = await many_held(worker, WORKERS, 160)
    condemned = 0

    async def all_are_condemned() -> bool:
        nonlocal condemned
        condemned += len(await rescuer.run_once(session))
        return condemned == WORKERS

    async def look_until(enough: asyncio.Event) -> None:
        while not enough.is_set():
            await all_are_condemned()

    async with (
        database.connect("maintenance") as session,
        many_connections(database, "worker", WORKERS) as connections,
    ):
        async with beating(connections, workers), asyncio.TaskGroup() as group:
            seen_enough = asyncio.Event()
            group.create_task(look_until(seen_enough))
            await superuser.execute(WAIT, 10 / SCALE)
            with stopped([driver_of(one).get_server_pid() for one in (session, *connections)]):
                await superuser.execute(WAIT, 40 / SCALE)
            await superuser.execute(WAIT, 20 / SCALE)
            seen_enough.set()
        held = await superuser.fetchval(HELD)
        assert (condemned, held) == (0, 160)
        await eventually(all_are_condemned, within=20)
    assert await superuser.fetchval(HELD) == 0
