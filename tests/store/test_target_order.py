"""Jobs of one target: one at a time, in the order of their submission, and never forgotten."""

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import asyncpg
import pytest

from imagefleet.jobs.lifecycle import Completed, Outcome, Released, Retry
from imagefleet.jobs.model import CancelCode, Claim, JobId, JobState, Lane, Verdict, WorkerId
from imagefleet.jobs.retry import RetryPolicy
from imagefleet.store.claims import claim_jobs
from imagefleet.store.control import Pause, PauseScope, cancel_job, pause, resume
from imagefleet.store.database import Connection
from imagefleet.store.settlements import Settled, Settlement, settle_jobs
from imagefleet.store.submissions import submit_job, submit_jobs
from tests.conftest import OpenConnection
from tests.support.database import Database, check_invariants
from tests.support.eventually import eventually
from tests.support.factories import (
    ALL_LANES,
    TENANT,
    TYPES,
    UNAVAILABLE,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)
from tests.support.races import all_at_once, many_connections, no_deadlocks
from tests.support.rows import ring_row, running_job

HOUR = timedelta(hours=1)
DUE = timedelta(0)

# What really happened, in the order in which it happened: a claim's row is written under the lock
# of its target, and so is the end of a claim, so these numbers never lie about who came first.
WATCH_THE_RUNS = """
CREATE TABLE runs (
    seq bigint GENERATED ALWAYS AS IDENTITY, target text, target_seq bigint, begins boolean
);
CREATE FUNCTION note_run() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.runs (target, target_seq, begins)
    VALUES (NEW.target, NEW.target_seq, NEW.state = 'processing');
    RETURN NULL;
END
$$;
CREATE TRIGGER runs_are_noted AFTER UPDATE OF state ON jobs
FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION note_run();
"""


@dataclass(frozen=True, slots=True)
class Run:
    target: str
    target_seq: int
    begins: bool


async def runs_by_target(superuser: Connection) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = defaultdict(list)
    for row in await superuser.fetch("SELECT target, target_seq, begins FROM runs ORDER BY seq"):
        runs[row["target"]].append(Run(*row))
    return runs


def overlaps(runs: Sequence[Run]) -> list[Run]:
    """The runs that began while another one of the target had not ended."""
    running, found = 0, []
    for run in runs:
        running += 1 if run.begins else -1
        if running > 1:
            found.append(run)
    return found


def out_of_order(runs: Iterable[Run]) -> list[tuple[int, int]]:
    begun = [run.target_seq for run in runs if run.begins]
    return [(before, after) for before, after in zip(begun, begun[1:], strict=False) if before > after]


TARGETS = 1200
WORKERS = 8
RECEIVE = 20


async def work(
    connection: Connection, me: WorkerId, queue: "asyncio.Queue[JobId]", seed: int
) -> None:
    """A worker over a queue that gives any job to anybody: claim what was received, settle it."""
    dice = random.Random(seed)
    while not queue.empty():
        received = [queue.get_nowait() for _ in range(min(RECEIVE, queue.qsize()))]
        answers = await claim_jobs(connection, received, worker_id=me, lanes=ALL_LANES, types=TYPES)
        claims = [answer.claim for answer in answers if answer.claim is not None]
        for answer in answers:
            assert answer.verdict in {
                Verdict.CLAIMED,
                Verdict.BUSY,  # its message was doubled, and another worker has it
                Verdict.CONTENDED,
                Verdict.TARGET_BUSY,
                Verdict.FINISHED,
            }
            if answer.verdict in {Verdict.CONTENDED, Verdict.TARGET_BUSY}:
                queue.put_nowait(answer.job_id)
        await asyncio.sleep(0)
        report = await settle_jobs(connection, me, [_settled(claim, dice) for claim in claims])
        assert {receipt.settled for receipt in report.receipts} <= {Settled.WRITTEN}
        for receipt in report.receipts:
            if not isinstance(receipt.outcome, Completed):
                queue.put_nowait(receipt.job_id)


def _settled(claim: Claim, dice: random.Random) -> Settlement:
    outcome: Outcome = Completed()
    if claim.claim_no == 1 and dice.random() < 0.15:
        # Due at once, so that it may run again while the younger ones must still wait for it.
        outcome = Retry(code="unavailable", message="again", run_at=claim.created_at)
    elif claim.claim_no == 1 and dice.random() < 0.1:
        outcome = Released(why="drain")
    return Settlement.of(claim, outcome, RetryPolicy())


