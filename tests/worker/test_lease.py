"""The beat: what it keeps, what it makes a worker let go, and what if it does not come."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import CancelCode, Claim, Fence, Lane
from imagefleet.runtime import Drain, supervise
from imagefleet.settings import Database as DatabaseSettings
from imagefleet.store.database import Connection
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.leases import Beat
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.worker import attempt as attempt_module
from imagefleet.worker import lease as lease_module
from imagefleet.worker.attempt import RunningAttempts, Stop
from imagefleet.worker.handling import Handler, JobContext
from imagefleet.worker.lease import Lease
from imagefleet.worker.slots import Hearing
from tests.support.bench import NOOP, Bench, Run, never
from tests.support.eventually import eventually
from tests.support.factories import claim_job, expire_lock
from tests.support.rows import attempts_rows, job_row
from tests.support.wires import a_wire

SHORT = timedelta(seconds=0.2)
NEVER_ASKED = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same protocol in a hundredth of the time."""
    monkeypatch.setattr(lease_module, "BEAT_EVERY", 0.02)


def nobody() -> None:
    """A slot that nobody waits for."""


def a_lease(bench: Bench, attempts: RunningAttempts, dsn: str) -> Lease:
    metrics = bench.equipment.metrics
    return Lease(
        DatabaseSettings(url=dsn),
        bench.worker_id,
        attempts,
        bench.messages,
        bench.settler,
        Hearing(Lane),
        metrics,
    )


@asynccontextmanager
async def kept(
    bench: Bench, run: Run = never, *, dsn: str | None = None
) -> AsyncIterator[tuple[Lease, RunningAttempts, Drain, Callable[[Claim], None]]]:
    """A worker's beat, and the attempts it speaks for."""
    attempts, drain = bench.attempts(run), Drain()
    lease = a_lease(bench, attempts, dsn or bench.database.url("worker"))

    def start(claim: Claim) -> None:
        attempts.start(claim, bench.delivery(claim), nobody)

    async with lease.keep(drain), supervise(drain) as parts:
        attempts.owned_by(parts)
        yield lease, attempts, drain, start


async def test_it_beats_and_knows_how_long_ago(bench: Bench, superuser: Connection) -> None:
    async with kept(bench) as (lease, *_):

        async def has_beaten() -> bool:
            return bool(3 <= await superuser.fetchval("SELECT max(beats) FROM workers"))

        await eventually(has_beaten)
        assert lease.age < 2
        assert lease.stale() is None
        assert lease.pulse() is None
        await lease.until_fresh()


