"""The statements take exactly the edges of the lifecycle that are theirs, from every state."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

import pytest

from imagefleet.errors import ClaimLost, NotFound
from imagefleet.jobs.lifecycle import (
    TRANSITIONS,
    Completed,
    Outcome,
    Released,
    Retry,
    Role,
)
from imagefleet.jobs.model import CancelCode, JobId, JobState, Lane, PauseScope
from imagefleet.store.database import Connection
from imagefleet.store.fleet.bookkeeping import fold_entries, fold_ledger
from imagefleet.store.fleet.breakers import force_open, report_probe_worked, reset_breaker
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.fleet.workers import retire_worker, start_drain
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.inspection import explain_job
from imagefleet.store.jobs.leases import Renewal, renew_claims, report_progress
from imagefleet.store.jobs.pruning import prune_jobs
from imagefleet.store.jobs.reports import get_job
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.rings import (
    adopt_rings,
    confirm_rings,
    forget_lost,
    ring_heads,
    ring_now,
)
from imagefleet.store.jobs.submissions import submit_job
from tests.support.database import Database
from tests.support.edges import is_legal
from tests.support.factories import (
    CORRUPT,
    TENANT,
    UNAVAILABLE,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    age_finished_jobs,
    claim_job,
    due_rings,
    open_breaker,
    settle_job,
)

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState

Edge: TypeAlias = tuple[JobState, JobState]
CLAIMS: frozenset[Edge] = frozenset({(QUEUED, PROCESSING), (FAILED_RETRYABLE, PROCESSING)})
OPERATOR_PAUSE = Pause(scope=PauseScope.TYPE, name="noop")


# Every way a job can stand when a statement meets it.
SITUATIONS: MappingProxyType[str, dict[str, object]] = MappingProxyType(
    {
        "queued, due": {"state": QUEUED},
        "queued, not due": {"state": QUEUED, "due": False},
        "queued, flagged": {"state": QUEUED, "flag": CancelCode.CANCELLED},
        "queued for later, flagged": {
            "state": QUEUED,
            "due": False,
            "flag": CancelCode.IMAGE_DELETED,
        },
        "processing": {"state": PROCESSING},
        "processing, flagged": {"state": PROCESSING, "flag": CancelCode.CANCELLED},
        "claimed as cancelled": {
            "state": PROCESSING,
            "flag": CancelCode.FAILED_BY_OPERATOR,
            "flagged_before_claim": True,
        },
        "lock expired": {"state": PROCESSING, "lock_expired": True},
        "lock expired, flagged": {
            "state": PROCESSING,
            "lock_expired": True,
            "flag": CancelCode.CANCELLED,
        },
        "lock expired on the last attempt": {
            "state": PROCESSING,
            "lock_expired": True,
            "submission": lambda: a_submission(max_attempts=1),
        },
        "in quarantine": {
            "state": PROCESSING,
            "submission": lambda: a_submission(lane=Lane.QUARANTINE),
        },
        "failed_retryable, due": {"state": FAILED_RETRYABLE},
        "failed_retryable, not due": {"state": FAILED_RETRYABLE, "due": False},
        "failed_retryable, flagged": {
            "state": FAILED_RETRYABLE,
            "due": False,
            "flag": CancelCode.CANCELLED,
        },
        "completed": {"state": COMPLETED},
        "failed": {"state": FAILED},
    }
)


async def one_of_each(worker: Connection, superuser: Connection) -> dict[str, MadeJob]:
    made = {}
    for name, how in SITUATIONS.items():
        arguments = dict(how)
        make = arguments.pop("submission", a_submission)
        assert callable(make)
        made[name] = await a_job(worker, superuser, submission=make(), **arguments)  # type: ignore[arg-type]
    return made


async def replay(connection: Connection, job: MadeJob) -> None:
    await submit_job(connection, a_submission(replay_of=job.job_id))


async def claim(connection: Connection, job: MadeJob) -> None:
    await claim_job(connection, job.job_id, await a_worker(connection))


async def renew(connection: Connection, job: MadeJob) -> None:
    renewal = Renewal(job_id=job.job_id, claim_no=job.claim_no, renewable_for=timedelta(days=1))
    await renew_claims(connection, job.worker_id, [renewal])


async def progress(connection: Connection, job: MadeJob) -> None:
    renewal = Renewal(job_id=job.job_id, claim_no=job.claim_no, renewable_for=timedelta(days=1))
    await report_progress(connection, renewal, done=1, total=2, cursor={"at": 1})


def settle(outcome: Outcome) -> Callable[[Connection, MadeJob], Awaitable[None]]:
    async def settle_with_it(connection: Connection, job: MadeJob) -> None:
        await settle_job(connection, job, outcome)

    return settle_with_it


async def cancel(connection: Connection, job: MadeJob) -> None:
    await cancel_job(connection, job.job_id, code=CancelCode.CANCELLED, detail=None)


async def drain(connection: Connection, job: MadeJob) -> None:
    await start_drain(connection, job.worker_id)
    await retire_worker(connection, job.worker_id)


async def ring(connection: Connection, job: MadeJob) -> None:
    await ring_now(connection, job.job_id)


async def confirm(connection: Connection, job: MadeJob) -> None:
    await confirm_rings(connection, await ring_now(connection, job.job_id) or ())


async def dispatch(connection: Connection, job: MadeJob) -> None:
    for lane in Lane:
        await confirm_rings(connection, await due_rings(connection, lane))
        now = await connection.fetchval("SELECT now()")
        await forget_lost(connection, lane, silent=now, heard=now, limit=100)
    await adopt_rings(connection, limit=100)
    await ring_heads(connection, JobId(UUID(int=0)), limit=100)


async def pause_and_resume(connection: Connection, job: MadeJob) -> None:
    await pause(connection, OPERATOR_PAUSE, by="tests", reason="why")
    await resume(connection, OPERATOR_PAUSE)


async def trip_and_close(connection: Connection, job: MadeJob) -> None:
    await open_breaker(connection)
    await report_probe_worked(connection, "s3")


async def force_and_reset(connection: Connection, job: MadeJob) -> None:
    await force_open(connection, "s3", by="tests")
    await reset_breaker(connection, "s3", by="tests")


async def rescue(connection: Connection, job: MadeJob) -> None:
    for seen in await look_at_workers(connection):
        if seen.worker_id == job.worker_id:
            await rescue_worker(connection, seen)


async def prune(connection: Connection, job: MadeJob) -> None:
    await prune_jobs(connection, limit=100)
    await fold_ledger(connection, limit=100)
    await fold_entries(connection, limit=100)


async def read(connection: Connection, job: MadeJob) -> None:
    await get_job(connection, job.job_id, TENANT)
    await explain_job(connection, job.job_id)


@dataclass(frozen=True)
class Case:
    """A statement of the store, who runs it, and all that it does to jobs in any situation."""

    run: Callable[[Connection, MadeJob], Awaitable[None]]
    by: Role
    edges: frozenset[Edge] = frozenset()


STATEMENTS = MappingProxyType(
    {
        "replay": Case(replay, Role.API),
        "claim": Case(
            claim,
            Role.WORKER,
            CLAIMS | {(PROCESSING, PROCESSING), (PROCESSING, FAILED)},
        ),
        "renew": Case(renew, Role.WORKER),
        "progress": Case(progress, Role.WORKER),
        "complete": Case(settle(Completed()), Role.WORKER, frozenset({(PROCESSING, COMPLETED)})),
        "retry": Case(
            settle(UNAVAILABLE),
            Role.WORKER,
            # flagged, or attempts exhausted
            frozenset({(PROCESSING, FAILED_RETRYABLE), (PROCESSING, FAILED)}),
        ),
        "retry after a crash": Case(
            settle(Retry(code="crashed", message="It crashed.", crashed=True)),
            Role.WORKER,
            frozenset({(PROCESSING, FAILED_RETRYABLE), (PROCESSING, FAILED)}),  # flagged, or poison
        ),
        "fail": Case(settle(CORRUPT), Role.WORKER, frozenset({(PROCESSING, FAILED)})),
        "release": Case(
            settle(Released(why="drain")),
            Role.WORKER,
            frozenset({(PROCESSING, FAILED_RETRYABLE), (PROCESSING, FAILED)}),  # flagged
        ),
        "cancel": Case(cancel, Role.WORKER),
        "drain and retire": Case(drain, Role.WORKER),
        "trip and close a breaker": Case(trip_and_close, Role.WORKER),
        "ring now": Case(ring, Role.OPERATOR),
        "confirm rings": Case(confirm, Role.OPERATOR),
        "dispatch": Case(dispatch, Role.MAINTENANCE),
        "pause and resume": Case(pause_and_resume, Role.OPERATOR),
        "force and reset a breaker": Case(force_and_reset, Role.OPERATOR),
        "rescue": Case(
            rescue,
            Role.MAINTENANCE,
            frozenset({(PROCESSING, FAILED_RETRYABLE), (PROCESSING, FAILED)}),  # flagged, or poison
        ),
        "prune": Case(prune, Role.MAINTENANCE),
        "read": Case(read, Role.API),
    }
)

RECORD_EDGES = """
CREATE TABLE edges (source text, target text, claims bigint, by text);
CREATE FUNCTION record_edge() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO edges VALUES (OLD.state, NEW.state, NEW.claim_no - OLD.claim_no, session_user);
    RETURN NULL;
