"""Suspects run alone: what kills its worker ends as poison, and whoever was near it completes.

In one worker that has all lanes.
"""

from collections.abc import AsyncIterator
from typing import Literal

import pytest
import pytest_asyncio

from imagefleet.store.database import Connection
from tests.faults.director import Reached
from tests.faults.killing import age_rings
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.stack import Stack, running_stack

SETTINGS = {
    "all": {"BACKOFF_BASE_SECONDS": "1"},
    "maintenance": {"RESCUE_AFTER": "3"},
}
SUSPECTS = 5
NEIGHBOURS = 6
CROWDED = 5  # with the killer: of two such crowds some were in both
LONGER_THAN_THE_SPREAD = 8000  # milliseconds: rescued jobs come back within five seconds

SUSPECTED = """
SELECT count(*) FROM jobs WHERE lane = 'quarantine' AND state = 'processing'
"""
OVERLAPS = """
SELECT count(*) FROM attempts AS one
  JOIN attempts AS other ON other.worker_id = one.worker_id AND other.job_id > one.job_id
                        AND other.claimed_at < one.ended_at AND one.claimed_at < other.ended_at
 WHERE one.lane = 'quarantine' OR other.lane = 'quarantine'
"""
PAUSE = """
INSERT INTO pauses (scope, paused_by, reason) VALUES ('all', 'tests', 'to make a suspect')
"""
SUSPECT = "UPDATE jobs SET lane = 'quarantine' WHERE id = $1"
SUSPECT_RING = (
    "UPDATE rings SET lane = 'quarantine', next_at = now(), sent_at = NULL WHERE job_id = $1"
)
ENDED_MEANWHILE = """
SELECT count(*) FROM jobs
 WHERE id = ANY ($1::uuid[])
   AND finished_at BETWEEN (SELECT min(claimed_at) FROM attempts WHERE lane = 'quarantine')
                       AND (SELECT max(ended_at) FROM attempts WHERE lane = 'quarantine')
"""

pytestmark = [pytest.mark.timeout(150), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(workers=1, settings=SETTINGS, poison=True) as stack:
        yield stack
        assert [] == await stack.breaches(backoff_base=1)


async def all_ended(owner: Connection) -> None:
    async def nothing_open() -> bool:
        await age_rings(owner)
        left = await owner.fetch("SELECT state, lane FROM jobs WHERE finished_at IS NULL")
        assert left == [], [tuple(row) for row in left]
        return True

    await eventually(nothing_open, within=90)


async def test_suspects_run_alone_and_their_worker_goes_on_between_them(stack: Stack) -> None:
    picture = saved(quadrants(40, 25)) + b"poison:suspect"
    async with stack.producer() as producer, stack.database() as owner:
        suspects = [(await producer.upload(picture)).json()["jobId"] for _ in range(SUSPECTS)]

        async def in_quarantine() -> bool:
            return bool(await owner.fetchval(SUSPECTED))

        await eventually(in_quarantine, within=30)
        others = await producer.submit_many(50, {"milliseconds": 200})
        await all_ended(owner)

        ways = await owner.fetch(
            "SELECT array_agg(lane || ' ' || why ORDER BY claim_no) AS way FROM attempts"
            " WHERE job_id = ANY ($1::uuid[]) GROUP BY job_id",
            suspects,
        )
        assert [["fast crashed", "fast crashed", "quarantine done"]] * SUSPECTS == [
            row["way"] for row in ways
        ]
        assert 0 == await owner.fetchval(OVERLAPS)
        assert 0 < await owner.fetchval(ENDED_MEANWHILE, others)


async def test_a_job_that_kills_its_workers_fails_nobody_else(stack: Stack) -> None:
    director = stack.director
    async with stack.producer() as producer, stack.database() as owner:
        with director.closing("claimed"):
            (killer,) = await producer.submit_many(1, {"milliseconds": 60_000})
            near = await producer.submit_many(NEIGHBOURS, {"milliseconds": LONGER_THAN_THE_SPREAD})

            def decide(reached: Reached) -> Literal["go", "kill"]:
                held = director.holding.get(reached.pid, set())
                if reached.point != "claimed" or killer not in held:
                    return "go"
                return "kill" if len(held) >= CROWDED or director.killed[killer] > 1 else "go"

            director.decide = decide
        try:
            await all_ended(owner)
        finally:
            director.decide = lambda _: "go"

        row = await owner.fetchrow("SELECT * FROM jobs WHERE id = $1", killer)
        assert row is not None
        assert ("failed", "poison", "quarantine") == (
            row["state"],
            row["failure_code"],
            row["lane"],
        )
        assert 1 == await owner.fetchval(
            "SELECT count(*) FROM dead_letters WHERE job_id = $1", killer
        )
        rows = await owner.fetch("SELECT * FROM jobs WHERE id = ANY ($1::uuid[])", near)
        assert {"completed"} == {row["state"] for row in rows}
        assert all(row["attempts"] <= row["max_attempts"] for row in rows)
        assert 3 == director.killed[killer] == len(stack.journal.kills)
        assert max(director.killed[one] for one in near) > 1  # they were suspects themselves


async def test_nothing_is_begun_beside_a_suspect_that_could_kill_its_worker(stack: Stack) -> None:
    director, killed_before = stack.director, len(stack.journal.kills)
    async with stack.producer() as producer, stack.database() as owner:
        await owner.execute(PAUSE)
        (suspect,) = await producer.submit_many(1, {"milliseconds": 3000})
        await owner.execute(SUSPECT, suspect)
        await owner.execute(SUSPECT_RING, suspect)
        await owner.execute("DELETE FROM pauses")

        async def in_quarantine() -> bool:
            await age_rings(owner)
            return bool(await owner.fetchval(SUSPECTED))

        await eventually(in_quarantine, within=30)
        killers = await producer.submit_many(4, {"milliseconds": 1})

        def decide(reached: Reached) -> Literal["go", "kill"]:
            held = director.holding.get(reached.pid, set())
            return "kill" if suspect in held and held & set(killers) else "go"

        director.decide = decide
        try:
            await all_ended(owner)
        finally:
            director.decide = lambda _: "go"

        row = await owner.fetchrow("SELECT * FROM jobs WHERE id = $1", suspect)
        assert row is not None
        assert ("completed", "quarantine", 1, 0) == (
            row["state"],
            row["lane"],
            row["claim_no"],
            row["crashes"],
        )
        assert killed_before == len(stack.journal.kills)
