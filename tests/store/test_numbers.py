"""The numbers of the design that only SQL knows, exact: within a transaction no time passes."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest

from imagefleet.jobs.model import JobId, Lane, Ring
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import Calls, report_calls
from imagefleet.store.fleet.elections import hold_election
from imagefleet.store.jobs.dispatching import hold_lanes
from imagefleet.store.jobs.rings import confirm_rings, forget_lost
from imagefleet.store.jobs.submissions import submit_job
from tests.support.database import Database
from tests.support.factories import TENANT, a_submission, a_worker, claim_job, open_breaker
from tests.support.rows import the_ring

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
async def moment(database: Database) -> AsyncIterator[Connection]:
    """A connection on which it is always the same time."""
    async with database.connect("superuser") as connection, connection.transaction():
        yield connection


async def next_in(connection: Connection, job_id: JobId) -> timedelta:
    row = await the_ring(connection, job_id)
    span: timedelta = row["next_in"]
    return span


async def test_a_lock_lasts_ten_minutes(moment: Connection) -> None:
    assert 10 * MINUTE == await moment.fetchval("SELECT lock_timeout FROM fleet")


@pytest.mark.parametrize(
    ("room", "age", "waits"),
    [
        pytest.param(0, 0 * SECOND, 0 * SECOND, id="no room"),
        pytest.param(1, 2 * SECOND, 0 * SECOND, id="nobody has looked for a second"),
        pytest.param(1, 0 * SECOND, SECOND / 2, id="room"),
    ],
)
async def test_where_there_is_room_who_submits_has_half_a_second_to_ring_by_itself(
    moment: Connection, room: int, age: timedelta, waits: timedelta
) -> None:
    await moment.execute("UPDATE lanes SET room = $1, looked_at = now() - $2::interval", room, age)
    submission = a_submission()
    submitted = await submit_job(moment, submission)

    row = await the_ring(moment, submission.job_id)
    assert (waits, row["next_at"]) == (row["next_in"], submitted.next_at)


async def test_a_lane_is_held_for_two_seconds(moment: Connection) -> None:
    assert set(Lane) == await hold_lanes(moment, uuid4())

    spans = await moment.fetch("SELECT until - now() FROM lanes")
    assert [2 * SECOND] * 3 == [row[0] for row in spans]


async def test_a_ring_counts_how_often_it_was_sent_up_to_eight(
    moment: Connection,
) -> None:
    submission = a_submission()
    await submit_job(moment, submission)
    counted = []
    for _ in range(10):
        await moment.execute("UPDATE rings SET sent_at = NULL")
        row = await the_ring(moment, submission.job_id)
        ring = Ring(
            job_id=submission.job_id,
            lane=Lane.FAST,
            next_at=row["next_at"],
            tenant_id=TENANT,
            announced_at=row["next_at"],
        )
        await confirm_rings(moment, [ring])
        counted.append(await moment.fetchval("SELECT sends FROM rings WHERE sent_at = now()"))

    assert [1, 2, 3, 4, 5, 6, 7, 8, 8, 8] == counted


# By how long it must have been sent before an empty long poll began, or before a message that was
# claimed by was announced; the last without either.
PATIENCE = {
    "silent": [5 * SECOND * 2**doublings for doublings in range(8)],
    "heard": [30 * SECOND * 2**doublings for doublings in range(8)],
    "nothing": [12 * HOUR] * 8,
}


@pytest.mark.parametrize("by", PATIENCE)
async def test_a_message_is_lost_after_so_long_and_twice_as_long_each_further_time(
    moment: Connection, by: str
) -> None:
    submission = a_submission()
    await submit_job(moment, submission)
    now = await moment.fetchval("SELECT now()")
    for sends, patience in enumerate(PATIENCE[by], start=1):
        lost = []
        for age in (patience, patience + timedelta(microseconds=1)):
            await moment.execute(
                "UPDATE rings SET sent_at = now() - $1::interval, sends = $2", age, sends
            )
            lost.append(
                await forget_lost(
                    moment,
                    Lane.FAST,
                    silent=now if by == "silent" else None,
                    heard=now if by == "heard" else None,
                    limit=1,
                )
            )

        row = await the_ring(moment, submission.job_id)
        assert [0, 1] == lost
        assert (None, sends, 0 * SECOND) == (row["sent_at"], row["sends"], row["next_in"])


async def test_an_office_is_held_for_ten_seconds(moment: Connection) -> None:
    await hold_election(moment, "sampler", uuid4())

    assert 10 * SECOND == await moment.fetchval("SELECT until - now() FROM elections")


async def retry_in(connection: Connection) -> timedelta | None:
    span: timedelta | None = await connection.fetchval(
        "SELECT retry_at - now() FROM circuit_breakers"
    )
    return span


async def test_a_breaker_that_trips_is_open_for_a_minute(moment: Connection) -> None:
    await open_breaker(moment)

    assert 60 * SECOND == await retry_in(moment)


async def test_a_job_of_a_service_that_is_down_is_due_again_in_a_second(
    moment: Connection,
) -> None:
    await open_breaker(moment)

    answer = await report_calls(moment, Calls(service="s3", failures=1))

    assert await moment.fetchval("SELECT now()") + SECOND == answer.due
    assert 60 * SECOND == answer.held_for


async def test_there_are_thirty_seconds_between_two_probes(moment: Connection) -> None:
    submission = a_submission(services=("s3",))
    await submit_job(moment, submission)
    await open_breaker(moment)
    await moment.execute("UPDATE circuit_breakers SET retry_at = now()")

    answer = await claim_job(moment, submission.job_id, await a_worker(moment))

    assert answer.claim is not None
    assert ("s3",) == answer.claim.probes
    assert 30 * SECOND == await retry_in(moment)
