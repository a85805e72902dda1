"""The numbers of the design that only SQL knows, exact: within a transaction no time passes."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from imagefleet.jobs.model import JobId, Lane, Ring
from imagefleet.store.breakers import Calls, report_calls
from imagefleet.store.elections import hold_election
from imagefleet.store.rings import confirm_rings, take_due_rings
from imagefleet.store.submissions import submit_job
from tests.support.database import Database
from tests.support.factories import TENANT, a_submission, a_worker, claim_job, open_breaker
from tests.support.rows import ring_row

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
BETWEEN_RINGS = [MINUTE * 2**doublings for doublings in range(9)] + [6 * HOUR] * 2


@pytest.fixture
async def moment(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A connection on which it is always the same time."""
    async with database.connect("superuser") as connection, connection.transaction():
        yield connection


async def due_in(connection: asyncpg.Connection, job_id: JobId) -> timedelta:
    row = await ring_row(connection, job_id)
    assert row is not None
    span: timedelta = row["due_in"]
    return span


async def test_a_lock_lasts_ten_minutes(moment: asyncpg.Connection) -> None:
    assert 10 * MINUTE == await moment.fetchval("SELECT lock_timeout FROM fleet")


async def test_the_first_ring_of_the_dispatcher_is_due_after_five_seconds(
    moment: asyncpg.Connection,
) -> None:
    submission = a_submission()
    await submit_job(moment, submission)

    assert 5 * SECOND == await due_in(moment, submission.job_id)


async def test_sent_rings_are_repeated_ever_later_and_at_least_every_six_hours(
    moment: asyncpg.Connection,
) -> None:
    submission = a_submission()
    await submit_job(moment, submission)
    spans = []
    for _ in BETWEEN_RINGS:
        row = await ring_row(moment, submission.job_id)
        assert row is not None
        ring = Ring(
            job_id=submission.job_id, lane=Lane.FAST, due_at=row["due_at"], tenant_id=TENANT
        )
        await confirm_rings(moment, [ring])
        spans.append(await due_in(moment, submission.job_id))

    assert BETWEEN_RINGS == spans


async def test_due_rings_are_repeated_at_the_same_times(moment: asyncpg.Connection) -> None:
    submission = a_submission()
    await submit_job(moment, submission)
    spans = []
    for _ in BETWEEN_RINGS:
        await moment.execute("UPDATE rings SET due_at = now()")
        assert 1 == len(await take_due_rings(moment, Lane.FAST, limit=1, repeats=True))
        spans.append(await due_in(moment, submission.job_id))

    assert BETWEEN_RINGS == spans


async def test_an_office_is_held_for_ten_seconds(moment: asyncpg.Connection) -> None:
    await hold_election(moment, "sampler", uuid4())

    assert 10 * SECOND == await moment.fetchval("SELECT until - now() FROM elections")


async def retry_in(connection: asyncpg.Connection) -> timedelta | None:
    span: timedelta | None = await connection.fetchval(
        "SELECT retry_at - now() FROM circuit_breakers"
    )
    return span


async def test_a_breaker_that_trips_is_open_for_a_minute(moment: asyncpg.Connection) -> None:
    await open_breaker(moment)

    assert 60 * SECOND == await retry_in(moment)


async def test_a_job_of_a_service_that_is_down_is_due_again_in_a_second(
    moment: asyncpg.Connection,
) -> None:
    await open_breaker(moment)

    answer = await report_calls(moment, Calls(service="s3", failures=1))

    assert await moment.fetchval("SELECT now()") + SECOND == answer.due
    assert 60 * SECOND == answer.held_for


async def test_there_are_thirty_seconds_between_two_probes(moment: asyncpg.Connection) -> None:
    submission = a_submission(services=("s3",))
    await submit_job(moment, submission)
    await open_breaker(moment)
    await moment.execute("UPDATE circuit_breakers SET retry_at = now()")

    answer = await claim_job(moment, submission.job_id, await a_worker(moment))

    assert answer.claim is not None
    assert ("s3",) == answer.claim.probes
    assert 30 * SECOND == await retry_in(moment)
