"""What an operator turns is in force in every process within five seconds, and undone by one verb.

A real API, two workers and maintenance; the operator asks the API, or is at the command line. What
is looked at is what the processes do then.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Final

import asyncpg
import httpx
import pytest
import pytest_asyncio

from imagefleet.store.database import Connection
from tests.faults.recovering import BROUGHT, ROOT
from tests.support.eventually import eventually
from tests.support.stack import PLUGIN, Producer, Stack, running_stack

SETTINGS: Final = {
    "all": {
        "PYTHONPATH": os.pathsep.join(map(str, (PLUGIN, BROUGHT, ROOT))),
        "BACKOFF_BASE_SECONDS": "1",
    },
    "worker": {"WORKER_GENERAL_SLOTS": "6"},
}
WORKERS: Final = 2
IN_FORCE: Final = 5.0  # seconds
PATH: Final = "/v1/operator/settings"
TURNED_WAITS: Final[list[str]] = []
"""Jobs that waited longer than by the backoff of the environment, by which all are judged."""
MOST_AT_ONCE: Final = """
SELECT max(at_once.jobs)
  FROM attempts AS one
 CROSS JOIN LATERAL (
     SELECT count(*) AS jobs
       FROM attempts AS other
      WHERE other.job_id = ANY ($1::uuid[])
        AND other.claimed_at <= one.claimed_at AND one.claimed_at < other.ended_at
 ) AS at_once
 WHERE one.job_id = ANY ($1::uuid[])
"""
ATTEMPT: Final = """
SELECT attempts.outcome, jobs.run_at - attempts.ended_at AS waits
  FROM jobs JOIN attempts ON attempts.job_id = jobs.id
 WHERE jobs.id = $1
 ORDER BY attempts.claim_no
 LIMIT 1
