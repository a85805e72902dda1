"""Claims beside claims: fifty backends after the same jobs, and one with an old snapshot.

Whatever fifty askers answer must be true: a job has one owner, and everybody else is told what
really stands in the way.
"""

import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from imagefleet.errors import ClaimLost
from imagefleet.jobs.lifecycle import Completed, Released, Retry
from imagefleet.jobs.model import (
    CancelCode,
    ClaimAnswer,
    JobId,
    JobState,
    PauseScope,
    Submission,
    Verdict,
    WorkerId,
)
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.fleet.workers import retire_worker
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.rings import confirm_rings
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from tests.conftest import OpenConnection
from tests.support.database import Database, driver_of
from tests.support.factories import (
    ALL_LANES,
    TENANT,
    TYPES,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    due_rings,
    make_due,
    open_breaker,
    settle_job,
)
from tests.support.races import all_at_once, many_connections, meanwhile, no_deadlocks
from tests.support.rows import job_row, ring_row, running_job

ASKERS = 50
JOBS = 200
ASKED = 5  # times that each job is asked for, and now and then twice in one receive
BATCH = 10
ROUNDS = 2
AGAIN = 200  # a contended message comes back; it does not come back for ever
HOUR = timedelta(hours=1)
LOCK_TIMEOUT = timedelta(minutes=10)
EVERYTHING = Pause(scope=PauseScope.ALL)
PHOTO = Pause(scope=PauseScope.TARGET, name="photo", tenant_id=TENANT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A job that is asked for, and what is true of it."""

    job_id: JobId
    wins: Verdict | None
    """What exactly one asker is told; None: nobody may have it."""
    refused: Verdict
    """What every other asker is told."""
    claim_no: int = 1
    """After the round."""
    why: str | None = None


@dataclass(slots=True)
class Told:
    """Every answer about one job that was more than `contended`."""

    answers: list[tuple[WorkerId, ClaimAnswer]] = field(default_factory=list)


Mix = Callable[[Connection, Connection], Awaitable[list[Wanted]]]


async def submit(worker: Connection, submissions: Sequence[Submission]) -> list[JobId]:
    await submit_jobs(worker, submissions)
    return [one.job_id for one in submissions]


async def plain_jobs(worker: Connection, _: Connection, jobs: int = JOBS) -> list[Wanted]:
    ids = await submit(worker, [a_submission() for _ in range(jobs)])
    return [Wanted(job_id=one, wins=Verdict.CLAIMED, refused=Verdict.BUSY) for one in ids]


async def four_jobs_a_target(worker: Connection, _: Connection, jobs: int = JOBS) -> list[Wanted]:
    """The oldest is claimed, and everybody who wants a younger one is told to wait for it."""
    wanted: list[Wanted] = []
    for _target in range(jobs // 4):
        photo = f"photo-{random.getrandbits(64)}"
        first, *others = await submit(worker, [a_submission(target=photo) for _ in range(4)])
        wanted.append(Wanted(job_id=first, wins=Verdict.CLAIMED, refused=Verdict.BUSY))
        wanted += [
            Wanted(job_id=one, wins=None, refused=Verdict.TARGET_BUSY, claim_no=0, why=str(first))
            for one in others
        ]
    return wanted


async def preempting_jobs(
    worker: Connection, superuser: Connection, jobs: int = JOBS
) -> list[Wanted]:
    """A deletion and nothing else of its target: the order does not hold it back, nor a pause."""
    wanted: list[Wanted] = []
    for _target in range(jobs // 2):
        photo = f"photo-{random.getrandbits(64)}"
        held_back = Pause(scope=PauseScope.TARGET, name=photo, tenant_id=TENANT)
        await pause(superuser, held_back, by="tests", reason="a test")
        older, deletion = await submit(
            worker, [a_submission(target=photo), a_submission(target=photo, preempts=True)]
        )
        wanted.append(Wanted(job_id=deletion, wins=Verdict.CLAIMED, refused=Verdict.BUSY))
        wanted.append(Wanted(job_id=older, wins=None, refused=Verdict.PAUSED, claim_no=0))
    return wanted


async def flagged_jobs(worker: Connection, _: Connection, jobs: int = JOBS) -> list[Wanted]:
    later = datetime.now(UTC) + HOUR
    ids = await submit(worker, [a_submission(run_at=later) for _ in range(jobs)])
    for one in ids:
        await cancel_job(worker, one, code=CancelCode.CANCELLED, detail=None)
    return [Wanted(job_id=one, wins=Verdict.CANCELLED, refused=Verdict.BUSY) for one in ids]


async def locks_of_others(
    worker: Connection, superuser: Connection, jobs: int = JOBS
) -> list[Wanted]:
    """Half of the locks are a second past the lock timeout, the other half ten seconds before."""
    other = await a_worker(worker)
    ids = await submit(worker, [a_submission() for _ in range(jobs)])
    await claim_jobs(worker, ids, worker_id=other, lanes=ALL_LANES, types=TYPES)
    expired, alive = ids[::2], ids[1::2]
    for some, age in (expired, timedelta(seconds=601)), (alive, timedelta(seconds=590)):
        await superuser.execute(
            "UPDATE jobs SET locked_at = now() - $2::interval WHERE id = ANY ($1)", some, age
        )
    return [
        *(
            Wanted(job_id=one, wins=Verdict.CLAIMED, refused=Verdict.BUSY, claim_no=2)
            for one in expired
        ),
        *(Wanted(job_id=one, wins=None, refused=Verdict.BUSY) for one in alive),
    ]


async def jobs_of_tomorrow(worker: Connection, _: Connection, jobs: int = JOBS) -> list[Wanted]:
    later = datetime.now(UTC) + HOUR
    ids = await submit(worker, [a_submission(run_at=later) for _ in range(jobs)])
    return [Wanted(job_id=one, wins=None, refused=Verdict.NOT_DUE, claim_no=0) for one in ids]


async def jobs_of_a_paused_type(
    worker: Connection, superuser: Connection, jobs: int = JOBS
) -> list[Wanted]:
    held_back = Pause(scope=PauseScope.TYPE, name="cancel_job")
    await pause(superuser, held_back, by="tests", reason="a test")
    ids = await submit(worker, [a_submission(type="cancel_job") for _ in range(jobs)])
    return [
        Wanted(job_id=one, wins=None, refused=Verdict.PAUSED, claim_no=0, why="type:cancel_job")
        for one in ids
    ]


async def some_of_everything(worker: Connection, superuser: Connection) -> list[Wanted]:
    mixes = [
        plain_jobs,
        four_jobs_a_target,
        preempting_jobs,
        flagged_jobs,
        locks_of_others,
        jobs_of_tomorrow,
        jobs_of_a_paused_type,
    ]
    return [one for mix in mixes for one in await mix(worker, superuser, 28)]


def hands(job_ids: Sequence[JobId]) -> list[list[list[JobId]]]:
    """For each asker its receives: overlapping, and some with one id twice."""
    deck = list(job_ids) * ASKED
    random.shuffle(deck)
    dealt = [deck[asker::ASKERS] for asker in range(ASKERS)]
    return [
        [[*hand[at : at + BATCH], hand[at]] for at in range(0, len(hand), BATCH)] for hand in dealt
    ]


async def ask(
    connection: Connection,
    me: WorkerId,
    receives: Sequence[Sequence[JobId]],
    told: dict[JobId, Told],
) -> None:
    """Claim as a worker does; what is contended comes back with the next receive."""
    for receive in receives:
        waiting = list(receive)
        for _ in range(AGAIN):
            answers = await claim_jobs(
                connection, waiting, worker_id=me, lanes=ALL_LANES, types=TYPES
            )
            for answer in answers:
                if answer.verdict is not Verdict.CONTENDED:
                    told[answer.job_id].answers.append((me, answer))
            waiting = [one.job_id for one in answers if one.verdict is Verdict.CONTENDED]
            if not waiting:
                break
        assert waiting == [], "contended for ever"


async def expect_the_truth(superuser: Connection, wanted: Wanted, told: Told) -> None:
    row = await job_row(superuser, wanted.job_id)
    won = [(who, answer) for who, answer in told.answers if answer.claim is not None]
    refused = [answer for _, answer in told.answers if answer.claim is None]

    assert [answer.verdict for _, answer in won] == ([wanted.wins] if wanted.wins else [])
    assert row["claim_no"] == wanted.claim_no
    assert {answer.verdict for answer in refused} <= {wanted.refused}
    for who, answer in won:
        assert answer.claim is not None
        assert (row["state"], row["locked_by"]) == ("processing", who)
        assert answer.claim.claim_no == wanted.claim_no
    twice = [answer for answer in refused if answer.why == "received twice at once"]
    assert won or not twice
    for answer in refused:
        if answer in twice:
            continue
        if wanted.why is not None:
            assert answer.why == wanted.why
        if wanted.refused is Verdict.BUSY:  # another's claim is alive, and until then
            assert answer.until == row["locked_at"] + LOCK_TIMEOUT
        if wanted.refused is Verdict.NOT_DUE:
            assert answer.until == row["run_at"]


@pytest.mark.parametrize(
    "mix",
    [
        plain_jobs,
        four_jobs_a_target,
        preempting_jobs,
        flagged_jobs,
        locks_of_others,
        jobs_of_tomorrow,
        jobs_of_a_paused_type,
        some_of_everything,
    ],
)
async def test_of_fifty_backends_one_has_the_job_and_the_others_are_told_the_truth(
    database: Database, mix: Mix
) -> None:
    async with (
        no_deadlocks(database),
        many_connections(database, "worker", ASKERS) as askers,
        database.connect("superuser") as superuser,
    ):
        workers = [await a_worker(askers[0]) for _ in askers]
        for _ in range(ROUNDS):
            wanted = await mix(askers[0], superuser)
            told: dict[JobId, Told] = defaultdict(Told)
            dealt = hands([one.job_id for one in wanted])

            await all_at_once(
                [
                    partial(ask, asker, me, receives, told)
                    for asker, me, receives in zip(askers, workers, dealt, strict=True)
                ]
            )

            assert set(told) == {one.job_id for one in wanted}
            for one in wanted:
                await expect_the_truth(superuser, one, told[one.job_id])
            await superuser.execute("DELETE FROM pauses")


@asynccontextmanager
async def a_claim_with_an_old_snapshot(
    superuser: OpenConnection, database: Database, job_ids: Sequence[JobId], me: WorkerId
) -> AsyncIterator[list[ClaimAnswer]]:
    """The claim has its snapshot when the body begins, and looks at its first row after it.

    What it waits for is its own row among the workers, the first that it locks.
    """
    answers: list[ClaimAnswer] = []
    async with database.connect("worker") as late, database.connect("superuser") as watcher:
        claim = claim_jobs(late, job_ids, worker_id=me, lanes=ALL_LANES, types=TYPES)
        transaction = driver_of(superuser).transaction()
        await transaction.start()
        await superuser.execute("SELECT FROM workers WHERE id = $1 FOR UPDATE", me)
        async with meanwhile(watcher, superuser, late, claim) as task:
            yield answers
            await transaction.commit()
        answers += task.result()


async def test_a_job_that_moved_since_the_snapshot_is_contended(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    """Its state is the old one again, but it is not the same turn of the job."""
    late, quick = await a_worker(worker), await a_worker(worker)
    job = await a_job(worker, superuser, state=JobState.FAILED_RETRYABLE)

    async with a_claim_with_an_old_snapshot(superuser, database, [job.job_id], late) as answers:
        await claim_job(worker, job.job_id, quick)
        again = MadeJob(job_id=job.job_id, claim_no=2, worker_id=quick)
        await settle_job(worker, again, Released(why="drain"))

    assert [answer.verdict for answer in answers] == [Verdict.CONTENDED]
    assert (await job_row(worker, job.job_id))["state"] == "failed_retryable"


async def test_a_job_that_finished_since_the_snapshot_is_contended_once(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    late, quick = await a_worker(worker), await a_worker(worker)
    submitted = await submit_job(worker, a_submission())

    async with a_claim_with_an_old_snapshot(
        superuser, database, [submitted.job_id], late
    ) as answers:
        await claim_job(worker, submitted.job_id, quick)
        job = MadeJob(job_id=submitted.job_id, claim_no=1, worker_id=quick)
        await settle_job(worker, job, Completed())
    (again,) = [await claim_job(worker, submitted.job_id, late)]

    assert [answer.verdict for answer in answers] == [Verdict.CONTENDED]
    assert again.verdict is Verdict.FINISHED


async def test_a_target_that_was_used_since_the_snapshot_is_contended(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    """The older job was not due in the snapshot, has run since, and now blocks by its backoff."""
    late, quick = await a_worker(worker), await a_worker(worker)
    older = await submit_job(worker, a_submission(target="photo", run_at=datetime.now(UTC) + HOUR))
    younger = await submit_job(worker, a_submission(target="photo"))

    async with a_claim_with_an_old_snapshot(superuser, database, [younger.job_id], late) as answers:
        async with database.connect("superuser") as clock:
            await make_due(clock, older.job_id)
        await claim_job(worker, older.job_id, quick)
        job = MadeJob(job_id=older.job_id, claim_no=1, worker_id=quick)
        await settle_job(worker, job, Retry(code="unavailable", message="later"))
    again = await claim_job(worker, younger.job_id, late)

    assert [answer.verdict for answer in answers] == [Verdict.CONTENDED]
    assert (again.verdict, again.why) == (Verdict.TARGET_BUSY, str(older.job_id))


async def test_a_flag_raised_since_the_snapshot_is_obeyed(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    late = await a_worker(worker)
    submitted = await submit_job(worker, a_submission())

    async with a_claim_with_an_old_snapshot(
        superuser, database, [submitted.job_id], late
    ) as answers:
        await cancel_job(worker, submitted.job_id, code=CancelCode.CANCELLED, detail=None)

    assert [answer.verdict for answer in answers] == [Verdict.CANCELLED]


async def test_a_row_that_somebody_holds_this_instant_is_contended_and_left_alone(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    of_a_held_target, held = (
        await submit_job(worker, a_submission(target="photo")),
        await submit_job(worker, a_submission()),
    )
    before = await worker.fetch("SELECT * FROM rings ORDER BY job_id")

    async with superuser.transaction():
        await superuser.execute("SELECT FROM targets FOR UPDATE")
        await superuser.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", held.job_id)
        answers = await claim_jobs(
            worker,
            [of_a_held_target.job_id, held.job_id],
            worker_id=me,
            lanes=ALL_LANES,
            types=TYPES,
        )

    assert [answer.verdict for answer in answers] == [Verdict.CONTENDED, Verdict.CONTENDED]
    assert before == await worker.fetch("SELECT * FROM rings ORDER BY job_id")


@pytest.mark.parametrize("role", ["dispatcher", "submitter"])
async def test_a_ring_that_is_confirmed_beside_the_claim_is_deleted_or_deferred_all_the_same(
    worker: OpenConnection,
    api: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
    role: str,
) -> None:
    me = await a_worker(worker)
    runs = await submit_job(worker, a_submission())
    waits = await submit_job(worker, a_submission(services=("s3",)))
    await open_breaker(worker)
    ringer = maintenance if role == "dispatcher" else api

    transaction = driver_of(ringer).transaction()
    await transaction.start()
    await confirm_rings(ringer, await due_rings(ringer))
    claim = claim_jobs(
        worker, [runs.job_id, waits.job_id], worker_id=me, lanes=ALL_LANES, types=TYPES
    )
    async with meanwhile(superuser, ringer, worker, claim) as task:
        await transaction.commit()

    verdicts = [answer.verdict for answer in task.result()]
    assert verdicts == [Verdict.CLAIMED, Verdict.BREAKER]
    assert await ring_row(worker, runs.job_id) is None
    ring = await ring_row(worker, waits.job_id)
    assert ring is not None
    assert (ring["sent_at"], ring["sends"]) == (None, 0)
    assert timedelta(0) < ring["next_in"] <= timedelta(seconds=1)


@pytest.mark.parametrize("avoided", ["", "hashjoin mergejoin", "nestloop", "indexscan bitmapscan"])
async def test_of_many_rings_that_were_pushed_since_the_snapshot_none_stays(
    database: Database, worker: OpenConnection, superuser: OpenConnection, avoided: str
) -> None:
    me = await a_worker(worker)
    submissions = [a_submission(target=f"photo-{n}" if n % 2 else None) for n in range(5)]
    await submit_jobs(worker, submissions)
    for way in avoided.split():
        await superuser.execute(f"ALTER DATABASE {database.name} SET enable_{way} = off")

    ids = [one.job_id for one in submissions]
    async with a_claim_with_an_old_snapshot(superuser, database, ids, me) as answers:
        await superuser.execute("UPDATE rings SET next_at = next_at + interval '1 minute'")

    assert [Verdict.CLAIMED] * 5 == [answer.verdict for answer in answers]
    assert [] == await worker.fetch("SELECT job_id FROM rings")


async def test_a_claim_that_still_saw_the_pause_of_a_target_does_not_undo_the_ring_of_the_resume(
    worker: OpenConnection, operator: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(target="photo"))
    await pause(operator, PHOTO, by="tests", reason="a test")

    transaction = driver_of(operator).transaction()
    await transaction.start()
    await operator.execute("DELETE FROM pauses")
    await operator.execute("UPDATE rings SET next_at = now()")  # as a resume, but for its lock
    claim = claim_job(worker, submitted.job_id, me)
    async with meanwhile(superuser, operator, worker, claim) as task:
        await transaction.commit()

    ring = await ring_row(worker, submitted.job_id)
    assert task.result().verdict is Verdict.PAUSED
    assert ring is not None
    assert ring["next_in"] <= timedelta(0)


async def test_a_claim_that_still_saw_the_pause_leaves_its_job_to_the_next_look(
    worker: OpenConnection, operator: OpenConnection
) -> None:
    """A resume writes no ring: who comes just before it comes again within a second."""
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission())
    await pause(operator, EVERYTHING, by="tests", reason="a test")

    transaction = driver_of(operator).transaction()
    await transaction.start()
    assert await resume(operator, EVERYTHING)
    answer = await claim_job(worker, submitted.job_id, me)
    await transaction.commit()

    ring = await ring_row(worker, submitted.job_id)
    assert answer.verdict is Verdict.PAUSED
    assert ring is not None
    assert (ring["sent_at"], ring["parked"]) == (None, False)
    assert ring["next_in"] <= timedelta(seconds=1)


async def test_a_claim_waits_for_the_rescue_of_its_own_worker_and_then_has_nothing(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(target="photo"))
    (seen,) = await look_at_workers(maintenance)

    transaction = driver_of(maintenance).transaction()
    await transaction.start()
    assert await rescue_worker(maintenance, seen) is not None

    async def claim() -> None:
        with pytest.raises(ClaimLost):
            await claim_job(worker, submitted.job_id, me)

    async with meanwhile(superuser, maintenance, worker, claim()):
        await transaction.commit()

    assert (await job_row(worker, submitted.job_id))["claim_no"] == 0
    assert await running_job(worker, "photo") is None


async def test_a_worker_does_not_retire_under_a_claim_in_flight(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission())

    async with database.connect("worker") as leaving:
        transaction = driver_of(worker).transaction()
        await transaction.start()
        assert (await claim_job(worker, submitted.job_id, me)).verdict is Verdict.CLAIMED
        async with meanwhile(superuser, worker, leaving, retire_worker(leaving, me)) as task:
            await transaction.commit()

    assert task.result() is False
    assert (await job_row(worker, submitted.job_id))["locked_by"] == me


async def test_what_a_claim_parks_while_its_target_is_being_resumed_is_rung_by_the_resume(
    worker: OpenConnection, operator: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(target="photo"))
    await pause(operator, PHOTO, by="tests", reason="a test")

    transaction = driver_of(worker).transaction()
    await transaction.start()
    answer = await claim_job(worker, submitted.job_id, me)
    assert answer.verdict is Verdict.PAUSED
    async with meanwhile(superuser, worker, operator, resume(operator, PHOTO)) as task:
        await transaction.commit()

    ring = await ring_row(worker, submitted.job_id)
    assert task.result() is True
    assert ring is not None
    assert not ring["parked"]
    assert ring["next_in"] <= timedelta(0)


async def test_a_rescue_waits_for_a_claim_in_flight_and_takes_it_back_too(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(target="photo"))
    (seen,) = await look_at_workers(maintenance)

    transaction = driver_of(worker).transaction()
    await transaction.start()
    assert (await claim_job(worker, submitted.job_id, me)).verdict is Verdict.CLAIMED
    async with meanwhile(superuser, worker, maintenance, rescue_worker(maintenance, seen)) as task:
        await transaction.commit()

    rescue = task.result()
    assert rescue is not None
    assert rescue.retried == (submitted.job_id,)


async def test_a_half_open_breaker_lets_one_job_of_twenty_backends_probe(
    database: Database, superuser: OpenConnection
) -> None:
    async with many_connections(database, "worker", 20) as askers:
        workers = [await a_worker(askers[0]) for _ in askers]
        ids = await submit(askers[0], [a_submission(services=("s3",)) for _ in range(60)])
        await open_breaker(askers[0])
        await superuser.execute("UPDATE circuit_breakers SET retry_at = now()")

        answers = await all_at_once(
            [
                partial(claim_jobs, asker, ids[at::20], worker_id=me, lanes=ALL_LANES, types=TYPES)
                for at, (asker, me) in enumerate(zip(askers, workers, strict=True))
            ]
        )

    verdicts = Counter(answer.verdict for some in answers for answer in some)
    assert verdicts == {Verdict.CLAIMED: 1, Verdict.BREAKER: 59}
