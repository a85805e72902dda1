"""The store beside a model of the lifecycle: any sequence of events, and never a difference.

`make test` runs sixty short lives. For a long run, say so many:

    STATEFUL_EXAMPLES=5000 .venv/bin/pytest tests/store/jobs/test_stateful.py
"""

import asyncio
import os
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias
from uuid import UUID

import asyncpg
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from imagefleet.errors import ClaimLost
from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released, ResultReason, Retry
from imagefleet.jobs.model import CancelCode, JobId, JobState, Lane, PauseScope, WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.leases import Renewal, renew_claims, report_progress
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.rings import confirm_rings, forget_lost, ring_heads, ring_now
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.settling import Settlement, settle_jobs
from tests.store.jobs.model import Bell, End, Fleet, Job, Span, exactly
from tests.support.database import INVARIANTS, Database, Server, copied_database
from tests.support.factories import ALL_LANES, TENANT, TYPES, a_submission, a_worker, due_rings

EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "60"))  # noqa: TID251 - a setting of this test
STEPS = 40
SLACK = timedelta(seconds=2)  # between the two clocks: the model's is read before the statement
MARGIN = timedelta(seconds=3)
HOUR = timedelta(hours=1)
MOST_JOBS = 10
PARKED = 9999  # the year that stands for infinity

FORGET: Final = """
SET session_replication_role = replica;
DELETE FROM attempts; DELETE FROM rings; DELETE FROM jobs; DELETE FROM targets; DELETE FROM pauses;
DELETE FROM workers; DELETE FROM dead_letters; DELETE FROM dead_letter_sends; DELETE FROM ledger;
DELETE FROM ledger_entries; DELETE FROM ledger_counts;
SET session_replication_role = origin;
"""
AGE: Final = """
UPDATE jobs
   SET run_at = run_at - $1::interval, locked_at = locked_at - $1::interval,
       claimed_at = claimed_at - $1::interval
 WHERE state IN ('queued', 'processing', 'failed_retryable')
"""
AGE_RINGS: Final = """
UPDATE rings SET next_at = next_at - $1::interval, sent_at = sent_at - $1::interval
"""
JOBS: Final = """
SELECT jobs.*, rings.next_at, rings.sent_at, rings.sends, rings.lane AS rung_in
  FROM jobs
  LEFT JOIN rings ON rings.job_id = jobs.id
"""

OUTCOMES: Final[tuple[Outcome, ...]] = (
    Completed(),
    Retry(code="unavailable", message="later"),
    Retry(code="crashed", message="the child died", crashed=True),
    Failed(code="corrupt", message="no image"),
    Released(why="drain"),
)
PAUSES: Final = (
    Pause(scope=PauseScope.ALL),
    Pause(scope=PauseScope.LANE, name="quarantine"),
    Pause(scope=PauseScope.TYPE, name="noop"),
    Pause(scope=PauseScope.TARGET, name="a", tenant_id=TENANT),
    Pause(scope=PauseScope.TENANT, tenant_id=TENANT),
    Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name="noop"),
)
AGES: Final = tuple(timedelta(seconds=seconds) for seconds in (7, 61, 290, 660, 7200))

Claimed: TypeAlias = tuple[WorkerId, JobId, int]