async def test_twelve_hundred_targets_under_eight_workers_never_overlap_nor_change_their_order(
    database: Database,
) -> None:
    queue: asyncio.Queue[JobId] = asyncio.Queue()
    async with (
        no_deadlocks(database),
        many_connections(database, "worker", WORKERS) as connections,
        database.connect("superuser") as superuser,
    ):
        await superuser.execute(WATCH_THE_RUNS)
        jobs = [
            a_submission(target=f"photo-{n}") for n in range(TARGETS) for _ in range(2 + n % 2)
        ]
        for at in range(0, len(jobs), 500):
            await submit_jobs(connections[0], jobs[at : at + 500])
        await superuser.execute("ANALYZE")
        workers = [await a_worker(connection) for connection in connections]
        # Neighbours in the queue, so that two jobs of a target meet in one receive and in two.
        for at in range(0, len(jobs), 60):
            few = [job.job_id for job in jobs[at : at + 60]]
            random.shuffle(few)
            for job_id in few:
                queue.put_nowait(job_id)

        await all_at_once(
            [
                partial(work, connection, me, queue, seed)
                for seed, (connection, me) in enumerate(zip(connections, workers, strict=True))
            ]
        )

        runs = await runs_by_target(superuser)
        states = await superuser.fetch("SELECT DISTINCT state FROM jobs")
    assert [row["state"] for row in states] == ["completed"]
    assert len(runs) == TARGETS
    assert [overlap for one in runs.values() for overlap in overlaps(one)] == []
    assert [pair for one in runs.values() for pair in out_of_order(one)] == []


async def test_of_two_jobs_of_a_target_in_one_receive_the_older_is_claimed(
    worker: OpenConnection,
) -> None:
    me = await a_worker(worker)
    older, younger = [a_submission(target="photo") for _ in range(2)]
    await submit_jobs(worker, [older, younger])

    answers = await claim_jobs(
        worker, [younger.job_id, older.job_id], worker_id=me, lanes=ALL_LANES, types=TYPES
    )

    assert [answer.verdict for answer in answers] == [Verdict.TARGET_BUSY, Verdict.CLAIMED]
    assert answers[0].why == str(older.job_id)


async def test_a_younger_job_waits_for_an_older_one_that_nobody_asks_for(
    worker: OpenConnection,
) -> None:
    me = await a_worker(worker)
    older, younger = [a_submission(target="photo") for _ in range(2)]
    await submit_jobs(worker, [older, younger])

    answer = await claim_job(worker, younger.job_id, me)

    assert (answer.verdict, answer.why) == (Verdict.TARGET_BUSY, str(older.job_id))