async def test_a_cancelled_job_is_stopped_and_ends_as_cancelled(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim()
    async with kept(bench) as (_, _, _, start):
        start(claim)
        await cancel_job(superuser, claim.job_id, code=CancelCode.CANCELLED, detail=None)

    row = await job_row(superuser, claim.job_id)
    assert ("failed", "cancelled") == (row["state"], row["failure_code"])
    await eventually(lambda: bench.queue.deleted)


async def test_a_lost_claim_is_stopped_and_nothing_is_written_or_deleted(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim()
    await superuser.execute(
        "UPDATE jobs SET locked_at = locked_at - interval '11 minutes', claimed_at = claimed_at"
        " - interval '11 minutes'"
    )
    thief = await claim_job(bench.worker, claim.job_id, bench.worker_id)
    assert thief.claim is not None
    async with kept(bench) as (_, attempts, _, start):
        start(claim)
        await eventually(lambda: not attempts.running)
        # The thief's own claim is none of those that run here: a stray, which is given back.
        await eventually(lambda: _is_retryable(superuser, claim))

    outcomes = [row["outcome"] for row in await attempts_rows(superuser, claim.job_id)]
    assert ["taken_over", "released"] == outcomes
    assert [] == bench.queue.deleted


async def test_a_lost_claim_stops_not_the_newer_one_of_its_job(
    bench: Bench, superuser: Connection
) -> None:
    """This worker stood still, and took its own job over: two attempts of one job run here."""
    lost = await bench.claim()
    await expire_lock(superuser, lost.job_id)
    held = (await claim_job(bench.worker, lost.job_id, bench.worker_id)).claim
    assert held is not None
    async with kept(bench) as (_, attempts, _, start):
        start(held)
        start(lost)
        await eventually(lambda: len(attempts.running) < 2)
        assert [(lost.job_id, 2)] == list(attempts.running)
        attempts.stop_all(Stop.DRAIN)

    ended = await attempts_rows(superuser, lost.job_id)
    assert ["lock_expired", "drain"] == [row["why"] for row in ended]


async def test_a_claim_that_nobody_heard_of_comes_back_uncharged_after_two_beats(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim()
    async with kept(bench):
        await eventually(lambda: _is_retryable(superuser, claim))

    (attempt,) = await attempts_rows(superuser, claim.job_id)
    assert ("released", "stray", False) == (attempt["outcome"], attempt["why"], attempt["charged"])
    assert 0 == (await job_row(superuser, claim.job_id))["attempts"]


async def hear(lease: Lease, *strays: Fence) -> None:
    """What one beat answered; returns when all that it set going has ended."""
    beat = Beat(alive=True, cancelled=frozenset(), lost=frozenset(), strays=frozenset(strays))
    async with asyncio.TaskGroup() as group:
        lease._obey(beat, group)


async def test_a_stray_is_given_back_by_the_second_of_two_successive_beats(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim()
    stray = (claim.job_id, claim.claim_no)
    lease = a_lease(bench, bench.attempts(never), NEVER_ASKED)

    await hear(lease, stray)
    assert "processing" == (await job_row(superuser, claim.job_id))["state"]

    await hear(lease, stray)
    (attempt,) = await attempts_rows(superuser, claim.job_id)
    assert ("released", "stray", False) == (attempt["outcome"], attempt["why"], attempt["charged"])


async def test_a_stray_that_a_beat_in_between_did_not_see_is_kept(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim()
    stray = (claim.job_id, claim.claim_no)
    lease = a_lease(bench, bench.attempts(never), NEVER_ASKED)

    await hear(lease, stray)
    await hear(lease)
    await hear(lease, stray)

    assert "processing" == (await job_row(superuser, claim.job_id))["state"]


async def _is_retryable(connection: Connection, claim: Claim) -> bool:
    return bool("failed_retryable" == (await job_row(connection, claim.job_id))["state"])


async def test_a_worker_that_was_declared_dead_stops_and_writes_nothing(
    bench: Bench, maintenance: Connection, superuser: Connection
) -> None:
    claim = await bench.claim()
    stopped = asyncio.Event()

    async def run(job: JobContext) -> Completed:
        await job.stopping.wait()
        stopped.set()
        return Completed()

    (seen,) = await look_at_workers(maintenance)
    assert await rescue_worker(maintenance, seen) is not None
    async with kept(bench, run) as (lease, _, drain, start):
        start(claim)
        await drain.wait()
        await stopped.wait()

    assert lease.dead
    (attempt,) = await attempts_rows(superuser, claim.job_id)
    assert "rescued" == attempt["outcome"]
    assert [] == bench.queue.deleted


async def test_without_beats_the_work_stops_and_comes_back_uncharged_once_it_can_be_written(
    bench: Bench, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "STOP_AFTER", 0.5)
    monkeypatch.setattr(lease_module, "FRESH_FOR", 0.2)
    claim = await bench.claim()
    async with (
        a_wire(bench.database.url("worker")) as wire,
        kept(bench, dsn=wire.url) as (lease, attempts, _, start),
    ):
        start(claim)
        await eventually(lambda: _has_beaten(superuser))
        wire.cut.set()
        await eventually(lease.stale)
        assert lease.pulse() is None, "an outage of Postgres is no reason to restart"
        await eventually(lambda: not attempts.running)

        wire.cut.clear()
        await lease.until_fresh()

    (attempt,) = await attempts_rows(superuser, claim.job_id)
    assert ("released", "beat_lost", False) == (
        attempt["outcome"],
        attempt["why"],
        attempt["charged"],
    )


async def _has_beaten(connection: Connection) -> bool:
    return bool(await connection.fetchval("SELECT max(beats) FROM workers"))


async def test_a_beat_confirms_what_long_jobs_may_keep_invisible(
    bench: Bench, superuser: Connection
) -> None:
    bench.messages._spans = {bench.queue.as_queue(): SHORT}
    claim = await bench.claim()
    async with kept(bench) as (_, attempts, _, start):
        start(claim)
        await eventually(lambda: bench.queue.changed)
        attempts.stop_all(Stop.DRAIN)

    assert {SHORT} == {span for _, span in bench.queue.changed}


async def test_a_beat_extends_nothing_of_what_ended_before_its_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.messages._spans = {bench.queue.as_queue(): timedelta(0)}
    ended, stands = await bench.claim(), await bench.claim()
    attempts = bench.attempts(never)
    lease = a_lease(bench, attempts, NEVER_ASKED)
    for claim in (ended, stands):
        attempt = bench.attempt(claim, never)
        attempts.running[attempt.fence] = attempt
        attempt.delivery.visible_at = 0

    async def answered(*_: object) -> Beat:
        del attempts.running[ended.job_id, ended.claim_no]
        nothing: frozenset[Fence] = frozenset()
        return Beat(alive=True, cancelled=nothing, lost=nothing, strays=nothing)

    monkeypatch.setattr(lease_module, "renew_claims", answered)
    await lease._beat_once(cast("Connection", None))
    await eventually(lambda: bench.queue.changed)

    assert [bench.delivery(stands).received.receipt] == [one for one, _ in bench.queue.changed]


async def test_a_handler_that_cannot_be_stopped_is_a_vital_sign_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an attempt that waits to be settled is not: that may be Postgres's fault."""
    monkeypatch.setattr(attempt_module, "LATE_AFTER", 0)
    released = asyncio.Event()

    async def deaf(job: JobContext) -> Completed:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        return Completed()

    handlers = {"noop": Handler(kind=replace(NOOP, timeout=SHORT / 10), run=deaf)}
    claim = await bench.claim()
    async with kept(bench, deaf) as (_, attempts, _, start):
        attempts._handlers = handlers
        start(claim)
        assert await eventually(attempts.late) == f"past their deadline: {claim.job_id}"
        released.set()
        await eventually(lambda: attempts.late() is None)
