"""The lifecycle is what the statements do, and all that the database lets anybody do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID, uuid4

import asyncpg
import pytest

from imagefleet.embedded.cluster import installed_software
from imagefleet.errors import ClaimLost, NotFound
from imagefleet.jobs.lifecycle import (
    TRANSITIONS,
    Actor,
    Completed,
    Outcome,
    Released,
    Retry,
    is_legal,
)
from imagefleet.jobs.model import TERMINAL, CancelCode, JobId, JobState, Lane, PauseScope, Verdict
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import force_open, report_probe_worked, reset_breaker
from imagefleet.store.fleet.ledger import fold_entries, fold_ledger
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.fleet.workers import retire_worker, start_drain
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
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
from tests.support.database import Database, driver_of
from tests.support.factories import (
    ALL_LANES,
    CORRUPT,
    TENANT,
    TYPES,
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

Edge: TypeAlias = tuple[JobState, JobState]

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState
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
    by: Actor
    edges: frozenset[Edge] = frozenset()


STATEMENTS = MappingProxyType(
    {
        "replay": Case(replay, Actor.API),
        "claim": Case(
            claim,
            Actor.WORKER,
            CLAIMS | {(PROCESSING, PROCESSING), (PROCESSING, FAILED)},
        ),
        "renew": Case(renew, Actor.WORKER),
        "progress": Case(progress, Actor.WORKER),
        "complete": Case(settle(Completed()), Actor.WORKER, frozenset({(PROCESSING, COMPLETED)})),
        "retry": Case(
            settle(UNAVAILABLE),
            Actor.WORKER,
            # flagged, or attempts exhausted
            frozenset({(PROCESSING, FAILED_RETRYABLE), (PROCESSING, FAILED)}),
        ),
        "retry after a crash": Case(
            settle(Retry(code="crashed", message="It crashed.", crashed=True)),
            Actor.WORKER,
            frozenset({(PROCESSING, FAILED_RETRYABLE), (PROCESSING, FAILED)}),  # flagged, or poison
        ),
        "fail": Case(settle(CORRUPT), Actor.WORKER, frozenset({(PROCESSING, FAILED)})),
        "release": Case(
            settle(Released(why="drain")),
            Actor.WORKER,
            frozenset({(PROCESSING, FAILED_RETRYABLE), (PROCESSING, FAILED)}),  # flagged
        ),
        "cancel": Case(cancel, Actor.WORKER),
        "drain and retire": Case(drain, Actor.WORKER),
        "trip and close a breaker": Case(trip_and_close, Actor.WORKER),
        "ring now": Case(ring, Actor.OPERATOR),
        "confirm rings": Case(confirm, Actor.OPERATOR),
        "dispatch": Case(dispatch, Actor.MAINTENANCE),
        "pause and resume": Case(pause_and_resume, Actor.OPERATOR),
        "force and reset a breaker": Case(force_and_reset, Actor.OPERATOR),
        "rescue": Case(
            rescue,
            Actor.MAINTENANCE,
            frozenset({(PROCESSING, FAILED_RETRYABLE), (PROCESSING, FAILED)}),  # flagged, or poison
        ),
        "prune": Case(prune, Actor.MAINTENANCE),
        "read": Case(read, Actor.API),
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

    found = await recorded_edges(superuser)
    assert {(edge, f"imagefleet_{case.by.value}") for edge in case.edges} == found
    assert all(is_legal(source, target, case.by) for (source, target), _ in found)


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
        (FAILED_RETRYABLE, FAILED, Actor.WORKER),
        (FAILED_RETRYABLE, FAILED, Actor.MAINTENANCE),
    } == missing


@pytest.mark.parametrize("by", list(Actor))
async def test_every_role_may_create_a_job_and_it_is_queued(
    by: Actor, database: Database, superuser: Connection
) -> None:
    submission = a_submission(target="image:1")

    async with database.connect(by.value) as connection:
        await submit_job(connection, submission)

    assert "queued" == await state_of(superuser, submission.job_id)
    assert is_legal(None, QUEUED, by)


async def state_of(connection: Connection, job_id: object) -> str | None:
    state: str | None = await connection.fetchval("SELECT state FROM jobs WHERE id = $1", job_id)
    return state


# What the database itself refuses. Each change is written so that only the trigger can mind it: the
# columns that go with the new state are set as the row's own constraints want them.


def change_of_state(target: JobState, *, everything: bool) -> str:
    """An UPDATE of the row $1; without `everything`, of the columns that maintenance may write."""
    columns = {
        "state": f"'{target}'",
        "locked_by": f"'{uuid4()}'" if target is PROCESSING else "NULL",
        "locked_at": "now()" if target is PROCESSING else "NULL",
        "finished_at": "now()" if target in TERMINAL else "NULL",
        "failure_code": "'corrupt'" if target is FAILED else "NULL",
        "failure_message": "'It is damaged.'" if target is FAILED else "NULL",
    }
    if everything:
        columns["result_reason"] = "'done'" if target is COMPLETED else "NULL"
        if target is PROCESSING:
            columns["claim_no"] = "claim_no + 1"
    changes = ", ".join(f"{column} = {value}" for column, value in columns.items())
    return f"UPDATE jobs SET {changes} WHERE id = "  # noqa: S608 - words of this file


async def one_of_each_state(worker: Connection, superuser: Connection) -> dict[JobState, MadeJob]:
    """The processing one has an expired lock, so that its takeover is legal."""
    return {
        state: await a_job(worker, superuser, state=state, lock_expired=state is PROCESSING)
        for state in JobState
    }


async def refusal(connection: Connection, statement: str, *arguments: object) -> str | None:
    """The SQLSTATE with which Postgres refuses this; None (and nothing changed) if it does not."""
    undo = driver_of(connection).transaction()
    await undo.start()
    try:
        await driver_of(connection).execute(statement, *arguments)
    except asyncpg.PostgresError as error:
        return error.sqlstate
    finally:
        await undo.rollback()
    return None


def expected_refusal(source: JobState, target: JobState, by: Actor | None) -> str | None:
    """`by` None is somebody whom no grant holds back."""
    if by in {Actor.API, Actor.OPERATOR}:
        return "42501"
    stays = source is target and source in {QUEUED, FAILED_RETRYABLE}  # no change of state
    return None if stays or is_legal(source, target, by) else "IF001"


@pytest.mark.parametrize(
    ("role", "by"),
    [
        ("superuser", None),
        ("owner", None),
        ("worker", Actor.WORKER),
        ("maintenance", Actor.MAINTENANCE),
        ("api", Actor.API),
        ("operator", Actor.OPERATOR),
    ],
)
async def test_no_role_may_take_an_edge_that_is_not_its_own(
    role: str,
    by: Actor | None,
    database: Database,
    worker: Connection,
    superuser: Connection,
) -> None:
    jobs = await one_of_each_state(worker, superuser)

    async with database.connect(role) as connection:  # type: ignore[arg-type]
        found = {
            (source, target): await refusal(
                connection,
                change_of_state(target, everything=by is not Actor.MAINTENANCE) + "$1",
                jobs[source].job_id,
            )
            for source, target in product(JobState, JobState)
        }

    expected = {
        (source, target): expected_refusal(source, target, by)
        for source, target in product(JobState, JobState)
    }
    assert expected == found


PSQL = installed_software() / "bin" / "psql"


async def answers_of_psql(url: str, statements: Sequence[str]) -> list[str]:
    """The first words of what psql prints for each statement, undone one by one."""
    script = "\\set VERBOSITY sqlstate\n" + "".join(
        f"BEGIN;\n{statement};\nROLLBACK;\n" for statement in statements
    )
    process = await asyncio.create_subprocess_exec(
        str(PSQL),
        "--no-psqlrc",
        url,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate(script.encode())
    lines = printed.decode().splitlines()
    return [line for line in lines if line not in {"BEGIN", "ROLLBACK"}]


async def test_a_person_with_psql_may_take_no_other_edge_either(
    database: Database, worker: Connection, superuser: Connection
) -> None:
    jobs = await one_of_each_state(worker, superuser)
    edges = list(product(JobState, JobState))

    printed = await answers_of_psql(
        database.url("superuser"),
        [
            change_of_state(target, everything=True) + f"'{jobs[source].job_id}'"
            for source, target in edges
        ],
    )

    expected = [
        "UPDATE 1" if expected_refusal(*edge, None) is None else "ERROR:  IF001" for edge in edges
    ]
    assert dict(zip(edges, expected, strict=True)) == dict(zip(edges, printed, strict=True))


@pytest.mark.parametrize("role", ["superuser", "owner"])
@pytest.mark.parametrize(
    "columns",
    [
        {
            "state": "'processing'",
            "claim_no": "1",
            "locked_by": "gen_random_uuid()",
            "locked_at": "now()",
        },
        {"state": "'completed'", "result_reason": "'done'", "finished_at": "now()"},
        {"state": "'failed_retryable'"},
        {
            "state": "'failed'",
            "failure_code": "'x'",
            "failure_message": "'x'",
            "finished_at": "now()",
        },
        {"claim_no": "1"},
        {"attempts": "1"},
        {"crashes": "1"},
        {"cancel_requested_at": "now()", "cancel_code": "'cancelled'"},
    ],
    ids=lambda columns: "+".join(columns) if isinstance(columns, dict) else columns,
)
async def test_a_job_is_born_queued_unclaimed_uncharged_and_unflagged(
    role: str, columns: dict[str, str], database: Database
) -> None:
    born = {
        "id": "gen_random_uuid()",
        "tenant_id": "'acme'",
        "type": "'noop'",
        "lane": "'fast'",
        "correlation_id": "'x'",
        "created_by": "'x'",
    }
    values = born | columns
    statement = f"INSERT INTO jobs ({', '.join(values)}) VALUES ({', '.join(values.values())})"  # noqa: S608

    async with database.connect(role) as connection:  # type: ignore[arg-type]
        assert "IF001" == await refusal(connection, statement)


@pytest.mark.parametrize("role", ["superuser", "owner", "maintenance"])
async def test_only_a_finished_job_is_ever_deleted(
    role: str, database: Database, worker: Connection, superuser: Connection
) -> None:
    jobs = await one_of_each_state(worker, superuser)

    async with database.connect(role) as connection:  # type: ignore[arg-type]
        found = {
            state: await refusal(connection, "DELETE FROM jobs WHERE id = $1", job.job_id)
            for state, job in jobs.items()
        }

    assert {state: None if state in TERMINAL else "IF001" for state in JobState} == found


@pytest.mark.parametrize("role", ["superuser", "owner"])
@pytest.mark.parametrize("statement", ["TRUNCATE jobs", "TRUNCATE jobs CASCADE"])
async def test_jobs_are_never_truncated(role: str, statement: str, database: Database) -> None:
    async with database.connect(role) as connection:  # type: ignore[arg-type]
        assert "IF001" == await refusal(connection, statement)


@pytest.mark.parametrize("role", ["superuser", "owner"])
async def test_an_attempts_row_is_never_rewritten(
    role: str, database: Database, worker: Connection, superuser: Connection
) -> None:
    await a_job(worker, superuser, state=COMPLETED)

    async with database.connect(role) as connection:  # type: ignore[arg-type]
        assert "IF001" == await refusal(connection, "UPDATE attempts SET why = 'another'")


@asynccontextmanager
async def with_lock_aged(
    connection: Connection, job: MadeJob, beyond_timeout: timedelta
) -> AsyncIterator[None]:
    """Inside, `now()` stands still, and the lock is exactly that much older than the timeout."""
    undo = driver_of(connection).transaction()
    await undo.start()
    try:
        await connection.execute(
            """
            UPDATE jobs SET locked_at = now() - fleet.lock_timeout - $2::interval
              FROM fleet
             WHERE jobs.id = $1
            """,
            job.job_id,
            beyond_timeout,
        )
        yield
    finally:
        await undo.rollback()


TAKE_OVER = """
UPDATE jobs SET claim_no = claim_no + 1, locked_by = gen_random_uuid(), locked_at = now()
 WHERE id = $1
