"""Outcomes are written together, again until the database answers, and each for itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from imagefleet.doorbell import Doorbell
from imagefleet.errors import StoreRejected, Unavailable
from imagefleet.jobs.lifecycle import Completed, Outcome, Released
from imagefleet.jobs.model import Claim
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.runtime import Drain, supervise
from imagefleet.store.database import Connection, open_pool
from imagefleet.store.settling import Settled, Settlement
from imagefleet.worker.attempt import Stop
from imagefleet.worker.handling import JobContext
from imagefleet.worker.settler import Settler
from tests.support.bench import Bench, done, never
from tests.support.eventually import eventually
from tests.support.factories import a_submission
from tests.support.races import somebody_waits
from tests.support.rows import attempts_rows, job_row
from tests.support.wires import Wire, a_wire

PATIENCE = 20  # seconds after which a test that hangs says so
FAR_OFF = 3600.0


def settlement(claim: Claim, outcome: Outcome | None = None) -> Settlement:
    return Settlement.of(claim, outcome or Completed(), RetryPolicy())


def told(bench: Bench, series: str) -> int:
    """The sum of all samples that begin like this."""
    lines = bench.equipment.metrics.exposition().decode().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(series))


def settles(bench: Bench) -> int:
    """How often it went to the database."""
    return told(bench, 'db_query_duration_seconds_count{query_type="settle"}')


async def test_outcomes_of_one_moment_share_a_transaction(
    bench: Bench, superuser: Connection
) -> None:
    claims = [await bench.claim() for _ in range(20)]

    receipts = await asyncio.gather(*(bench.settler.settle(settlement(claim)) for claim in claims))

    assert {Settled.WRITTEN} == {receipt.settled for receipt in receipts}
    assert [claim.job_id for claim in claims] == [receipt.job_id for receipt in receipts]
    assert 1 == settles(bench)
    transactions = await superuser.fetchval("SELECT count(DISTINCT ended_at) FROM attempts")
    assert 1 == transactions


async def test_nobody_is_waited_for_where_nobody_else_can_come(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.settler._settlements, "_linger", FAR_OFF)
    claims = [await bench.claim() for _ in range(3)]
    attempts, freed = bench.attempts(done), asyncio.Event()

    async with asyncio.timeout(PATIENCE), supervise(Drain()) as parts:
        attempts.owned_by(parts)
        for claim in claims:  # as by one slot
            attempts.start(claim, bench.delivery(claim), freed.set)
            await freed.wait()
            freed.clear()

    assert 3 == settles(bench)


async def test_while_others_run_what_is_settled_waits_for_the_last_of_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.settler._settlements, "_linger", FAR_OFF)
    claims = [await bench.claim() for _ in range(3)]
    ends = {claim.job_id: asyncio.Event() for claim in claims}

    async def run(job: JobContext) -> Completed:
        await ends[job.claim.job_id].wait()
        return Completed()

    attempts = bench.attempts(run)
    async with asyncio.timeout(PATIENCE), supervise(Drain()) as parts:
        attempts.owned_by(parts)
        for claim in claims:
            attempts.start(claim, bench.delivery(claim), lambda: None)
        for waiting, event in enumerate(ends.values(), 1):
            assert 0 == settles(bench)
            event.set()
            if waiting < len(ends):
                await eventually(lambda: bench.settler._settlements.waiting == waiting)  # noqa: B023 - asked here

    assert 1 == settles(bench)
    assert set() == bench.settler.expected


async def test_who_ends_without_an_outcome_is_not_waited_for(bench: Bench) -> None:
    claim = await bench.claim()
    attempts = bench.attempts(never)

    async with asyncio.timeout(PATIENCE), supervise(Drain()) as parts:
        attempts.owned_by(parts)
        attempts.start(claim, bench.delivery(claim), lambda: None)
        assert {claim.job_id} == {job_id for job_id, _ in bench.settler.expected}
        attempts.stop_all(Stop.LOST)

    assert set() == bench.settler.expected


async def test_a_result_that_cannot_be_stored_fails_its_own_job_alone(
    bench: Bench, superuser: Connection
) -> None:
    bad, good = await bench.claim(), await bench.claim()

    receipts = await asyncio.gather(
        bench.settler.settle(settlement(bad, Completed(result={"a": "\0"}))),
        bench.settler.settle(settlement(good)),
    )

    assert [Settled.WRITTEN] * 2 == [receipt.settled for receipt in receipts]
    row = await job_row(superuser, bad.job_id)
    assert ("failed", "settle_rejected") == (row["state"], row["failure_code"])
    assert "completed" == (await job_row(superuser, good.job_id))["state"]


async def test_an_outcome_that_is_a_bug_fails_its_own_job_alone(
    bench: Bench, superuser: Connection
) -> None:
    """Not a value that the database refuses: something that breaks the writing itself."""
    bad, good = await bench.claim(), await bench.claim()
    broken = Completed(follow_ups=(object(),))  # type: ignore[arg-type]

    receipts = await asyncio.gather(
        bench.settler.settle(settlement(bad, broken)), bench.settler.settle(settlement(good))
    )

    assert [Settled.WRITTEN] * 2 == [receipt.settled for receipt in receipts]
    row = await job_row(superuser, bad.job_id)
    assert ("failed", "settle_rejected") == (row["state"], row["failure_code"])
    assert "completed" == (await job_row(superuser, good.job_id))["state"]


async def test_a_claim_that_was_lost_is_told_so(bench: Bench, superuser: Connection) -> None:
    claim = await bench.claim()
    await bench.settler.settle(settlement(claim))
    zombie = Settlement(job_id=claim.job_id, claim_no=7, outcome=Completed(), policy=RetryPolicy())

    assert Settled.LOST == (await bench.settler.settle(zombie)).settled
    assert 1 == len(await attempts_rows(superuser, claim.job_id))


@asynccontextmanager
async def a_settler_by_wire(bench: Bench, wire: Wire) -> AsyncIterator[Settler]:
    async with (
        open_pool(wire.url, process="test-wire", min_size=0) as pool,
        Doorbell(pool, {}).open() as doorbell,
        Settler(
            pool.timed_by(bench.equipment.metrics.query),
            bench.worker_id,
            doorbell,
            bench.equipment.metrics,
        ).open() as settler,
    ):
        yield settler


@pytest.mark.parametrize("target", [None, "photo"], ids=["one statement", "a transaction"])
async def test_a_commit_whose_reply_was_lost_is_settled_again_and_once(
    bench: Bench, superuser: Connection, target: str | None
) -> None:
    claim = await bench.claim(a_submission(target=target))
    async with a_wire(bench.database.url("worker")) as wire:
        wire.cut_after = b"COMMIT" if target else claim.job_id.bytes
        async with a_settler_by_wire(bench, wire) as settler, asyncio.TaskGroup() as group:
            settling = group.create_task(settler.settle(settlement(claim)))
            await eventually(lambda: settles(bench))
            wire.mend()
            receipt = await settling

    assert Settled.ALREADY == receipt.settled
    (attempt,) = await attempts_rows(superuser, claim.job_id)
    assert "completed" == attempt["outcome"]
    # Nobody had told of it, as nobody knew.
    assert 1 == told(bench, 'job_processed_total{job_type="noop",status="completed"}')


async def test_an_end_is_told_once_however_often_and_by_whom_it_is_settled(bench: Bench) -> None:
    """A stray that is seen again, or what was cut off while it waited for its receipt."""
    claim = await bench.claim()
    given_back = settlement(claim, Released(why="stray"))

    with capture_logs() as lines:
        first = await asyncio.gather(*(bench.settler.settle(given_back) for _ in range(3)))
        later = await bench.settler.settle(settlement(claim))

    assert {Settled.WRITTEN} == {receipt.settled for receipt in first}
    assert Settled.ALREADY == later.settled
    assert 1 == told(bench, "job_attempts_total")
    (line,) = [line for line in lines if line["event"].startswith("job.")]
    assert ("job.released", str(claim.job_id), "stray") == (
        line["event"],
        line["job_id"],
        line["why"],
    )


async def test_what_is_remembered_no_longer_is_not_told_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefleet.worker.settler.MOST_REMEMBERED", 0)
    claim = await bench.claim()
    await bench.settler.settle(settlement(claim))

    later = await bench.settler.settle(settlement(claim))

    assert Settled.ALREADY == later.settled
    assert 1 == told(bench, "job_attempts_total")


async def test_what_is_told_is_not_told_again_when_a_second_settle_loses_its_first_answer(
    bench: Bench, superuser: Connection
) -> None:
    """As what was cut off right after its receipt, and is given back while Postgres restarts."""
    claim = await bench.claim()
    with capture_logs() as lines:
        async with (
            a_wire(bench.database.url("worker")) as wire,
            a_settler_by_wire(bench, wire) as settler,
            asyncio.TaskGroup() as group,
        ):
            assert Settled.WRITTEN == (await settler.settle(settlement(claim))).settled
            before = settles(bench)
            wire.cut_after = b"COMMIT"
            again = group.create_task(settler.settle(settlement(claim, Released(why="stopped"))))
            await eventually(lambda: settles(bench) > before)
            wire.mend()
            receipt = await again

    assert Settled.ALREADY == receipt.settled
    assert 1 == len([line for line in lines if line["event"] == "settle.delayed"])
    assert ["job.completed"] == [line["event"] for line in lines if "outcome" in line]
    assert 1 == told(bench, "job_attempts_total")


async def test_no_more_ends_are_remembered_than_can_be_settled_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefleet.worker.settler.MOST_REMEMBERED", 2)
    claims = [await bench.claim() for _ in range(5)]

    for claim in claims:
        await bench.settler.settle(settlement(claim))

    assert [(claim.job_id, claim.claim_no) for claim in claims[-2:]] == list(
        bench.settler._told.fences
    )


async def test_an_end_is_told_although_whoever_asked_for_it_has_gone(
    bench: Bench, superuser: Connection
) -> None:
    """As with a second signal, in the middle of a settle; what was cut off is settled again."""
    claim = await bench.claim()

    async with asyncio.TaskGroup() as group, superuser.transaction():
        await superuser.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", claim.job_id)
        asking = group.create_task(bench.settler.settle(settlement(claim)))
        await eventually(lambda: somebody_waits(superuser))
        asking.cancel()
    receipt = await bench.settler.settle(settlement(claim, Released(why="stopped")))

    assert (Settled.ALREADY, "completed") == (
        receipt.settled,
        None if receipt.ended is None else receipt.ended.outcome,
    )
    assert 1 == told(bench, "job_attempts_total")


async def test_what_is_rejected_is_told_as_it_was_written(bench: Bench) -> None:
    bad, good = await bench.claim(), await bench.claim()

    await asyncio.gather(
        bench.settler.settle(settlement(bad, Completed(result={"a": "\0"}))),
        bench.settler.settle(settlement(good)),
    )

    for status in ("failed", "completed"):
        name = f'job_processed_total{{job_type="noop",status="{status}"}}'
        assert 1 == told(bench, name), status


async def test_what_cannot_be_settled_at_all_leaves_no_neighbour_untold(
    bench: Bench, superuser: Connection
) -> None:
    """The neighbour is written in the moment in which the other is refused, and found so again."""
    good, bad = await bench.claim(), await bench.claim()
    await superuser.execute(
        f"ALTER TABLE jobs ADD CONSTRAINT stuck CHECK (id <> '{bad.job_id}') NOT VALID"
    )

    receipt, refusal = await asyncio.gather(
        bench.settler.settle(settlement(good)),
        bench.settler.settle(settlement(bad)),
        return_exceptions=True,
    )

    assert isinstance(refusal, StoreRejected)
    assert not isinstance(receipt, BaseException)
    assert Settled.ALREADY == receipt.settled
    assert 1 == told(bench, 'job_processed_total{job_type="noop",status="completed"}')
    assert 1 == told(bench, "job_attempts_total")
    assert 0 == bench.settler.unanswered


async def test_a_claim_that_was_lost_is_for_others_to_tell(bench: Bench) -> None:
    claim = await bench.claim()
    zombie = Settlement(job_id=claim.job_id, claim_no=7, outcome=Completed(), policy=RetryPolicy())

    assert Settled.LOST == (await bench.settler.settle(zombie)).settled

    assert 0 == told(bench, "job_attempts_total")


async def test_it_waits_for_a_database_that_is_away_until_it_is_told_to_give_up(
    bench: Bench,
) -> None:
    claim = await bench.claim()
    async with a_wire(bench.database.url("worker")) as wire:
        wire.cut.set()  # every connection ends as soon as the server says a word
        async with a_settler_by_wire(bench, wire) as settler:

            async def give_up_after_a_while() -> None:
                await eventually(lambda: 2 <= settles(bench), within=5)
                settler.give_up()

            (answer, _) = await asyncio.gather(
                settler.settle(settlement(claim)), give_up_after_a_while(), return_exceptions=True
            )

    assert isinstance(answer, Unavailable)
    assert Settled.WRITTEN == (await bench.settler.settle(settlement(claim))).settled