job_numbers = st.integers(0, MOST_JOBS - 1)
worker_numbers = st.integers(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for with a new job."""

    target: str | None
    type: str
    max_attempts: int
    later: bool
    preempts: bool


wishes = st.builds(
    Wish,
    target=st.sampled_from([None, "a", "a", "a", "b"]),
    type=st.sampled_from(["noop", "process_image"]),
    max_attempts=st.integers(1, 3),
    later=st.sampled_from([False, False, False, True]),
    preempts=st.sampled_from([False, False, False, True]),
)


class World:
    """One loop, one database and its connections, used by one life after the other."""

    def __init__(self, server: Server, template: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._server, self._template = server, template

    def run(self, work: Awaitable[object]) -> None:
        self.loop.run_until_complete(work)

    async def open(self) -> None:
        opened = copied_database(self._server, self._template)
        database: Database = await self._stack.enter_async_context(opened)
        enter = self._stack.enter_async_context
        self.api = await enter(database.connect("api"))
        self.worker = await enter(database.connect("worker"))
        self.maintenance = await enter(database.connect("maintenance"))
        self.operator = await enter(database.connect("operator"))
        self.superuser: Connection = await enter(database.connect("superuser"))

    def close(self) -> None:
        self.loop.run_until_complete(self._stack.aclose())
        self.loop.close()


class Life(RuleBasedStateMachine):
    """What happens to a few jobs, some of one target, between two workers."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet()
        self.workers: list[WorkerId] = []
        self.claims: list[Claimed] = []
        self.world.run(self._begin())

    async def _begin(self) -> None:
        await self.world.superuser.execute(FORGET)
        self.workers = [await a_worker(self.world.worker) for _ in range(2)]

    async def _now(self) -> datetime:
        now: datetime = await self.world.superuser.fetchval("SELECT clock_timestamp()")
        return now

    async def _clear_now(self) -> datetime:
        """A moment at which nothing is just becoming due."""
        while self.fleet.has_edge_near(now := await self._now(), MARGIN):
            await self._age(timedelta(seconds=10))
        return now

    async def _age(self, span: timedelta) -> None:
        await self.world.superuser.execute(AGE, span)
        await self.world.superuser.execute(AGE_RINGS, span)
        self.fleet.age(span)

    def _some(self, numbers: list[int]) -> list[JobId]:
        known = list(self.fleet.jobs)
        return [known[number % len(known)] for number in numbers]

    def _recent(self, number: int) -> Claimed:
        """Mostly a claim that may stand, now and then a zombie's."""
        return self.claims[-1 - number % len(self.claims)]

    @initialize(wishes=st.lists(wishes, min_size=3, max_size=6))
    def begin_with(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            self.submit(wish)

    @precondition(lambda self: len(self.fleet.jobs) < MOST_JOBS)
    @rule(wish=wishes)
    def submit_one(self, wish: Wish) -> None:
        self.submit(wish)

    def submit(self, wish: Wish) -> None:
        async def both() -> None:
            now = await self._now()
            run_at = now + HOUR if wish.later else None
            submission = a_submission(
                type=wish.type,
                target=wish.target,
                preempts=wish.preempts,
                max_attempts=wish.max_attempts,
                run_at=run_at,
            )
            job = Job(
                job_id=submission.job_id,
                type=wish.type,
                target=wish.target,
                target_seq=None if wish.target is None else self.fleet.next_seq(wish.target),
                preempts=wish.preempts,
                max_attempts=wish.max_attempts,
                run_at=exactly(run_at or now),
            )
            await submit_job(self.world.api, submission)
            self.fleet.submit(job, now)

        self.world.run(both())

    @precondition(lambda self: self.fleet.jobs)
    @rule(
        numbers=st.lists(job_numbers, min_size=1, max_size=MOST_JOBS),
        worker=worker_numbers,
        outcomes=st.lists(st.sampled_from((None, *OUTCOMES)), max_size=4),
    )
    def receive(self, numbers: list[int], worker: int, outcomes: list[Outcome | None]) -> None:
        """Claim, and settle some of what was claimed at once; the others are kept."""

        async def both() -> None:
            mine = await self._claim(self._some(numbers), self.workers[worker])
            self.claims += mine
            settled = [
                (claim, outcome)
                for claim, outcome in zip(mine, outcomes, strict=False)
                if outcome is not None
            ]
            if settled:
                await self._settle(self.workers[worker], settled)

        self.world.run(both())

    async def _claim(self, wanted: list[JobId], me: WorkerId) -> list[Claimed]:
        now = await self._clear_now()
        answers = await claim_jobs(
            self.world.worker, wanted, worker_id=me, lanes=ALL_LANES, types=TYPES
        )
        assert self.fleet.claim(wanted, me, now) == [answer.verdict for answer in answers]
        return [
            (me, answer.job_id, answer.claim.claim_no)
            for answer in answers
            if answer.claim is not None
        ]

    async def _settle(self, me: WorkerId, settled: list[tuple[Claimed, Outcome]]) -> None:
        now = await self._clear_now()
        report = await settle_jobs(
            self.world.worker,
            me,
            [
                Settlement(job_id=job_id, claim_no=claim_no, outcome=one, policy=RetryPolicy())
                for (_, job_id, claim_no), one in settled
            ],
        )
        expected = self.fleet.settle(
            me, [(job_id, claim_no, one) for (_, job_id, claim_no), one in settled], now
        )
        assert expected == [receipt.settled for receipt in report.receipts]

    @precondition(lambda self: self.claims)
    @rule(
        numbers=st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True),
        outcomes=st.lists(st.sampled_from(OUTCOMES), min_size=4, max_size=4),
    )
    def settle(self, numbers: list[int], outcomes: list[Outcome]) -> None:
        """Of one worker; not every claim stands, and not every one was its own."""
        claims = {claim[1]: claim for claim in map(self._recent, numbers)}
        me = next(iter(claims.values()))[0]
        settled = list(zip(claims.values(), outcomes, strict=False))
        self.world.run(self._settle(me, settled))

    @precondition(lambda self: self.claims)
    @rule(number=st.integers(0, 7), done=st.integers(1, 9))
    def progress(self, number: int, done: int) -> None:
        async def both() -> None:
            _, job_id, claim_no = self._recent(number)
            now = await self._clear_now()
            renewal = Renewal(job_id=job_id, claim_no=claim_no, renewable_for=timedelta(days=9))
            stands = self.fleet.progress(job_id, claim_no, done, {"at": done}, now)
            try:
                flagged = await report_progress(
                    self.world.worker, renewal, done=done, total=9, cursor={"at": done}
                )
            except ClaimLost:
                assert not stands
            else:
                assert stands
                assert flagged is (self.fleet.jobs[job_id].flag is not None)

        self.world.run(both())

    @rule(worker=worker_numbers)
    def beat(self, worker: int) -> None:
        async def both() -> None:
            me = self.workers[worker]
            named = {(job_id, no) for who, job_id, no in self.claims if who == me}
            held = {
                (job.job_id, job.claim_no) for job in self.fleet.jobs.values() if job.holder == me
            }
            await self._clear_now()
            answer = await renew_claims(self.world.worker, me, [])
            again = await renew_claims(
                self.world.worker,
                me,
                # Not long enough to renew any lock: the model does not know of renewals.
                [Renewal(job_id=i, claim_no=no, renewable_for=timedelta(0)) for i, no in named],
            )
            assert answer.alive
            assert answer.strays == held
            assert again.strays == frozenset()
            assert again.lost == named - held

        self.world.run(both())

    @precondition(lambda self: self.fleet.jobs)
    @rule(number=job_numbers, code=st.sampled_from(CancelCode))
    def cancel(self, number: int, code: CancelCode) -> None:
        async def both() -> None:
            (job_id,) = self._some([number])
            now = await self._clear_now()
            reason, _ = await cancel_job(self.world.worker, job_id, code=code, detail=None)
            expected = self.fleet.cancel(job_id, code, now)
            assert expected is (reason is ResultReason.REQUESTED)

        self.world.run(both())

    @rule(what=st.sampled_from(PAUSES))
    def pause(self, what: Pause) -> None:
        self.world.run(pause(self.world.operator, what, by="tests", reason="a test"))
        self.fleet.pauses.add(what)

    @precondition(lambda self: self.fleet.pauses)
    @rule(what=st.sampled_from(PAUSES))
    def resume(self, what: Pause) -> None:
        async def both() -> None:
            now = await self._clear_now()
            answer = await resume(self.world.operator, what)
            assert answer is self.fleet.resume(what, now)

        self.world.run(both())

    @rule(worker=worker_numbers)
    def rescue(self, worker: int) -> None:
        """It dies, and another one starts in its place."""

        async def both() -> None:
            me = self.workers[worker]
            now = await self._clear_now()
            (seen,) = [
                worker
                for worker in await look_at_workers(self.world.maintenance)
                if worker.worker_id == me
            ]
            assert await rescue_worker(self.world.maintenance, seen) is not None
            self.fleet.rescue(me, now)
            assert not (await renew_claims(self.world.worker, me, [])).alive
            try:
                await claim_jobs(
                    self.world.worker,
                    list(self.fleet.jobs)[:1],
                    worker_id=me,
                    lanes=ALL_LANES,
                    types=TYPES,
                )
            except ClaimLost:
                pass
            else:
                assert not self.fleet.jobs, "a dead worker may claim"
            self.workers[worker] = await a_worker(self.world.worker)

        self.world.run(both())

    @precondition(lambda self: self.fleet.jobs)
    @rule(number=job_numbers)
    def retry_now(self, number: int) -> None:
        async def both() -> None:
            (job_id,) = self._some([number])
            now = await self._clear_now()
            rings = await ring_now(self.world.operator, job_id)
            assert self.fleet.retry_now(job_id, now) is bool(rings)

        self.world.run(both())

    @precondition(lambda self: self.fleet.jobs)
    @rule()
    def dispatch(self) -> None:
        async def both() -> None:
            now = await self._clear_now()
            rings = await due_rings(self.world.maintenance)
            await confirm_rings(self.world.maintenance, rings)
            assert self.fleet.dispatch(now) == {ring.job_id for ring in rings}

        self.world.run(both())

    @precondition(lambda self: self.fleet.jobs)
    @rule()
    def hear_nothing(self) -> None:
        async def both() -> None:
            now = await self._clear_now()
            lost = await forget_lost(
                self.world.maintenance, Lane.FAST, silent=now, heard=None, limit=100
            )
            assert self.fleet.silence(now) == lost

        self.world.run(both())

    @rule()
    def look_for_forgotten_heads(self) -> None:
        async def both() -> None:
            now = await self._clear_now()
            page = await ring_heads(self.world.maintenance, JobId(UUID(int=0)), limit=100)
            assert self.fleet.look_for_heads(now) == page.rung

        self.world.run(both())

    @precondition(lambda self: self.fleet.jobs)
    @rule(span=st.sampled_from(AGES))
    def time_passes(self, span: timedelta) -> None:
        self.world.run(self._age(span))

    @invariant()
    def there_is_no_difference(self) -> None:
        self.world.run(self._compare())

    async def _compare(self) -> None:
        rows = {row["id"]: row for row in await self.world.superuser.fetch(JOBS)}
        assert set(rows) == set(self.fleet.jobs)
        for job_id, job in self.fleet.jobs.items():
            self._compare_job(job, rows[job_id])
        targets = await self.world.superuser.fetch("SELECT target, running_job FROM targets")
        assert {row["target"]: row["running_job"] for row in targets} == self.fleet.running
        ends = await self.world.superuser.fetch("SELECT * FROM attempts ORDER BY job_id, claim_no")
        for job_id, job in self.fleet.jobs.items():
            assert job.ends == [
                End(row["claim_no"], row["worker_id"], row["outcome"], row["charged"])
                for row in ends
                if row["job_id"] == job_id
            ]

    def _compare_job(self, job: Job, row: asyncpg.Record) -> None:
        """After a time was found where the model expects it, the model goes on with that one."""
        assert (
            job.state,
            job.lane,
            job.claim_no,
            job.attempts,
            job.crashes,
            job.holder,
            job.target_seq,
            job.flag,
            job.failure,
            job.done,
            job.cursor,
        ) == (
            row["state"],
            row["lane"],
            row["claim_no"],
            row["attempts"],
            row["crashes"],
            row["locked_by"],
            row["target_seq"],
            row["cancel_code"],
            row["failure_code"],
            row["progress_done"],
            row["progress_cursor"],
        )
        if job.state in {JobState.QUEUED, JobState.FAILED_RETRYABLE}:
            assert job.run_at.holds(row["run_at"], SLACK)
            job.run_at = exactly(row["run_at"])
        if job.locked_at is not None:
            assert Span(job.locked_at, job.locked_at).holds(row["locked_at"], SLACK)
            job.locked_at = row["locked_at"]
        if job.bell is None:
            assert row["sends"] is None
        else:
            assert (job.bell.sends, job.lane) == (row["sends"], row["rung_in"])
            next_at = None if row["next_at"].year == PARKED else row["next_at"]
            job.bell = Bell(
                _found(job.bell.next_at, next_at),
                _found(job.bell.sent_at, row["sent_at"]),
                row["sends"],
            )

    def teardown(self) -> None:
        async def check() -> None:
            for one in INVARIANTS:
                await one(self.world.superuser)

        self.world.run(check())


def _found(expected: Span | None, found: datetime | None) -> Span | None:
    assert (expected is None) is (found is None)
    if expected is None or found is None:
        return None
    assert expected.holds(found, SLACK)
    return exactly(found)


@pytest.mark.timeout(120 if EXAMPLES <= 60 else 0)
def test_the_store_and_the_model_of_the_lifecycle_never_differ(
    postgres: Server, template: str
) -> None:
    Life.world = World(postgres, template)
    Life.world.run(Life.world.open())
    bounds = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=[phase for phase in Phase if phase is not Phase.explain],  # it runs for minutes
    )
    try:
        run_state_machine_as_test(Life, settings=bounds)
    finally:
        Life.world.close()