"""
MILLISECOND = timedelta(milliseconds=1)
AROUND_THE_EDGE = [
    pytest.param(-MILLISECOND, False, id="a millisecond before"),
    pytest.param(timedelta(0), False, id="exactly at the timeout"),
    pytest.param(MILLISECOND, True, id="a millisecond after"),
]


@pytest.mark.parametrize(("beyond_timeout", "expired"), AROUND_THE_EDGE)
async def test_the_trigger_lets_a_lock_be_taken_over_only_once_it_has_expired(
    beyond_timeout: timedelta,
    expired: bool,  # noqa: FBT001 - a column of the table above
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)

    async with with_lock_aged(superuser, job, beyond_timeout):
        found = await refusal(superuser, TAKE_OVER, job.job_id)

    assert (None if expired else "IF001") == found


@pytest.mark.parametrize(("beyond_timeout", "expired"), AROUND_THE_EDGE)
async def test_the_claim_and_the_trigger_agree_when_a_lock_has_expired(
    beyond_timeout: timedelta,
    expired: bool,  # noqa: FBT001 - a column of the table above
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)
    another = await a_worker(worker)

    async with with_lock_aged(superuser, job, beyond_timeout):
        (answer,) = await claim_jobs(
            superuser, [job.job_id], worker_id=another, lanes=ALL_LANES, types=TYPES
        )

    assert (Verdict.CLAIMED if expired else Verdict.BUSY) == answer.verdict


async def test_the_lock_timeout_is_the_one_of_the_fleets_row(
    worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)
    await superuser.execute("UPDATE jobs SET locked_at = now() - interval '2 minutes'")
    before = await refusal(superuser, TAKE_OVER, job.job_id)

    await superuser.execute("UPDATE fleet SET lock_timeout = interval '1 minute'")

    assert ("IF001", None) == (before, await refusal(superuser, TAKE_OVER, job.job_id))


LOCK = "locked_by = gen_random_uuid(), locked_at = now()"
UNLOCK = "locked_by = NULL, locked_at = NULL"


@pytest.mark.parametrize(
    ("state", "change"),
    [
        (QUEUED, "claim_no = claim_no - 1"),
        (QUEUED, "claim_no = claim_no + 1"),
        (FAILED_RETRYABLE, "claim_no = claim_no - 1"),
        (FAILED_RETRYABLE, "claim_no = 0"),
        (PROCESSING, "claim_no = claim_no - 1"),
        (PROCESSING, "locked_by = gen_random_uuid()"),
        (PROCESSING, "claim_no = claim_no + 2, locked_by = gen_random_uuid()"),
        (PROCESSING, "claim_no = 0, locked_by = gen_random_uuid()"),
        (PROCESSING, f"{UNLOCK}, state = 'failed_retryable', claim_no = 0"),
        (FAILED_RETRYABLE, f"{LOCK}, state = 'processing'"),
        (FAILED_RETRYABLE, f"{LOCK}, state = 'processing', claim_no = claim_no + 2"),
    ],
)
async def test_a_claim_raises_claim_no_by_one_and_nothing_else_moves_it(
    state: JobState, change: str, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=state, lock_expired=True)

    statement = f"UPDATE jobs SET {change} WHERE id = $1"  # noqa: S608 - words of this file
    assert "IF001" == await refusal(superuser, statement, job.job_id)


@pytest.mark.parametrize("change", ["NULL, cancel_code = NULL", "now() + interval '1 hour'"])
async def test_a_request_to_cancel_is_never_taken_back_or_moved(
    change: str, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, flag=CancelCode.CANCELLED)

    statement = f"UPDATE jobs SET cancel_requested_at = {change} WHERE id = $1"  # noqa: S608
    assert "IF001" == await refusal(superuser, statement, job.job_id)


async def test_a_job_keeps_its_id(worker: Connection, superuser: Connection) -> None:
    job = await a_job(worker, superuser)

    statement = "UPDATE jobs SET id = gen_random_uuid() WHERE id = $1"
    assert "IF001" == await refusal(superuser, statement, job.job_id)


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_nothing_of_a_finished_job_is_rewritten(
    state: JobState, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=state)

    statement = "UPDATE jobs SET result = '{}' WHERE id = $1"
    assert "IF001" == await refusal(superuser, statement, job.job_id)
