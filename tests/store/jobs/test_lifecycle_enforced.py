"""The lifecycle is what the statements do, and all that the database lets anybody do."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import product
from typing import TypeAlias
from uuid import uuid4

import asyncpg
import pytest

from imagefleet.embedded.cluster import installed_software
from imagefleet.jobs.lifecycle import (
    Role,
)
from imagefleet.jobs.model import TERMINAL, CancelCode, JobState, Verdict
from imagefleet.store.database import Connection
from imagefleet.store.jobs.claims import claim_jobs
from tests.support.database import Database, driver_of
from tests.support.edges import is_legal
from tests.support.factories import (
    ALL_LANES,
    TYPES,
    MadeJob,
    a_job,
    a_worker,
)

Edge: TypeAlias = tuple[JobState, JobState]

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState


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


def expected_refusal(source: JobState, target: JobState, by: Role | None) -> str | None:
    """`by` None is somebody whom no grant holds back."""
    if by in {Role.API, Role.OPERATOR}:
        return "42501"
    stays = source is target and source in {QUEUED, FAILED_RETRYABLE}  # no change of state
    return None if stays or is_legal(source, target, by) else "IF001"


@pytest.mark.parametrize(
    ("role", "by"),
    [
        ("superuser", None),
        ("owner", None),
        ("worker", Role.WORKER),
        ("maintenance", Role.MAINTENANCE),
        ("api", Role.API),
        ("operator", Role.OPERATOR),
    ],
)
async def test_no_role_may_take_an_edge_that_is_not_its_own(
    role: str,
    by: Role | None,
    database: Database,
    worker: Connection,
    superuser: Connection,
) -> None:
    jobs = await one_of_each_state(worker, superuser)

    async with database.connect(role) as connection:  # type: ignore[arg-type]
        found = {
            (source, target): await refusal(
                connection,
                change_of_state(target, everything=by is not Role.MAINTENANCE) + "$1",
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
        refused = await refusal(superuser, TAKE_OVER, job.job_id)

    assert (None if expired else "IF001") == refused


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
