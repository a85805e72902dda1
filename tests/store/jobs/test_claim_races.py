"""Claims beside claims: fifty backends after the same jobs, and one with an old snapshot.

Whatever fifty askers answer must be true: a job has one owner, and everybody else is told what
really stands in the way.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from imagefleet.jobs.model import (
    CancelCode,
    ClaimAnswer,
    JobId,
    PauseScope,
    Submission,
    Verdict,
    WorkerId,
)
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.submissions import submit_jobs
from tests.conftest import OpenConnection
from tests.support.database import Database
from tests.support.factories import (
    ALL_LANES,
    TENANT,
    TYPES,
    a_submission,
    a_worker,
    open_breaker,
)
from tests.support.races import all_at_once, many_connections, no_deadlocks
from tests.support.rows import job_row

ASKERS = 50
JOBS = 200
ASKED = 5  # times that each job is asked for, and now and then twice in one receive
BATCH = 10
ROUNDS = 2
AGAIN = 200  # a contended message comes back; it does not come back for ever
HOUR = timedelta(hours=1)
LOCK_TIMEOUT = timedelta(minutes=10)


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
    return [submission.job_id for submission in submissions]


async def plain_jobs(worker: Connection, _: Connection, jobs: int = JOBS) -> list[Wanted]:
    ids = await submit(worker, [a_submission() for _ in range(jobs)])
    return [Wanted(job_id=job_id, wins=Verdict.CLAIMED, refused=Verdict.BUSY) for job_id in ids]


async def four_jobs_a_target(worker: Connection, _: Connection, jobs: int = JOBS) -> list[Wanted]:
    """The oldest is claimed, and everybody who wants a younger one is told to wait for it."""
    wanted: list[Wanted] = []
    for _target in range(jobs // 4):
        photo = f"photo-{random.getrandbits(64)}"
        first, *others = await submit(worker, [a_submission(target=photo) for _ in range(4)])
        wanted.append(Wanted(job_id=first, wins=Verdict.CLAIMED, refused=Verdict.BUSY))
        wanted += [
            Wanted(job_id=other, wins=None, refused=Verdict.TARGET_BUSY, claim_no=0, why=str(first))
            for other in others
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
    return [Wanted(job_id=job_id, wins=Verdict.CANCELLED, refused=Verdict.BUSY) for job_id in ids]


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
            Wanted(job_id=job_id, wins=Verdict.CLAIMED, refused=Verdict.BUSY, claim_no=2)
            for job_id in expired
        ),
        *(Wanted(job_id=job_id, wins=None, refused=Verdict.BUSY) for job_id in alive),
    ]


async def jobs_of_tomorrow(worker: Connection, _: Connection, jobs: int = JOBS) -> list[Wanted]:
    later = datetime.now(UTC) + HOUR
    ids = await submit(worker, [a_submission(run_at=later) for _ in range(jobs)])
    return [Wanted(job_id=job_id, wins=None, refused=Verdict.NOT_DUE, claim_no=0) for job_id in ids]


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
    return [wanted for mix in mixes for wanted in await mix(worker, superuser, 28)]


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
            waiting = [answer.job_id for answer in answers if answer.verdict is Verdict.CONTENDED]
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
