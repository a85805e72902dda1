"""Writing down what attempts came to: everything at once, each row fenced, nothing twice."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from imagefleet.errors import Unavailable
from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released, Retry
from imagefleet.jobs.model import (
    CancelCode,
    Claim,
    JobId,
    JobState,
    Lane,
    PauseScope,
    Submission,
    WorkerId,
)
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection, connect
from imagefleet.store.fleet.pauses import (
    Pause,
    pause,
    resume,
)
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.inspection import list_attempts
from imagefleet.store.jobs.rescue import WorkerSeen, look_at_workers, rescue_worker
from imagefleet.store.jobs.rings import confirm_rings, forget_lost, ring_heads
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.store.settling import Settled, Settlement, SettleReport, settle_jobs
from tests.conftest import OpenConnection
from tests.support.database import Database, driver_of
from tests.support.eventually import eventually
from tests.support.factories import (
    ALL_LANES,
    CORRUPT,
    TENANT,
    TYPES,
    UNAVAILABLE,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    due_rings,
    expire_lock,
    hold_job,
    settle_job,
)
from tests.support.races import many_connections, meanwhile, no_deadlocks
from tests.support.rows import attempts_rows, job_row, ring_row, running_job
from tests.support.wires import a_wire

POLICY = RetryPolicy()
NUL = "before\x00after"


async def claimed(
    worker: Connection, me: WorkerId, submissions: Sequence[Submission]
) -> list[Claim]:
    await submit_jobs(worker, submissions)
    ids = [job.job_id for job in submissions]
    answers = await claim_jobs(worker, ids, worker_id=me, lanes=ALL_LANES, types=TYPES)
    return [answer.claim for answer in answers if answer.claim is not None]


async def settled(worker: Connection, me: WorkerId, *wishes: tuple[Claim, Outcome]) -> SettleReport:
    return await settle_jobs(
        worker, me, [Settlement.of(claim, outcome, POLICY) for claim, outcome in wishes]
    )


async def two_of_whom_one_is_lost(
    worker: Connection, superuser: Connection, me: WorkerId, *, target: str | None = None
) -> tuple[Claim, Claim, WorkerId]:
    """A claim of mine, one that was taken over, and by whom."""
    mine, taken = await claimed(worker, me, [a_submission(), a_submission(target=target)])
    await expire_lock(superuser, taken.job_id)
    heir = await hold_job(worker, taken.job_id)
    return mine, taken, heir.worker_id


async def is_completed(connection: Connection, job_id: JobId) -> bool:
    return bool((await job_row(connection, job_id))["state"] == "completed")


async def states(connection: Connection, job_ids: Sequence[JobId]) -> list[str]:
    return [(await job_row(connection, job_id))["state"] for job_id in job_ids]


async def test_outcomes_of_every_kind_are_written_in_one_go(worker: OpenConnection) -> None:
    me = await a_worker(worker)
    claims = await claimed(worker, me, [a_submission() for _ in range(4)])
    outcomes: list[Outcome] = [
        Completed(result={"variants": 3}),
        UNAVAILABLE,
        CORRUPT,
        Released(why="drain", log_excerpt="SIGTERM"),
    ]

    report = await settled(worker, me, *zip(claims, outcomes, strict=True))

    assert [receipt.settled for receipt in report.receipts] == [Settled.WRITTEN] * 4
    done, retried, failed, released = [await job_row(worker, claim.job_id) for claim in claims]
    assert (done["state"], done["result"]) == ("completed", {"variants": 3})
    assert (retried["state"], retried["attempts"]) == ("failed_retryable", 1)
    assert timedelta(seconds=29) < retried["run_at"] - retried["updated_at"]
    assert retried["run_at"] - retried["updated_at"] <= timedelta(seconds=36)
    assert (failed["state"], failed["failure_code"]) == ("failed", "corrupt")
    assert (released["state"], released["attempts"]) == ("failed_retryable", 0)
    assert released["failure_code"] is None
    ends = [(await attempts_rows(worker, claim.job_id))[0] for claim in claims]
    assert [(end["outcome"], end["charged"]) for end in ends] == [
        ("completed", True),
        ("retried", True),
        ("failed", True),
        ("released", False),
    ]
    assert ends[3]["log_excerpt"] == "SIGTERM"


@pytest.mark.parametrize(
    "poison",
    [
        pytest.param(Retry(code="unavailable", message=NUL), id="NUL in the message of a retry"),
        pytest.param(
            Failed(code="corrupt", message="-", detail=NUL), id="NUL in the detail of a failure"
        ),
        pytest.param(Completed(result={"text": NUL}), id="NUL in a result"),
        pytest.param(Completed(result={"n": {1, 2}}), id="no JSON in a result"),
        pytest.param(Completed(log_excerpt="x" * 16385), id="too long a log excerpt"),
        pytest.param(Released(why=NUL), id="NUL in the reason of a release"),
        pytest.param(
            Completed(follow_ups=(a_submission(payload={"text": NUL}),)), id="NUL in a follow-up"
        ),
        pytest.param(
            Completed(follow_ups=(replace(a_submission(), priority=-1),)), id="a refused follow-up"
        ),
    ],
)
async def test_a_poisonous_outcome_fails_alone(worker: OpenConnection, poison: Outcome) -> None:
    me = await a_worker(worker)
    claims = await claimed(worker, me, [a_submission(target=f"photo-{n}") for n in range(5)])
    outcomes: list[Outcome] = [Completed()] * 5
    outcomes[2] = poison

    report = await settled(worker, me, *zip(claims, outcomes, strict=True))

    assert [receipt.settled for receipt in report.receipts] == [Settled.WRITTEN] * 5
    assert await states(worker, [claim.job_id for claim in claims]) == [
        "completed",
        "completed",
        "failed",
        "completed",
        "completed",
    ]
    row = await job_row(worker, claims[2].job_id)
    assert row["failure_code"] == "settle_rejected"
    assert row["failure_detail"] == "store_rejected"
    assert [end["outcome"] for end in await attempts_rows(worker, row["id"])] == ["failed"]
    assert await running_job(worker, "photo-2") is None
    assert await worker.fetchval("SELECT count(*) FROM jobs") == 5


async def test_the_longest_log_excerpt_is_kept(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)

    await settle_job(worker, job, Completed(log_excerpt="x" * 16384))

    (ended,) = await attempts_rows(worker, job.job_id)
    assert len(ended["log_excerpt"]) == 16384


@pytest.mark.parametrize("outcome", [Completed(), UNAVAILABLE, CORRUPT, Released(why="drain")])
async def test_settling_again_is_already_done(
    worker: OpenConnection, superuser: OpenConnection, outcome: Outcome
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await settle_job(worker, job, outcome)
    before = await job_row(worker, job.job_id), await attempts_rows(worker, job.job_id)

    receipt = await settle_job(worker, job, outcome)

    assert (receipt.settled, receipt.outcome) == (Settled.ALREADY, None)
    assert before == (await job_row(worker, job.job_id), await attempts_rows(worker, job.job_id))


@pytest.mark.parametrize("target", [None, "photo"], ids=["one statement", "a transaction"])
async def test_a_settle_whose_reply_is_lost_is_recognised_as_success(
    database: Database, worker: OpenConnection, target: str | None
) -> None:
    """The commit reaches Postgres; what Postgres says to it reaches nobody."""
    me = await a_worker(worker)
    (claim,) = await claimed(worker, me, [a_submission(target=target)])
    wish = (claim, Completed(result={"n": 1}))

    async with (
        a_wire(database.url("worker")) as wire,
        connect(wire.url, process="test-worker") as far_away,
    ):
        wire.cut_after = b"COMMIT" if target else claim.job_id.bytes
        with pytest.raises(Unavailable):
            await settled(far_away, me, wish)
    assert wire.cut.is_set()
    await eventually(lambda: is_completed(worker, claim.job_id))
    report = await settled(worker, me, wish)

    assert [receipt.settled for receipt in report.receipts] == [Settled.ALREADY]
    assert (await job_row(worker, claim.job_id))["result"] == {"n": 1}
    assert len(await attempts_rows(worker, claim.job_id)) == 1


async def test_a_settle_that_never_arrived_is_simply_written(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)

    async with database.connect("worker") as doomed:
        transaction = driver_of(doomed).transaction()
        await transaction.start()
        await settle_job(doomed, job, Completed())
        doomed.terminate()
    receipt = await settle_job(worker, job, Completed())

    assert receipt.settled is Settled.WRITTEN


async def test_settle_after_a_rescue_is_lost(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    (seen,) = await look_at_workers(maintenance)
    await rescue_worker(maintenance, seen)

    receipt = await settle_job(worker, job, Completed())

    assert receipt.settled is Settled.LOST
    assert (await job_row(worker, job.job_id))["state"] == "failed_retryable"


async def test_settle_after_a_takeover_is_lost_and_leaves_the_heirs_of_the_batch_alone(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    mine, taken, other = await two_of_whom_one_is_lost(worker, superuser, me, target="photo")

    report = await settled(worker, me, (taken, Completed()), (mine, Completed()))

    assert [receipt.settled for receipt in report.receipts] == [Settled.LOST, Settled.WRITTEN]
    row = await job_row(worker, taken.job_id)
    assert (row["state"], row["locked_by"]) == ("processing", other)
    assert await running_job(worker, "photo") == taken.job_id


@pytest.mark.parametrize("of_the_lost", [CORRUPT, Completed()], ids=["failed", "completed"])
@pytest.mark.parametrize("target", ["photo", None])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["older", "newer"])
async def test_two_claims_of_one_job_in_one_batch_are_answered_each_for_itself(
    worker: OpenConnection,
    superuser: OpenConnection,
    order: tuple[int, int],
    target: str | None,
    of_the_lost: Outcome,
) -> None:
    """The worker stood still for ten minutes, and took its own job over."""
    me = await a_worker(worker)
    (lost,) = await claimed(worker, me, [a_submission(target=target)])
    await expire_lock(superuser, lost.job_id)
    held = (await claim_job(worker, lost.job_id, me)).claim
    assert held is not None
    wishes: list[tuple[Claim, Outcome]] = [(lost, of_the_lost), (held, Completed(result={"n": 2}))]

    report = await settled(worker, me, *(wishes[n] for n in order))

    answers = [report.receipts[order.index(n)] for n in range(2)]
    assert [answer.settled for answer in answers] == [Settled.LOST, Settled.WRITTEN]
    assert [answer.outcome for answer in answers] == [None, Completed(result={"n": 2})]
    row = await job_row(worker, lost.job_id)
    assert (row["state"], row["result"]) == ("completed", {"n": 2})
    ends = [end["outcome"] for end in await attempts_rows(worker, lost.job_id)]
    assert ends == ["taken_over", "completed"]


async def test_a_claim_that_was_settled_answers_not_for_the_next_one_of_its_job(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    """The reply to the first was lost, so it is settled again, beside what came after it."""
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await settle_job(worker, job, Released(why="drain"))
    held = (await claim_job(worker, job.job_id, job.worker_id)).claim
    assert held is not None
    again = Settlement(
        job_id=job.job_id, claim_no=job.claim_no, outcome=Released(why="drain"), policy=POLICY
    )

    report = await settle_jobs(
        worker, job.worker_id, [Settlement.of(held, Completed(), POLICY), again]
    )

    assert [receipt.settled for receipt in report.receipts] == [Settled.WRITTEN, Settled.ALREADY]
    assert (await job_row(worker, job.job_id))["state"] == "completed"


@pytest.mark.parametrize(
    ("target", "outcome"),
    [(None, Completed()), ("photo", Completed()), (None, UNAVAILABLE)],
    ids=["completed alone", "completed", "retried"],
)
async def test_a_claim_of_somebody_else_is_not_mine_to_settle(
    worker: OpenConnection, target: str | None, outcome: Outcome
) -> None:
    (claim,) = await claimed(worker, await a_worker(worker), [a_submission(target=target)])

    report = await settled(worker, await a_worker(worker), (claim, outcome))

    assert [receipt.settled for receipt in report.receipts] == [Settled.LOST]
    assert (await job_row(worker, claim.job_id))["state"] == "processing"


async def flag(connection: Connection, job_id: JobId) -> None:
    await cancel_job(connection, job_id, code=CancelCode.CANCELLED, detail=None)


async def take_over(connection: Connection, job_id: JobId) -> None:
    await hold_job(connection, job_id)


@pytest.mark.parametrize(
    ("change", "is_settled", "state"),
    [(flag, Settled.WRITTEN, "completed"), (take_over, Settled.LOST, "processing")],
)
async def test_a_completion_that_waits_for_its_row_sees_what_it_has_become(
    worker: OpenConnection,
    owner: OpenConnection,
    superuser: OpenConnection,
    change: Callable[[Connection, JobId], Awaitable[None]],
    is_settled: Settled,
    state: str,
) -> None:
    me = await a_worker(worker)
    (claim,) = await claimed(worker, me, [a_submission()])
    await expire_lock(superuser, claim.job_id)

    transaction = driver_of(owner).transaction()
    await transaction.start()
    await change(owner, claim.job_id)
    async with meanwhile(superuser, owner, worker, settled(worker, me, (claim, Completed()))) as it:
        await transaction.commit()

    assert [receipt.settled for receipt in it.result().receipts] == [is_settled]
    assert (await job_row(worker, claim.job_id))["state"] == state
    assert len(await attempts_rows(worker, claim.job_id)) == 1


async def test_who_is_ended_without_having_its_target_leaves_it_to_who_has(
    worker: OpenConnection,
) -> None:
    me = await a_worker(worker)
    elder, flagged = a_submission(target="photo"), a_submission(target="photo")
    await claimed(worker, me, [elder])
    await submit_jobs(worker, [flagged])
    await cancel_job(worker, flagged.job_id, code=CancelCode.CANCELLED, detail=None)
    claim = (await claim_job(worker, flagged.job_id, me)).claim
    assert claim is not None

    report = await settled(worker, me, (claim, Released(why="flagged")))

    assert [receipt.settled for receipt in report.receipts] == [Settled.WRITTEN]
    assert await running_job(worker, "photo") == elder.job_id


@pytest.mark.parametrize("before", [True, False], ids=["flagged, then claimed", "flagged running"])
@pytest.mark.parametrize(
    ("outcome", "state", "code"),
    [
        (UNAVAILABLE, "failed", "image_deleted"),
        (Released(why="drain"), "failed", "image_deleted"),
        (CORRUPT, "failed", "corrupt"),
        (Completed(), "completed", None),
    ],
    ids=["retry", "release", "fail", "complete"],
)
async def test_a_flagged_job_does_not_run_again(
    worker: OpenConnection,
    superuser: OpenConnection,
    *,
    before: bool,
    outcome: Outcome,
    state: str,
    code: str | None,
) -> None:
    job = await a_job(
        worker,
        superuser,
        state=JobState.PROCESSING,
        flag=CancelCode.IMAGE_DELETED,
        flagged_before_claim=before,
    )

    await settle_job(worker, job, outcome)

    row = await job_row(worker, job.job_id)
    assert (row["state"], row["failure_code"]) == (state, code)
    assert await ring_row(worker, job.job_id) is None


async def test_follow_ups_come_with_their_parent_or_not_at_all(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    mine, taken, _ = await two_of_whom_one_is_lost(worker, superuser, me)
    children = [
        replace(a_submission(), parent_job_id=parent.job_id) for parent in (mine, taken, mine)
    ]

    report = await settled(
        worker,
        me,
        (mine, Completed(follow_ups=(children[0], children[2]))),
        (taken, Completed(follow_ups=(children[1],))),
    )
    again = await settled(worker, me, (mine, Completed(follow_ups=(a_submission(),))))

    rows = await worker.fetch("SELECT id FROM jobs WHERE state = 'queued' ORDER BY id")
    assert [row["id"] for row in rows] == sorted([children[0].job_id, children[2].job_id])
    assert {ring.job_id for ring in report.rings} == {row["id"] for row in rows}
    assert again.receipts[0].settled is Settled.ALREADY


async def test_a_job_that_completes_though_it_is_cancelled_has_no_follow_ups(
    worker: OpenConnection,
) -> None:
    me = await a_worker(worker)
    wanted, cancelled = await claimed(worker, me, [a_submission(), a_submission()])
    await cancel_job(worker, cancelled.job_id, code=CancelCode.CANCELLED, detail=None)
    child, other = a_submission(), a_submission()

    report = await settled(
        worker,
        me,
        (wanted, Completed(follow_ups=(child,))),
        (cancelled, Completed(follow_ups=(other,))),
    )

    assert {Settled.WRITTEN} == {receipt.settled for receipt in report.receipts}
    rows = await worker.fetch("SELECT id FROM jobs WHERE state = 'queued'")
    assert [child.job_id] == [row["id"] for row in rows]
    assert [child.job_id] == [ring.job_id for ring in report.rings]


async def test_exhausted_attempts_fail_with_a_dead_letter(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(
        worker, superuser, state=JobState.PROCESSING, submission=a_submission(max_attempts=1)
    )

    receipt = await settle_job(worker, job, UNAVAILABLE)

    assert isinstance(receipt.outcome, Failed)
    row = await job_row(worker, job.job_id)
    assert (row["state"], row["failure_code"]) == ("failed", "unavailable")
    assert await superuser.fetchval("SELECT job_id FROM dead_letters") == job.job_id


STRESS_ROUNDS = 60
STRESS_ROWS = 400
PAUSED = [
    Pause(scope=PauseScope.ALL),
    *(
        Pause(scope=PauseScope.TARGET, name=f"photo-{n}", tenant_id=TENANT)
        for n in range(STRESS_ROWS - 1, 0, -16)
    ),
]


class Stress:
    """One round: two workers that hold everything settle it, while others write the same rows."""

    def __init__(self, connections: Sequence[Connection], operator: Connection) -> None:
        (self.settling, self.settling_too, self.rescuing, self.claiming, self.ringing) = connections
        self.operator = operator
        self.dice = random.Random(7)

    async def run(self) -> set[Settled]:
        mine, theirs = await a_worker(self.settling), await a_worker(self.settling)
        jobs = [a_submission(target=f"photo-{n}" if n % 2 else None) for n in range(STRESS_ROWS)]
        held = await self._held(mine, jobs[::2]), await self._held(theirs, jobs[1::2])
        # The next of each target, so that settle and rescue ring what others claim and push.
        waiting = [a_submission(target=f"photo-{n}") for n in range(1, STRESS_ROWS, 8)]
        await submit_jobs(self.settling, waiting)
        for what in PAUSED:
            await pause(self.operator, what, by="tests", reason="a test")
        seen = {look.worker_id: look for look in await look_at_workers(self.rescuing)}

        async with asyncio.TaskGroup() as group:
            settles = [
                group.create_task(self._settle(self.settling, mine, held[0])),
                group.create_task(self._settle(self.settling_too, theirs, held[1])),
            ]
            group.create_task(self._rescue([seen[mine], seen[theirs]]))
            group.create_task(self._claim([*jobs, *waiting]))
            group.create_task(self._ring())
            group.create_task(self._resume())
        return {receipt.settled for task in settles for receipt in task.result().receipts}

    async def _held(self, me: WorkerId, jobs: Sequence[Submission]) -> list[Claim]:
        held = await claimed(self.settling, me, jobs)
        self.dice.shuffle(held)
        return held

    async def _settle(
        self, connection: Connection, me: WorkerId, claims: Sequence[Claim]
    ) -> SettleReport:
        outcomes: tuple[Outcome, ...] = (Completed(), UNAVAILABLE, CORRUPT, Released(why="drain"))
        return await settled(
            connection, me, *((claim, self.dice.choice(outcomes)) for claim in claims)
        )

    async def _rescue(self, workers: Sequence[WorkerSeen]) -> None:
        for look in workers:
            await rescue_worker(self.rescuing, look)

    async def _claim(self, jobs: Sequence[Submission]) -> None:
        other = await a_worker(self.claiming)
        ids = [job.job_id for job in jobs]
        for _ in range(2):
            self.dice.shuffle(ids)
            await claim_jobs(self.claiming, ids, worker_id=other, lanes=ALL_LANES, types=TYPES)

    async def _ring(self) -> None:
        for _ in range(3):
            rings = await due_rings(self.ringing)
            self.dice.shuffle(rings)
            await confirm_rings(self.ringing, rings)
            now = await self.ringing.fetchval("SELECT clock_timestamp() + interval '1 hour'")
            await forget_lost(self.ringing, Lane.FAST, silent=now, heard=None, limit=100)
            await ring_heads(self.ringing, JobId(UUID(int=0)), limit=1000)

    async def _resume(self) -> None:
        for what in PAUSED:
            assert await resume(self.operator, what)


@pytest.mark.timeout(120)
async def test_sixty_rounds_of_many_writers_of_the_same_rows_meet_no_deadlock(
    database: Database,
) -> None:
    seen: set[Settled] = set()
    async with (
        no_deadlocks(database),
        many_connections(database, "superuser", 5) as connections,
        database.connect("operator") as operator,
    ):
        stress = Stress(connections, operator)
        for number in range(STRESS_ROUNDS):
            if number in {2, 20}:
                await connections[0].execute("ANALYZE")
            seen |= await stress.run()
    assert seen == {Settled.WRITTEN, Settled.LOST}


async def test_what_an_attempts_children_took_stands_in_its_row_however_it_ended(
    worker: Connection,
) -> None:
    me = await a_worker(worker)
    claims = await claimed(worker, me, [a_submission() for _ in range(4)])
    used = {"cpu_seconds": 1.5, "peak_bytes": 2**31, "read_bytes": 3, "made_bytes": 4}
    outcomes: list[Outcome] = [Completed(), UNAVAILABLE, CORRUPT, Completed()]
    settlements = [
        Settlement.of(claim, outcome, POLICY, None if claim is claims[-1] else used)
        for claim, outcome in zip(claims, outcomes, strict=True)
    ]

    report = await settle_jobs(worker, me, settlements)

    ended = [receipt.ended for receipt in report.receipts if receipt.ended is not None]
    assert [end.used for end in ended] == [used, used, used, {}]
    for claim, taken in zip(claims, [used, used, used, None], strict=True):
        (attempt,) = await list_attempts(worker, claim.job_id)
        told = {name: getattr(attempt, name) for name in used}
        assert told == (taken or dict.fromkeys(used))


async def test_what_was_taken_is_told_though_the_answer_was_lost(worker: Connection) -> None:
    me = await a_worker(worker)
    (claim,) = await claimed(worker, me, [a_submission()])
    settlement = Settlement.of(claim, Completed(), POLICY, {"cpu_seconds": 1.5})
    await settle_jobs(worker, me, [settlement])

    report = await settle_jobs(worker, me, [settlement])

    assert report.receipts[0].ended is not None
    assert report.receipts[0].ended.used == {"cpu_seconds": 1.5}
