"""A flood in one lane does not hold up the other: judged by the order of claims, not by a clock."""

from dataclasses import replace

import pytest

from imagefleet.jobs.model import JobMessage, Lane, Submission, encode_message
from imagefleet.store.database import Connection
from imagefleet.store.jobs.submissions import submit_jobs
from tests.support.eventually import eventually
from tests.support.factories import a_submission
from tests.support.fixtures import emulator, place
from tests.support.fleet import Place, inside, running

__all__ = ["emulator", "place"]

FLOOD = 200
FEW_SLOTS = {"WORKER_FAST_SLOTS": "1", "WORKER_GENERAL_SLOTS": "2"}
ONCE_AT_MOST = {Lane.FAST: 3, Lane.GENERAL: 2}  # general slots help out; a fast one waits for fast
LATER = """
SELECT count(*) FROM jobs AS flood, jobs AS other
 WHERE other.id = $1 AND flood.lane <> other.lane AND flood.claimed_at > other.finished_at
"""
# A claim begins after the end of the attempt whose slot it takes.
AT_ONCE = """
SELECT max((SELECT count(*) FROM attempts AS other
             WHERE other.lane = one.lane
               AND other.claimed_at <= one.claimed_at AND other.ended_at > one.claimed_at))
  FROM attempts AS one
 WHERE one.lane = $1
"""


async def submit(place: Place, api: Connection, jobs: list[Submission]) -> None:
    await submit_jobs(api, jobs)
    bodies = [encode_message(JobMessage(job_id=job.job_id)) for job in jobs]
    await place.send(jobs[0].lane, *bodies)


@pytest.mark.parametrize(
    ("flooded", "other"), [(Lane.FAST, Lane.GENERAL), (Lane.GENERAL, Lane.FAST)]
)
async def test_a_flood_in_one_lane_leaves_room_for_the_other(
    place: Place, api: Connection, superuser: Connection, flooded: Lane, other: Lane
) -> None:
    work = a_submission(lane=flooded, payload={"milliseconds": 50})
    flood = [replace(work, job_id=a_submission().job_id) for _ in range(FLOOD)]
    one = a_submission(lane=other)
    await submit(place, api, flood)
    async with running(place, "worker", started=False, environment=FEW_SLOTS):

        async def flood_runs() -> bool:
            return bool(await superuser.fetchval("SELECT count(*) FROM jobs WHERE claim_no > 0"))

        await eventually(flood_runs, within=30)
        await submit(place, api, [one])

        async def all_completed() -> bool:
            left = await superuser.fetchval("SELECT count(*) FROM jobs WHERE finished_at IS NULL")
            assert left == 0
            return True

        await eventually(all_completed, within=40)

    assert 0 < await superuser.fetchval(LATER, one.job_id)
    assert ONCE_AT_MOST[flooded] == await superuser.fetchval(AT_ONCE, flooded)
    assert {"completed"} == {
        row["state"] for row in await superuser.fetch("SELECT DISTINCT state FROM jobs")
    }


async def test_in_a_shared_lane_each_job_finds_the_worker_that_takes_its_type(
    place: Place, api: Connection, superuser: Connection
) -> None:
    """Whoever receives it first says so by deleting its message: no receive of it is used up."""
    jobs = [a_submission() for _ in range(12)]
    async with inside(place, "worker", environment={"WORKER_JOB_TYPES": "process_image"}) as other:
        await submit(place, api, jobs)

        async def some_came_to_the_wrong_one() -> bool:
            return await other.counted('claim_verdict_total{verdict="unroutable"}') > 0

        await eventually(some_came_to_the_wrong_one, within=40)
        async with (
            running(place, "worker", environment={"WORKER_JOB_TYPES": "noop"}),
            running(place, "maintenance"),
        ):

            async def all_completed() -> bool:
                left = await superuser.fetchval(
                    "SELECT count(*) FROM jobs WHERE state <> 'completed'"
                )
                assert left == 0
                return True

            await eventually(all_completed, within=40)

    assert await superuser.fetchval("SELECT max(attempts) FROM jobs") == 1
    depth = await (await place.dead_letters()).depth()
    assert (depth.visible, depth.in_flight) == (0, 0)
