"""Every row of the lifecycle's table happens, for each reason and by each role that it names.

The rows are the product's own TRANSITIONS: an edge, a reason or an actor that is added there fails
here until there is a way to make it happen.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import TRANSITIONS, Completed, Outcome, Released, Retry, Role
from imagefleet.jobs.model import CancelCode, JobId, JobState, Lane
from imagefleet.jobs.replays import ReplayOrder
from imagefleet.store.database import Connection
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.letters.replays import replay_letters, replay_redriven
from tests.support.database import Database
from tests.support.factories import (
    CORRUPT,
    UNAVAILABLE,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    expire_lock,
    hold_job,
    settle_job,
)
from tests.support.rows import attempts_rows, job_row, ring_row, running_job

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState
TARGET = "photo"
CRASHED = Retry(code="crashed", message="It crashed.", crashed=True)

RECORD_EDGES = """
CREATE TABLE edges (job_id uuid, source text, target text, by text);
CREATE FUNCTION record_edge() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO edges VALUES (
        NEW.id, CASE TG_OP WHEN 'UPDATE' THEN OLD.state END, NEW.state, session_user);
    RETURN NULL;
END
$$;
CREATE TRIGGER births_are_recorded AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION record_edge();
CREATE TRIGGER edges_are_recorded AFTER UPDATE ON jobs FOR EACH ROW
WHEN (OLD.state <> NEW.state OR OLD.claim_no <> NEW.claim_no) EXECUTE FUNCTION record_edge();
"""

# Allowed, so that a waiting job can be given up without a claim; no statement does it at present.
# Whoever may take this edge may take all of it: a job that waits no more has no ring.
GIVE_UP = """
WITH given_up AS (
    UPDATE jobs SET state = 'failed', failure_code = $2, failure_message = 'It was given up.',
                    finished_at = now(), updated_at = now()
     WHERE id = $1 AND state = 'failed_retryable'
    RETURNING id
)
DELETE FROM rings USING given_up WHERE rings.job_id = given_up.id
"""

Ended: TypeAlias = tuple[str, str, bool]
"""Outcome, why, charged: of the claim that ended with this edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`by` is the connection of the role in question; the others set the scene."""

    by: Connection
    worker: Connection
    superuser: Connection

    async def held(
        self, *, max_attempts: int = 5, lane: Lane = Lane.FAST, flag: CancelCode | None = None
    ) -> MadeJob:
        submission = a_submission(target=TARGET, max_attempts=max_attempts, lane=lane)
        return await a_job(
            self.worker, self.superuser, state=PROCESSING, submission=submission, flag=flag
        )


How: TypeAlias = Callable[[Scene], Awaitable[JobId]]


async def submit(scene: Scene) -> JobId:
    return (await submit_job(scene.by, a_submission(target=TARGET))).job_id


async def replay_as_operator(scene: Scene) -> JobId:
    failed = await a_job(scene.worker, scene.superuser, state=FAILED)
    order = ReplayOrder(by="tests", reason="a test")
    (replayed,) = await replay_letters(scene.by, [failed.job_id], order, BUILT_IN)
    assert replayed.replayed_as is not None
    return replayed.replayed_as


async def replay_by_redrive(scene: Scene) -> JobId:
    failed = await a_job(scene.worker, scene.superuser, state=FAILED)
    replayed = await replay_redriven(scene.by, failed.job_id, BUILT_IN)
    assert replayed is not None
    assert replayed.replayed_as is not None
    return replayed.replayed_as


async def follow_up(scene: Scene) -> JobId:
    parent, child = await scene.held(), a_submission()
    await settle_job(scene.by, parent, Completed(follow_ups=(child,)))
    return child.job_id


def claim(state: JobState) -> How:
    async def how(scene: Scene) -> JobId:
        submission = a_submission(target=TARGET)
        job = await a_job(scene.worker, scene.superuser, state=state, submission=submission)
        await hold_job(scene.by, job.job_id, await a_worker(scene.worker))
        return job.job_id

    return how


async def take_over(scene: Scene) -> JobId:
    job = await scene.held()
    await expire_lock(scene.superuser, job.job_id)
    await claim_job(scene.by, job.job_id, await a_worker(scene.worker))
    return job.job_id


async def expire(scene: Scene) -> JobId:
    job = await scene.held(max_attempts=1)
    await expire_lock(scene.superuser, job.job_id)
    await claim_job(scene.by, job.job_id, await a_worker(scene.worker))
    return job.job_id


def settle(
    outcome: Outcome,
    *,
    max_attempts: int = 5,
    lane: Lane = Lane.FAST,
    flag: CancelCode | None = None,
) -> How:
    async def how(scene: Scene) -> JobId:
        job = await scene.held(max_attempts=max_attempts, lane=lane, flag=flag)
        await settle_job(scene.by, job, outcome)
        return job.job_id

    return how


def rescue(*, lane: Lane = Lane.FAST, flag: CancelCode | None = None) -> How:
    async def how(scene: Scene) -> JobId:
        job = await scene.held(lane=lane, flag=flag)
        (seen,) = await look_at_workers(scene.by)
        assert await rescue_worker(scene.by, seen) is not None
        return job.job_id

    return how


def give_up(code: str) -> How:
    async def how(scene: Scene) -> JobId:
        submission = a_submission(target=TARGET)
        job = await a_job(
            scene.worker, scene.superuser, state=FAILED_RETRYABLE, submission=submission
        )
        await scene.by.execute(GIVE_UP, job.job_id, code)
        return job.job_id

    return how


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One edge for one reason by one role, and what the job is left as."""

    source: JobState | None
    target: JobState
    when: str
    by: Role
    how: How
    ended: Ended | None = None
    code: str | None = None