"""

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(workers=WORKERS, settings=SETTINGS) as stack:
        yield stack
        breaches = await stack.breaches(backoff_base=1)
        assert [] == [
            breach for breach in breaches if not any(job in breach for job in TURNED_WAITS)
        ]


@pytest_asyncio.fixture(loop_scope="module")
async def operator(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with stack.producer(key="operator_key") as producer:
        yield producer.http


@pytest_asyncio.fixture(loop_scope="module")
async def owner(stack: Stack) -> AsyncIterator[Connection]:
    async with stack.database() as owner:
        yield owner


async def turn(operator: httpx.AsyncClient, name: str, value: object) -> None:
    answer = await operator.put(f"{PATH}/{name}", json={"value": value, "reason": "a test"})
    assert answer.status_code == 200, answer.text


async def turn_back(operator: httpx.AsyncClient, name: str) -> None:
    answer = await operator.delete(f"{PATH}/{name}", params={"reason": "over"})
    assert answer.status_code == 200, answer.text


async def submit(producer: Producer, job_type: str = "failing", **payload: object) -> str:
    answer = await producer.submit(job_type, payload)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["jobId"]
    return job_id


async def first_attempt(owner: Connection, job_id: str) -> asyncpg.Record:
    async def ended() -> asyncpg.Record | None:
        return await owner.fetchrow(ATTEMPT, job_id)

    return await eventually(ended, within=20)


async def test_the_api_the_workers_and_maintenance_follow_within_five_seconds(
    stack: Stack, producer: Producer, operator: httpx.AsyncClient, owner: Connection
) -> None:
    names = ("retry.*.max_attempts", "retry.*.base_seconds", "window.spare_jobs")

    async def attempts_of_a_new_job() -> int:
        job_id = await submit(producer, "noop")
        most: int = await owner.fetchval("SELECT max_attempts FROM jobs WHERE id = $1", job_id)
        return most

    async def wait_after_a_failure() -> timedelta:
        """Of as many jobs that both workers have had one."""
        jobs = [await submit(producer, times=1) for _ in range(6)]
        TURNED_WAITS.extend(jobs)
        waits: list[timedelta] = [(await first_attempt(owner, job))["waits"] for job in jobs]
        return min(waits)

    async def window() -> int:
        size: int = await owner.fetchval("SELECT min(window_size) FROM lanes")
        return size

    async def in_force() -> bool:
        assert 9 == await attempts_of_a_new_job()
        assert timedelta(seconds=290) < await wait_after_a_failure()
        assert 50 <= await window()
        return True

    async def undone() -> bool:
        assert 5 == await attempts_of_a_new_job()
        assert timedelta(seconds=10) > await wait_after_a_failure()
        assert 50 > await window()
        return True

    assert await undone()
    turned_at = monotonic()
    for name, value in zip(names, (9, 300, 50), strict=True):
        await turn(operator, name, value)
    await eventually(in_force, within=IN_FORCE)
    print(f"in force after {monotonic() - turned_at:.1f} s")  # noqa: T201 - a figure
    for name in names:
        await turn_back(operator, name)
    await eventually(undone, within=IN_FORCE)
    for job_id in TURNED_WAITS:
        await producer.http.post(f"/v1/jobs/{job_id}/cancel")
    await stack.all_ended(within=60)


async def ran_at_once(
    producer: Producer, owner: Connection, *, jobs: int = 12, milliseconds: int = 700
) -> int:
    """How many of a crowd ran at the same time."""
    ids = [await submit(producer, milliseconds=milliseconds) for _ in range(jobs)]
    for job_id in ids:
        assert "completed" == (await producer.ended(job_id, within=60))["status"]
    most: int = await owner.fetchval(MOST_AT_ONCE, ids)
    return most


async def followed(stack: Stack, name: str, since: int, lines: int) -> None:
    """So many lines of processes have said that what is called so was turned."""

    def told() -> bool:
        said = stack.said[since:].splitlines()
        return sum("setting.changed" in line and name in line for line in said) >= lines

    await eventually(told, within=IN_FORCE)


@pytest.mark.parametrize("name", ["slots.type.failing", "slots.lane.general"])
async def test_fewer_slots_are_fewer_jobs_at_once_until_the_reset(
    name: str,
    stack: Stack,
    producer: Producer,
    operator: httpx.AsyncClient,
    owner: Connection,
) -> None:
    processes = WORKERS + 2
    since = len(stack.said)
    await turn(operator, name, 1)
    await followed(stack, name, since, processes)

    assert WORKERS >= await ran_at_once(producer, owner)

    since = len(stack.said)
    await turn_back(operator, name)
    await followed(stack, name, since, processes)
    assert WORKERS < await ran_at_once(producer, owner)


async def test_no_slots_at_all_keep_a_type_waiting_and_leave_others_alone(
    stack: Stack, producer: Producer, operator: httpx.AsyncClient
) -> None:
    since = len(stack.said)
    await turn(operator, "slots.type.failing", 0)
    await followed(stack, "slots.type.failing", since, WORKERS + 2)

    waiting = await submit(producer)
    for _ in range(5):
        (other,) = await producer.submit_many(1)
        assert "completed" == (await producer.ended(other))["status"]
    assert "queued" == (await producer.http.get(f"/v1/jobs/{waiting}")).json()["status"]

    await turn_back(operator, "slots.type.failing")
    assert "completed" == (await producer.ended(waiting, within=30))["status"]


async def breaker(operator: httpx.AsyncClient) -> dict[str, Any]:
    breakers = (await operator.get("/v1/operator/breakers")).json()["breakers"]
    crutches: list[dict[str, Any]] = [
        breaker for breaker in breakers if breaker["service"] == "crutch"
    ]
    return crutches[0] if crutches else {"state": "closed"}


async def test_a_breaker_opens_by_the_limits_that_were_turned(
    stack: Stack, producer: Producer, operator: httpx.AsyncClient, owner: Connection
) -> None:
    async def outcome_of_a_failure() -> str:
        job_id = await submit(producer, "leaning", times=1)
        outcome: str = (await first_attempt(owner, job_id))["outcome"]
        return outcome

    assert "retried" == await outcome_of_a_failure()
    assert "closed" == (await breaker(operator))["state"]

    since = len(stack.said)
    await turn(operator, "breaker.crutch.failures", 1)
    await turn(operator, "breaker.crutch.ratio", 0.01)
    await turn(operator, "breaker.crutch.open_seconds", 600)
    await followed(stack, "breaker.crutch.", since, 3 * (WORKERS + 2))
    assert "released" == await outcome_of_a_failure()
    assert "open" == (await breaker(operator))["state"]

    since = len(stack.said)
    for field in ("failures", "ratio", "open_seconds"):
        await turn_back(operator, f"breaker.crutch.{field}")
    await followed(stack, "breaker.crutch.", since, 3 * (WORKERS + 2))
    (await operator.post("/v1/operator/breakers/crutch/reset")).raise_for_status()
    assert "retried" == await outcome_of_a_failure()
    assert "closed" == (await breaker(operator))["state"]
    await stack.all_ended(within=60)


async def operate(stack: Stack, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "imagefleet", "settings", "live", *arguments),
        env={
            **os.environ,  # noqa: TID251 - as from a terminal
            "IMAGEFLEET_URL": stack.facts["api_url"],
            "IMAGEFLEET_KEY": stack.facts["operator_key"],
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaint = await process.communicate()
    return process.returncode or 0, said.decode(), complaint.decode()


def row_of(said: str, name: str) -> Sequence[str]:
    (line,) = [line for line in said.splitlines() if line.startswith(name)]
    return line.split()


async def test_the_environment_of_each_process_is_shown_beside_what_is_turned(
    stack: Stack,
) -> None:
    code, said, _ = await operate(stack, "set", "slots.lane.general", "2", "--reason", "a test")
    assert (0, "slots.lane.general is 2 (by default 6)\n") == (code, said)

    _, listed, _ = await operate(stack, "list")

    assert ["2", "6"] == row_of(listed, "slots.lane.general")[1:3]
    assert ["1", "1"] == row_of(listed, "retry.*.base_seconds")[1:3]  # BACKOFF_BASE_SECONDS
    assert ["30", "30"] == row_of(listed, "retention.jobs_days")[1:3]

    code, said, _ = await operate(stack, "reset", "slots.lane.general", "--reason", "over")
    assert (0, "slots.lane.general is as by default, 6\n") == (code, said)
