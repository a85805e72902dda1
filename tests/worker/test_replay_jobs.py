"""The job that replays what failed: each failure once, at its pace, on from where it was."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import pytest

from imagefleet.errors import Unavailable
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released
from imagefleet.jobs.model import CancelCode, Claim, JobId, JobState, Submission, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.letters import walks
from imagefleet.store.letters.replays import close_replayed
from imagefleet.store.letters.walks import ReplayedPage
from imagefleet.worker.handlers import replay_jobs
from imagefleet.worker.handlers.replay_jobs import HANDLER
from tests.support.bench import Bench
from tests.support.factories import (
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    expire_lock,
    settle_job,
)

RIVAL: Final = TenantId("rival")
BUG: Final = Failed(code="internal_error", message="Something went wrong.")
PAGE: Final = 2
Steps: TypeAlias = list[Callable[[], Awaitable[None]]]


async def work(bench: Bench, claim: Claim) -> Outcome | None:
    return await bench.attempt(claim, HANDLER.run, HANDLER.kind).work()


def a_walk(**payload: object) -> Submission:
    now = datetime.now(UTC) + timedelta(minutes=1)
    wanted = {"died_until": now.isoformat(), "rate": 1000, "reason": "mended"} | payload
    return replace(a_submission(type="replay_jobs"), payload=wanted)


async def some_failed(
    worker: Connection, superuser: Connection, count: int, outcome: Failed | None = None
) -> list[JobId]:
    """Their jobs, the oldest failure first."""
    jobs = []
    for _ in range(count):
        if outcome is None:
            jobs.append((await a_job(worker, superuser, state=JobState.FAILED)).job_id)
            continue
        job = await a_job(worker, superuser, state=JobState.PROCESSING)
        await settle_job(worker, job, outcome)
        jobs.append(job.job_id)
    return jobs


async def replayed(connection: Connection) -> list[JobId]:
    """Which failures have a replay; the oldest failure first."""
    rows = await connection.fetch("SELECT replay_of FROM jobs WHERE replay_of IS NOT NULL")
    return sorted(row["replay_of"] for row in rows)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_jobs, "PAGE", PAGE)


@pytest.fixture
def after_page(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """What to await after the pages to come, one a page; then nothing."""
    todo: Steps = []

    async def replay_next(*arguments: object) -> ReplayedPage:
        page = await walks.replay_next(*arguments)  # type: ignore[arg-type]
        if todo:
            await todo.pop(0)()
        return page

    monkeypatch.setattr(replay_jobs, "replay_next", replay_next)
    return todo


async def test_every_failure_is_replayed_once_the_oldest_first(
    bench: Bench, superuser: Connection, maintenance: Connection
) -> None:
    failures = await some_failed(bench.worker, superuser, 2 * PAGE + 1)
    claim = await bench.claim(a_walk())

    first = await work(bench, claim)
    second = await work(bench, await bench.claim(a_walk()))

    assert Completed(result={"replayed": 2 * PAGE + 1}) == first
    assert Completed(result={}) == second
    assert failures == await replayed(superuser)
    row = await superuser.fetchrow("SELECT * FROM jobs WHERE replay_of = $1", failures[0])
    assert row is not None
    assert ("tests", "mended", 1) == (row["created_by"], row["replay_reason"], row["generation"])
    assert 2 * PAGE + 1 == await close_replayed(maintenance, limit=100)


async def test_only_what_the_filter_names_is_replayed(bench: Bench, superuser: Connection) -> None:
    corrupt = await some_failed(bench.worker, superuser, 1)
    bugs = await some_failed(bench.worker, superuser, 2, BUG)
    for payload, expected in (
        ({"tenant": RIVAL}, []),
        ({"job_type": "process_image"}, []),
        ({"died_until": "2020-01-01T00:00:00Z"}, []),
        ({"code": "internal_error", "tenant": "acme", "job_type": "noop"}, bugs),
        ({}, [*corrupt, *bugs]),
    ):
        outcome = await work(bench, await bench.claim(a_walk(**payload)))

        assert isinstance(outcome, Completed), outcome
        assert expected == await replayed(superuser)


async def test_a_later_attempt_begins_behind_the_cursor(
    bench: Bench, superuser: Connection, after_page: Steps
) -> None:
    failures = await some_failed(bench.worker, superuser, 2 * PAGE)
    claim = await bench.claim(a_walk())

    async def lose_postgres() -> None:
        raise Unavailable("database_unavailable", "Later.")

    after_page.append(lose_postgres)
    assert Released(why="database") == await work(bench, claim)
    assert failures[:PAGE] == await replayed(superuser)
    made = MadeJob(job_id=claim.job_id, claim_no=claim.claim_no, worker_id=bench.worker_id)
    await settle_job(bench.worker, made, Released(why="drain"))
    again = await claim_job(bench.worker, claim.job_id, bench.worker_id)
    assert again.claim is not None
    assert PAGE == (again.claim.cursor or {})["seen"]

    outcome = await work(bench, again.claim)

    assert Completed(result={"replayed": 2 * PAGE}) == outcome
    assert failures == await replayed(superuser)


async def test_cancelling_it_ends_the_walk_between_two_pages(
    bench: Bench, superuser: Connection, after_page: Steps
) -> None:
    failures = await some_failed(bench.worker, superuser, 2 * PAGE)
    claim = await bench.claim(a_walk())

    async def cancel() -> None:
        await cancel_job(bench.worker, claim.job_id, code=CancelCode.CANCELLED, detail=None)

    after_page.append(cancel)

    assert Released(why="cancelled") == await work(bench, claim)
    assert failures[:PAGE] == await replayed(superuser)


async def test_who_lost_the_claim_replays_no_further_page(
    bench: Bench, superuser: Connection, after_page: Steps
) -> None:
    failures = await some_failed(bench.worker, superuser, 2 * PAGE)
    claim = await bench.claim(a_walk())

    async def lose() -> None:
        await expire_lock(superuser, claim.job_id)
        await claim_job(bench.worker, claim.job_id, await a_worker(bench.worker))

    after_page.append(lose)

    assert await work(bench, claim) is None
    assert failures[:PAGE] == await replayed(superuser)


async def test_with_little_time_left_the_rest_is_for_another_attempt(
    bench: Bench, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await some_failed(bench.worker, superuser, 1)
    timeout = BUILT_IN["replay_jobs"].timeout
    assert timeout is not None
    monkeypatch.setattr(replay_jobs, "ENOUGH", timeout.total_seconds() + 60)

    outcome = await work(bench, await bench.claim(a_walk()))

    assert isinstance(outcome, Released)
    assert ("deadline", []) == (outcome.why, await replayed(superuser))


async def test_it_keeps_to_its_rate(
    bench: Bench, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await some_failed(bench.worker, superuser, 2)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(replay_jobs, "sleep", sleep)

    await work(bench, await bench.claim(a_walk(rate=1)))

    assert 2 == len(pauses)  # a job a page; the last page is empty
    assert all(0.5 < pause <= 1 for pause in pauses)
