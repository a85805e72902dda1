"""The registry: a drain begins once, and who holds a job may not leave."""

from imagefleet.jobs.model import JobState, Lane
from imagefleet.store.database import Connection
from imagefleet.store.fleet.workers import (
    find_most_memory,
    request_drain,
    retire_worker,
    start_drain,
)
from imagefleet.store.jobs.leases import renew_claims
from tests.support.factories import (
    CORRUPT,
    a_job,
    a_worker,
    settle_job,
)

# The registry.


async def test_a_drain_begins_once(worker: Connection) -> None:
    worker_id = await a_worker(worker)
    since = "SELECT draining_since FROM workers"
    await start_drain(worker, worker_id)
    first = await worker.fetchval(since)

    await start_drain(worker, worker_id)

    assert first is not None
    assert first == await worker.fetchval(since)


async def test_the_next_beat_of_a_worker_that_is_asked_to_drain_tells_it_so(
    worker: Connection, operator: Connection
) -> None:
    asked, other = await a_worker(worker), await a_worker(worker)
    before = await renew_claims(worker, asked, [])

    assert await request_drain(operator, asked)

    told = [(await renew_claims(worker, each, [])).drains for each in (asked, other)]
    assert (False, [True, False]) == (before.drains, told)


async def test_who_ends_already_is_not_asked_to_drain(
    worker: Connection, operator: Connection
) -> None:
    twice, draining, gone = [await a_worker(worker) for _ in range(3)]
    await request_drain(operator, twice)
    await start_drain(worker, draining)
    await retire_worker(worker, gone)

    assert [False] * 3 == [await request_drain(operator, each) for each in (twice, draining, gone)]


async def test_a_worker_that_holds_a_job_may_not_retire(
    worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    while_held = await retire_worker(worker, job.worker_id)
    await settle_job(worker, job, CORRUPT)

    assert (False, True) == (while_held, await retire_worker(worker, job.worker_id))


async def test_a_worker_retires_once(worker: Connection) -> None:
    worker_id = await a_worker(worker)

    first = await retire_worker(worker, worker_id)

    assert (True, False) == (first, await retire_worker(worker, worker_id))


async def test_the_most_memory_is_that_of_the_living_that_take_such_jobs(
    worker: Connection,
) -> None:
    nobody = await find_most_memory(worker, Lane.GENERAL, "noop")
    await a_worker(worker, memory_bytes=100)
    one = await find_most_memory(worker, Lane.GENERAL, "noop")
    await a_worker(worker, memory_bytes=300, lanes=[Lane.FAST])
    await a_worker(worker, memory_bytes=400, types=["other"])
    await start_drain(worker, await a_worker(worker, memory_bytes=500))
    await retire_worker(worker, await a_worker(worker, memory_bytes=600))
    await a_worker(worker, memory_bytes=200)

    assert (nobody, one) == (0, 100)
    assert await find_most_memory(worker, Lane.GENERAL, "noop") == 200


async def test_a_worker_that_does_not_say_it_gives_what_earlier_releases_gave(
    worker: Connection,
) -> None:
    await a_worker(worker)

    assert await find_most_memory(worker, Lane.GENERAL, "noop") == 2**30