END
$$;
CREATE TRIGGER edges_are_recorded AFTER UPDATE ON jobs FOR EACH ROW
WHEN (OLD.state <> NEW.state OR OLD.claim_no <> NEW.claim_no) EXECUTE FUNCTION record_edge();
"""


async def recorded_edges(superuser: Connection) -> set[tuple[Edge, str]]:
    rows = await superuser.fetch("SELECT DISTINCT source, target, by FROM edges")
    return {((JobState(row["source"]), JobState(row["target"])), row["by"]) for row in rows}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_each_statement_takes_exactly_its_edges_from_every_state(
    name: str, database: Database, worker: Connection, superuser: Connection
) -> None:
    case = STATEMENTS[name]
    jobs = await one_of_each(worker, superuser)
    await age_finished_jobs(superuser)
    await superuser.execute(RECORD_EDGES)

    async with database.connect(case.by.value) as connection:
        for job in jobs.values():
            try:
                await case.run(connection, job)
            except (ClaimLost, NotFound):
                continue  # an answer: this job is not the one it was, or is gone

    edges = await recorded_edges(superuser)
    assert {(edge, f"imagefleet_{case.by.value}") for edge in case.edges} == edges
    assert all(is_legal(source, target, case.by) for (source, target), _ in edges)


def test_every_edge_of_the_lifecycle_is_taken_by_some_statement() -> None:
    taken = {(*edge, case.by) for case in STATEMENTS.values() for edge in case.edges}

    missing = {
        (edge.source, edge.target, actor)
        for edge in TRANSITIONS
        for actor in edge.by
        if edge.source is not None and (edge.source, edge.target, actor) not in taken
    }
    # Allowed, so that a waiting job can be given up without a claim; nobody does it at present.
    assert {
        (FAILED_RETRYABLE, FAILED, Role.WORKER),
        (FAILED_RETRYABLE, FAILED, Role.MAINTENANCE),
    } == missing


@pytest.mark.parametrize("by", list(Role))
async def test_every_role_may_create_a_job_and_it_is_queued(
    by: Role, database: Database, superuser: Connection
) -> None:
    submission = a_submission(target="image:1")

    async with database.connect(by.value) as connection:
        await submit_job(connection, submission)

    assert "queued" == await state_of(superuser, submission.job_id)
    assert is_legal(None, QUEUED, by)


async def state_of(connection: Connection, job_id: object) -> str | None:
    state: str | None = await connection.fetchval("SELECT state FROM jobs WHERE id = $1", job_id)
    return state