def failed(when: str, by: Role, how: How, ended: Ended, code: str) -> Case:
    return Case(source=PROCESSING, target=FAILED, when=when, by=by, how=how, ended=ended, code=code)


def given_up(when: str, code: str) -> list[Case]:
    return [
        Case(
            source=FAILED_RETRYABLE, target=FAILED, when=when, by=by, how=give_up(code),
            ended=("retried", "unavailable", True), code=code,
        )
        for by in (Role.WORKER, Role.MAINTENANCE)
    ]  # fmt: skip


QUARANTINE, CANCELLED = Lane.QUARANTINE, CancelCode.CANCELLED
W, M = Role.WORKER, Role.MAINTENANCE

CASES: tuple[Case, ...] = (
    *(Case(source=None, target=QUEUED, when="submit", by=by, how=submit) for by in Role),
    Case(source=None, target=QUEUED, when="replay", by=Role.OPERATOR, how=replay_as_operator),
    Case(source=None, target=QUEUED, when="replay", by=W, how=replay_by_redrive),
    Case(source=None, target=QUEUED, when="follow-up", by=W, how=follow_up),
    Case(source=QUEUED, target=PROCESSING, when="claim", by=W, how=claim(QUEUED)),
    Case(
        source=FAILED_RETRYABLE, target=PROCESSING, when="claim", by=W,
        how=claim(FAILED_RETRYABLE), ended=("retried", "unavailable", True),
    ),
    Case(
        source=PROCESSING, target=PROCESSING, when="takeover of an expired lock", by=W,
        how=take_over, ended=("taken_over", "lock_expired", True),
    ),
    Case(
        source=PROCESSING, target=COMPLETED, when="complete", by=W,
        how=settle(Completed()), ended=("completed", "done", True),
    ),
    Case(
        source=PROCESSING, target=FAILED_RETRYABLE, when="retry", by=W,
        how=settle(UNAVAILABLE), ended=("retried", "unavailable", True), code="unavailable",
    ),
    Case(
        source=PROCESSING, target=FAILED_RETRYABLE, when="release", by=W,
        how=settle(Released(why="drain")), ended=("released", "drain", False),
    ),
    Case(
        source=PROCESSING, target=FAILED_RETRYABLE, when="rescue", by=M,
        how=rescue(), ended=("rescued", "worker_lost", True), code="worker_lost",
    ),
    failed("permanent error", W, settle(CORRUPT), ("failed", "corrupt", True), "corrupt"),
    failed(
        "attempts exhausted", W, settle(UNAVAILABLE, max_attempts=1),
        ("failed", "unavailable", True), "unavailable",
    ),
    failed(
        "attempts exhausted", W, expire,
        ("exhausted", "lock_expired", True), "attempts_exhausted",
    ),
    failed(
        "cancelled", W, settle(Released(why="cancelled"), flag=CANCELLED),
        ("failed", "cancelled", True), "cancelled",
    ),
    failed("cancelled", M, rescue(flag=CANCELLED), ("rescued", "cancelled", True), "cancelled"),
    failed("poison", W, settle(CRASHED, lane=QUARANTINE), ("failed", "poison", True), "poison"),
    failed("poison", M, rescue(lane=QUARANTINE), ("rescued", "poison", True), "poison"),
    *given_up("permanent error", "corrupt"),
    *given_up("attempts exhausted", "attempts_exhausted"),
    *given_up("cancelled", "cancelled"),
    *given_up("poison", "poison"),
)  # fmt: skip


def test_the_cases_are_all_edges_with_all_their_reasons_and_actors() -> None:
    edges = {(edge.source, edge.target): edge for edge in TRANSITIONS}
    assert set(edges) == {(case.source, case.target) for case in CASES}
    for pair, edge in edges.items():
        mine = [case for case in CASES if (case.source, case.target) == pair]
        assert edge.by == {case.by for case in mine}, edge
        assert set(edge.when.split(", ")) == {case.when for case in mine}, edge


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.source}-{case.target}-{case.when}-{case.by}"
)
async def test_each_edge_happens_and_leaves_everything_as_it_should_be(
    case: Case, database: Database, worker: Connection, superuser: Connection
) -> None:
    await superuser.execute(RECORD_EDGES)
    async with database.connect(case.by.value) as by:
        job_id = await case.how(Scene(by=by, worker=worker, superuser=superuser))

    last = await superuser.fetchrow(
        "SELECT source, target, by FROM edges WHERE job_id = $1 ORDER BY ctid DESC LIMIT 1", job_id
    )
    assert last is not None
    assert (case.source, case.target, f"imagefleet_{case.by}") == tuple(last)
    await is_consistent(case, superuser, job_id)


async def is_consistent(case: Case, superuser: Connection, job_id: JobId) -> None:
    """The row, its ring, its target, its attempts and its letter agree."""
    row = await job_row(superuser, job_id)
    assert case.target == row["state"]
    assert (case.target is PROCESSING) == (row["locked_by"] is not None)
    assert case.target is PROCESSING or case.code == row["failure_code"]
    waits = case.target in {QUEUED, FAILED_RETRYABLE}
    assert waits == (await ring_row(superuser, job_id) is not None)
    assert (case.target is PROCESSING) == (await running_job(superuser, TARGET) == job_id)
    ends = [
        (row["outcome"], row["why"], row["charged"])
        for row in await attempts_rows(superuser, job_id)
    ]
    assert ([] if case.ended is None else [case.ended]) == ends
    assert row["attempts"] == sum(charged for *_, charged in ends) + (case.target is PROCESSING)
    letters = await superuser.fetchval(
        "SELECT count(*) FROM dead_letters WHERE job_id = $1", job_id
    )
    assert int(case.target is FAILED and case.code != "cancelled") == letters
