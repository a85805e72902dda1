"""Jobs of one target: one at a time, in the order of their submission, and never forgotten."""

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from imagefleet.jobs.lifecycle import Completed, Outcome, Released, Retry
from imagefleet.jobs.model import CancelCode, Claim, JobId, JobState, PauseScope, Verdict, WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from imagefleet.store.settling import Settled, Settlement, SettleReport, settle_jobs
from tests.conftest import OpenConnection
from tests.support.database import Database
from tests.support.factories import (
    ALL_LANES,
    TENANT,
    TYPES,
    UNAVAILABLE,
    a_job,
    a_submission,
    a_worker,
    claim_job,
)
from tests.support.races import all_at_once, many_connections, no_deadlocks
from tests.support.rows import running_job

HOUR = timedelta(hours=1)

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
    running, ended = 0, []
    for run in runs:
        running += 1 if run.begins else -1
        if running > 1:
            ended.append(run)
    return ended


def out_of_order(runs: Iterable[Run]) -> list[tuple[int, int]]:
    begun = [run.target_seq for run in runs if run.begins]
    return [(before, after) for before, after in itertools.pairwise(begun) if before > after]


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
        jobs = [a_submission(target=f"photo-{n}") for n in range(TARGETS) for _ in range(2 + n % 2)]
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
    assert [overlap for run in runs.values() for overlap in overlaps(run)] == []
    assert [pair for run in runs.values() for pair in out_of_order(run)] == []


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
async def test_a_freed_target_rings_exactly_the_next_one(
    worker: OpenConnection,
    superuser: OpenConnection,
    waiting: Sequence[Waiting],
    rung: int | None,
) -> None:
    me = await a_worker(worker)
    jobs = [
        a_submission(
            target="photo",
            preempts=one.preempts,
            run_at=None if one.due or one.retry else datetime.now(UTC) + HOUR,
        )
        for one in waiting
    ]
    await submit_jobs(worker, jobs)
    for job, how in zip(jobs, waiting, strict=True):
        if how.retry:
            await run_job(worker, job.job_id, me, UNAVAILABLE)
        if how.flagged:
            await cancel_job(worker, job.job_id, code=CancelCode.CANCELLED, detail=None)
    running = await submit_job(worker, a_submission(target="photo", preempts=True))
    await superuser.execute(
        "UPDATE rings SET next_at = now() + interval '1 minute', sent_at = now(), sends = 3"
    )

    report = await run_job(worker, running.job_id, me, Completed())

    expected = [] if rung is None else [jobs[rung].job_id]
    due = await worker.fetch("SELECT * FROM rings WHERE next_at <= now()")
    assert [ring.job_id for ring in report.rings] == expected
    assert [row["job_id"] for row in due] == expected
    assert [ring.next_at for ring in report.rings] == [row["next_at"] for row in due]
    assert all((row["sent_at"], row["sends"]) == (None, 0) for row in due)


async def run_job(
    worker: Connection, job_id: JobId, me: WorkerId, outcome: Outcome
) -> SettleReport:
    answer = await claim_job(worker, job_id, me)
    assert answer.claim is not None, answer
    return await settle_jobs(worker, me, [Settlement.of(answer.claim, outcome, RetryPolicy())])


async def test_a_retry_that_is_due_is_rung_itself_when_it_frees_its_target(
    worker: OpenConnection,
) -> None:
    """It keeps its place: the younger one stays where it is."""
    me = await a_worker(worker)
    older, younger = [a_submission(target="photo") for _ in range(2)]
    await submit_jobs(worker, [older, younger])

    report = await run_job(worker, older.job_id, me, Released(why="drain"))

    assert [ring.job_id for ring in report.rings] == [older.job_id]


"""More of them for a long run: INTERLEAVINGS="$(seq 1000)" .venv/bin/pytest -k interleaving"""
