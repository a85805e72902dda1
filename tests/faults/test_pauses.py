"""What a pause holds back waits without a message, says why, and runs when somebody resumes it.

A real API, worker and maintenance; the operator is at the command line. The job type `guarded` of
tests/faults/brought asks that a failed job pauses its target.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

import asyncpg
import pytest
import pytest_asyncio

from imagefleet.store.database import Connection
from tests.faults.director import Reached
from tests.faults.recovering import BROUGHT, ROOT
from tests.support.eventually import eventually
from tests.support.stack import PLUGIN, Producer, Stack, running_stack

SETTINGS: Final = {
    "all": {
        "PYTHONPATH": os.pathsep.join(map(str, (PLUGIN, BROUGHT, ROOT))),
        "BACKOFF_BASE_SECONDS": "1",
    },
    "maintenance": {"RESCUE_AFTER": "3"},
}
WAITING: Final = """
SELECT rings.sent_at, rings.next_at = 'infinity' AS parked
  FROM jobs
  JOIN rings ON rings.job_id = jobs.id
 WHERE jobs.id = ANY ($1::uuid[]) AND jobs.state = 'queued'
"""
SOON: Final = timedelta(seconds=10)  # of which the command line takes two
COMPLETED: Final = """
SELECT claimed_at, finished_at FROM jobs
 WHERE id = ANY ($1::uuid[]) AND state = 'completed'
 ORDER BY id
"""

pytestmark = [pytest.mark.timeout(150), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(workers=1, settings=SETTINGS) as stack:
        yield stack
        assert [] == await stack.breaches(backoff_base=1)


@pytest_asyncio.fixture(loop_scope="module")
async def owner(stack: Stack) -> AsyncIterator[Connection]:
    async with stack.database() as owner:
        yield owner


async def operate(stack: Stack, *arguments: str) -> str:
    """What the command line says to an operator."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "imagefleet", *arguments),
        env={
            **os.environ,  # noqa: TID251 - as from a terminal
            "IMAGEFLEET_URL": stack.facts["api_url"],
            "IMAGEFLEET_KEY": stack.facts["operator_key"],
            "COLUMNS": "300",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaint = await process.communicate()
    assert process.returncode == 0, complaint.decode()
    return said.decode()


async def submit(producer: Producer, about: str, **payload: object) -> str:
    answer = await producer.submit("guarded", {"about": about, **payload})
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["jobId"]
    return job_id


async def held_back(owner: Connection, job_ids: Sequence[str], *, parked: bool = False) -> None:
    """All of them wait, and none has a message any more; at a target, none has a time either."""

    async def waiting() -> bool:
        rows = await owner.fetch(WAITING, job_ids)
        assert [(None, parked)] * len(job_ids) == [tuple(row) for row in rows], rows
        return True

    await eventually(waiting, within=30)


async def ran_soon(
    owner: Connection, job_ids: Sequence[str], since: datetime
) -> list[asyncpg.Record]:
    """They complete, and the first was claimed a look or two after the resume."""

    async def completed() -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await owner.fetch(COMPLETED, job_ids)
        assert len(rows) == len(job_ids)
        return rows

    rows = await eventually(completed, within=90)
    first = min(row["claimed_at"] for row in rows)
    assert since <= first < since + SOON
    return rows


async def resume_target(
    stack: Stack,
    owner: Connection,
    about: str,
    failed: str,
    behind: Sequence[str],
) -> None:
    """Find out why these jobs wait, end that, and see them run at once."""
    target = f"guarded:{about}"
    why = f"by policy, until somebody lifts it: job {failed} failed"
    for job_id in behind:
        explained = await operate(stack, "jobs", "explain", job_id)
        assert f"The target {target} of demo is paused since" in explained
        assert why in " ".join(explained.split())
    (line,) = [
        line for line in (await operate(stack, "queue", "pauses")).splitlines() if target in line
    ]
    assert "policy" in line
    assert f"job {failed} failed" in line

    now = await owner.fetchval("SELECT now()")
    said = await operate(
        stack, "queue", "resume", "--target", target, "--tenant", "demo", "--reason", "x"
    )

    assert f"target {target} of demo is resumed" in said
    first, *others = await ran_soon(owner, behind, now)
    assert all(first["finished_at"] <= other["claimed_at"] for other in others)


async def test_a_failed_job_holds_back_its_target_until_somebody_resumes_it(
    stack: Stack, producer: Producer, owner: Connection
) -> None:
    failing = await submit(producer, "shelf", permanent=True, milliseconds=1500)
    behind = [await submit(producer, "shelf") for _ in range(2)]
    elsewhere = await submit(producer, "another shelf")

    assert "failed" == (await producer.ended(failing))["status"]
    assert "completed" == (await producer.ended(elsewhere))["status"]
    await held_back(owner, behind, parked=True)
    await resume_target(stack, owner, "shelf", failing, behind)


async def test_a_job_that_maintenance_gives_up_holds_back_its_target_as_well(
    stack: Stack, producer: Producer, owner: Connection
) -> None:
    director = stack.director
    with director.closing("claimed"):
        killer = await submit(producer, "box")

        def decide(reached: Reached) -> Literal["go", "kill"]:
            mine = reached.point == "claimed" and killer in reached.jobs
            return "kill" if mine else "go"

        note, director.decide = director.decide, decide
    try:
        ended = await producer.ended(killer, within=90)
    finally:
        director.decide = note
    assert "poison" == ended["failure"]["code"]
    assert 3 == director.killed[killer]

    behind = await submit(producer, "box")
    await held_back(owner, [behind], parked=True)
    await resume_target(stack, owner, "box", killer, [behind])


@pytest.mark.parametrize(
    ("scope", "named"),
    [
        (("--type", "guarded"), "The type guarded is paused"),
        (("--lane", "general"), "The lane general is paused"),
    ],
    ids=["type", "lane"],
)
async def test_what_a_pause_held_back_is_announced_at_once_when_it_is_lifted(
    stack: Stack,
    producer: Producer,
    owner: Connection,
    scope: tuple[str, str],
    named: str,
) -> None:
    await operate(stack, "queue", "pause", *scope, "--reason", "a bad day")
    held = [await submit(producer, f"{scope[1]} {number}") for number in range(3)]
    await held_back(owner, held)
    # Another type, in another lane.
    (other,) = await producer.submit_many(1)
    assert "completed" == (await producer.ended(other))["status"]
    explained = await operate(stack, "jobs", "explain", held[0])
    assert named in explained
    assert "until somebody lifts it: a bad day" in " ".join(explained.split())

    now = await owner.fetchval("SELECT now()")
    said = await operate(stack, "queue", "resume", *scope, "--reason", "x")

    assert f"{scope[0].removeprefix('--')} {scope[1]} is resumed" in said
    await ran_soon(owner, held, now)