async def test_the_same_target_of_another_tenant_is_another_target(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    await a_job(
        worker, superuser, state=JobState.PROCESSING, submission=a_submission(target="photo")
    )
    theirs = a_submission(target="photo", tenant_id=type(TENANT)("globex"))
    await submit_job(worker, theirs)

    answer = await claim_job(worker, theirs.job_id, await a_worker(worker))

    assert answer.verdict is Verdict.CLAIMED


async def test_a_retry_in_backoff_blocks_the_younger_jobs_of_its_target(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(
        worker,
        superuser,
        state=JobState.FAILED_RETRYABLE,
        due=False,
        submission=a_submission(target="photo"),
    )
    younger = await submit_job(worker, a_submission(target="photo"))

    answer = await claim_job(worker, younger.job_id, job.worker_id)

    assert (answer.verdict, answer.why) == (Verdict.TARGET_BUSY, str(job.job_id))


async def test_a_future_run_at_blocks_nobody(worker: OpenConnection) -> None:
    me = await a_worker(worker)
    await submit_job(worker, a_submission(target="photo", run_at=datetime.now(UTC) + HOUR))
    younger = await submit_job(worker, a_submission(target="photo"))

    answer = await claim_job(worker, younger.job_id, me)

    assert answer.verdict is Verdict.CLAIMED


async def test_a_flagged_job_blocks_nobody_until_it_is_being_settled(
    worker: OpenConnection,
) -> None:
    me = await a_worker(worker)
    flagged, younger, youngest = [a_submission(target="photo") for _ in range(3)]
    await submit_jobs(worker, [flagged, younger, youngest])
    await cancel_job(worker, flagged.job_id, code=CancelCode.CANCELLED, detail=None)

    passed = await claim_job(worker, younger.job_id, me)

    assert passed.verdict is Verdict.CLAIMED


async def test_a_preempting_job_ignores_the_order_and_the_pause_of_its_target(
    worker: OpenConnection, operator: OpenConnection
) -> None:
    me = await a_worker(worker)
    older, deletion = a_submission(target="photo"), a_submission(target="photo", preempts=True)
    await submit_jobs(worker, [older, deletion])
    await pause(operator, PHOTO, by="tests", reason="a test")

    answers = await claim_jobs(
        worker, [older.job_id, deletion.job_id], worker_id=me, lanes=ALL_LANES, types=TYPES
    )

    assert [answer.verdict for answer in answers] == [Verdict.PAUSED, Verdict.CLAIMED]


async def test_a_preempting_job_goes_before_the_oldest_in_one_receive(
    worker: OpenConnection,
) -> None:
    me = await a_worker(worker)
    older, deletion = a_submission(target="photo"), a_submission(target="photo", preempts=True)
    await submit_jobs(worker, [older, deletion])

    answers = await claim_jobs(
        worker, [older.job_id, deletion.job_id], worker_id=me, lanes=ALL_LANES, types=TYPES
    )

    assert [answer.verdict for answer in answers] == [Verdict.TARGET_BUSY, Verdict.CLAIMED]


async def test_a_preempting_job_never_runs_beside_another(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    running = await a_job(
        worker, superuser, state=JobState.PROCESSING, submission=a_submission(target="photo")
    )
    deletion = await submit_job(worker, a_submission(target="photo", preempts=True))

    answer = await claim_job(worker, deletion.job_id, running.worker_id)

    assert (answer.verdict, answer.why) == (Verdict.TARGET_BUSY, str(running.job_id))
    assert await running_job(worker, "photo") == running.job_id


PHOTO = Pause(scope=PauseScope.TARGET, name="photo", tenant_id=TENANT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job that waits for the target, and whether it is the one to be rung."""

    due: bool = True
    retry: bool = False
    preempts: bool = False
    flagged: bool = False


@pytest.mark.parametrize(
    ("waiting", "rung"),
    [
        pytest.param([Waiting(), Waiting()], 0, id="the oldest"),
        pytest.param([Waiting(due=False), Waiting()], 1, id="not the one of tomorrow"),
        pytest.param([Waiting(retry=True, due=False), Waiting()], None, id="nobody before a retry"),
        pytest.param([Waiting(flagged=True), Waiting()], 1, id="not the flagged"),
        pytest.param([Waiting(), Waiting(preempts=True)], 1, id="a preempting one first"),
        pytest.param(
            [Waiting(), Waiting(preempts=True, retry=True, due=False), Waiting()],
            0,
            id="a preempting retry in backoff lets the older go",
        ),
        pytest.param(
            [Waiting(preempts=True, retry=True, due=False), Waiting()],
            None,
            id="a preempting retry in backoff blocks the younger",
        ),
    ],
)
@pytest.mark.parametrize("outcome", [Completed(), Released(why="stray")], ids=["done", "stray"])
async def test_a_freed_target_rings_exactly_the_next_one(
    worker: OpenConnection,
    superuser: OpenConnection,
    waiting: Sequence[Waiting],
    rung: int | None,
    outcome: Completed | Released,
) -> None:
    first = a_submission(target="photo")
    jobs = [
        a_submission(
            target="photo",
            preempts=one.preempts,
            run_at=datetime.now(UTC) + HOUR if not one.due and not one.retry else None,
        )
        for one in waiting
    ]
    await submit_jobs(worker, [*jobs, first] if isinstance(outcome, Released) else [first, *jobs])
    await _make_retries(superuser, zip(jobs, waiting, strict=True))
    job = await _run(superuser, worker, first.job_id)
    await superuser.execute("UPDATE rings SET due_at = now() + interval '1 minute', rings = 3")
    for one, how in zip(jobs, waiting, strict=True):
        if how.flagged:
            await superuser.execute(
                "UPDATE jobs SET cancel_requested_at = now(), cancel_code = 'cancelled'"
                " WHERE id = $1",
                one.job_id,
            )

    report = await settle_jobs(
        worker,
        job.worker_id,
        [
            Settlement(
                job_id=job.job_id, claim_no=job.claim_no, outcome=outcome, policy=RetryPolicy()
            )
        ],
    )

    expected = [] if rung is None else [jobs[rung].job_id]
    if isinstance(outcome, Released) and rung is None and not any(one.retry for one in waiting):
        expected = [first.job_id]
    assert [ring.job_id for ring in report.rings] == expected
    due = await worker.fetch(
        "SELECT job_id, due_at, rings FROM rings WHERE due_at <= now() AND job_id <> $1",
        first.job_id,
    )
    assert {row["job_id"] for row in due} == set(expected) - {first.job_id}
    assert {(ring.job_id, ring.due_at) for ring in report.rings if ring.job_id != first.job_id} == {
        (row["job_id"], row["due_at"]) for row in due
    }


async def _make_retries(superuser: Connection, jobs: Iterable[tuple[object, Waiting]]) -> None:
    """As if each had run once; the target is taken by another job meanwhile."""
    await superuser.execute("SET session_replication_role = replica")
    for submission, how in jobs:
        if how.retry:
            await superuser.execute(
                "UPDATE jobs SET state = 'failed_retryable', run_at = now() + interval '1 hour'"
                " WHERE id = $1",
                submission.job_id,  # type: ignore[attr-defined]
            )
    await superuser.execute("SET session_replication_role = origin")


async def _run(superuser: Connection, worker: Connection, job_id: JobId) -> MadeJob:
    raise NotImplementedError
