"""Slots are for what waits, children for what computes: two workers and a flood of pictures.

Judged by the rows of attempts, which have every claim and every end.
"""

import signal
from uuid import uuid4

import pytest

from imagefleet.store.database import Connection
from tests.support.eventually import eventually
from tests.support.fixtures import emulator, place
from tests.support.fleet import Place, Running, running
from tests.support.images import quadrants, saved

__all__ = ["emulator", "place"]

FLOOD = 16
ONE_CHILD = {"RENDER_CHILDREN": "1"}
AT_ONCE = """
SELECT max((SELECT count(*) FROM attempts AS other
             WHERE other.worker_id = one.worker_id
               AND other.claimed_at <= one.claimed_at AND other.ended_at > one.claimed_at))
  FROM attempts AS one
"""
BY_WORKER = "SELECT count(*) FROM attempts WHERE outcome = 'completed' GROUP BY worker_id"
AFTER_THE_FIRST_WAS_DONE = """
SELECT count(*)
  FROM attempts
 WHERE claimed_at > (SELECT min(ends.last)
                       FROM (SELECT max(ended_at) AS last FROM attempts
                              WHERE outcome = 'completed' GROUP BY worker_id) AS ends)
"""
HELD = """
SELECT count(*) FROM jobs JOIN workers ON workers.id = jobs.locked_by
 WHERE workers.pid = $1 AND jobs.state = 'processing'
"""
AFTER_THE_DRAIN = """
SELECT attempts.outcome, attempts.why, attempts.charged
  FROM attempts JOIN workers ON workers.id = attempts.worker_id
 WHERE workers.pid = $1 AND attempts.ended_at > workers.draining_since
 ORDER BY attempts.outcome
"""
LATE = """
SELECT count(*) FROM attempts JOIN workers ON workers.id = attempts.worker_id
 WHERE attempts.claimed_at > workers.draining_since
"""

pytestmark = pytest.mark.timeout(120)


async def flood(place: Place, api: Connection) -> None:
    """All have their message before anybody has said what there is room for."""
    picture = saved(quadrants(4000, 3000))
    for _ in range(FLOOD):
        await place.upload(api, uuid4(), picture)


async def all_completed(superuser: Connection, *workers: Running) -> None:
    async def nothing_open() -> bool:
        left = await superuser.fetch("SELECT state FROM jobs WHERE finished_at IS NULL")
        assert [] == left, "\n".join(worker.story() for worker in workers)
        return True

    await eventually(nothing_open, within=90)


async def test_no_worker_holds_more_pictures_than_it_has_children_and_one_more(
    place: Place, api: Connection, superuser: Connection
) -> None:
    await flood(place, api)
    async with (
        running(place, "worker", environment=ONE_CHILD) as one,
        running(place, "worker", environment=ONE_CHILD) as other,
        running(place, "maintenance"),
    ):
        await all_completed(superuser, one, other)

    assert 2 == await superuser.fetchval(AT_ONCE)
    shares = [row["count"] for row in await superuser.fetch(BY_WORKER)]
    assert FLOOD == sum(shares)
    assert FLOOD / 4 <= min(shares) < FLOOD
    # They end together: who has nothing left leaves nothing to the other that it could have made.
    assert 2 >= await superuser.fetchval(AFTER_THE_FIRST_WAS_DONE)


async def test_while_maintenance_is_away_what_has_no_room_keeps_its_message(
    place: Place, api: Connection, superuser: Connection
) -> None:
    await flood(place, api)
    patient = {"RECEIVE_WAIT_SECONDS": "20"}
    async with running(place, "worker", environment=ONE_CHILD | patient) as alone:
        await all_completed(superuser, alone)

    assert 2 == await superuser.fetchval(AT_ONCE)


async def test_what_a_worker_that_ends_has_not_begun_to_render_is_for_the_other_at_once(
    place: Place, api: Connection, superuser: Connection
) -> None:
    await flood(place, api)
    async with (
        running(place, "worker", environment=ONE_CHILD) as one,
        running(place, "worker", environment=ONE_CHILD) as other,
        running(place, "maintenance"),
    ):

        async def holds_two() -> bool:
            held: int = await superuser.fetchval(HELD, one.process.pid)
            return held == 2

        await eventually(holds_two, within=30)
        one.signal(signal.SIGTERM)
        assert 0 == await one.ends(), one.story()
        await all_completed(superuser, other)

    ends = [tuple(row) for row in await superuser.fetch(AFTER_THE_DRAIN, one.process.pid)]
    assert 1 >= sum(outcome == "completed" for outcome, _, _ in ends), ends
    assert {("released", "drain", False)} >= {end for end in ends if end[0] != "completed"}
    assert 0 == await superuser.fetchval(LATE)
