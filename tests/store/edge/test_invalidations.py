"""Debts merge until a batch takes them; a batch is frozen, within what CloudFront takes at once."""

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from imagefleet.store.database import Connection
from imagefleet.store.edge.invalidations import (
    Accepted,
    BatchLimits,
    Debt,
    Taken,
    accept_batch,
    begin_send,
    commit_batch,
    complete_batch,
    list_accepted,
    list_unsent,
    look_at_owed,
    send_again,
)
from imagefleet.store.edge.reports import InvalidationSample, sample_invalidations
from tests.support.database import Database, driver_of
from tests.support.eventually import eventually
from tests.support.races import somebody_waits

ROOMY = BatchLimits(paths=3000, wildcards=15)
# As the statement that publishes does it.
OWE = """
INSERT INTO invalidations AS debt (image_id, tenant_id, reason) VALUES ($1, 'acme', 'replaced')
    ON CONFLICT (image_id) WHERE batch_id IS NULL
    DO UPDATE SET debts = debt.debts + 1, last_owed_at = clock_timestamp()
RETURNING debt.id
"""


async def owe(worker: Connection, image_id: UUID | None = None) -> UUID:
    debt: UUID = await worker.fetchval(OWE, image_id or uuid4())
    return debt


async def owed(connection: Connection) -> list[Debt]:
    return [row.debt for row in await look_at_owed(connection, limit=100)]


def wildcard(image_id: UUID) -> str:
    return f"/i/{image_id}/*"


def tag(image_id: UUID) -> str:
    return f"#img-{image_id}"


async def test_debts_of_an_image_merge_until_a_batch_takes_them(
    worker: Connection, maintenance: Connection, superuser: Connection
) -> None:
    image_id = uuid4()
    first = await owe(worker, image_id)
    assert first == await owe(worker, image_id)

    batch = await commit_batch(maintenance, await owed(maintenance), wildcard, within=ROOMY)
    assert batch is not None
    second = await owe(worker, image_id)

    assert [wildcard(image_id)] == batch.items
    assert first != second
    assert batch.id == await superuser.fetchval(
        "SELECT batch_id FROM invalidations WHERE id = $1", first
    )
    assert [second] == [debt.id for debt in await owed(maintenance)]


async def test_a_debt_that_was_merged_since_it_was_seen_is_another(
    worker: Connection, maintenance: Connection
) -> None:
    image_id = uuid4()
    await owe(worker, image_id)
    seen = await owed(maintenance)
    await owe(worker, image_id)

    assert await commit_batch(maintenance, seen, wildcard, within=ROOMY) is None
    assert seen != await owed(maintenance)


async def test_a_debt_that_is_being_merged_is_passed_over(
    worker: Connection, maintenance: Connection
) -> None:
    busy, idle = uuid4(), uuid4()
    await owe(worker, busy)
    await owe(worker, idle)
    seen = await owed(maintenance)

    async with worker.transaction():
        await owe(worker, busy)
        batch = await commit_batch(maintenance, seen, wildcard, within=ROOMY)

    assert batch is not None
    assert [wildcard(idle)] == batch.items


async def test_who_owes_while_a_batch_is_committed_owes_another_one(
    worker: Connection, database: Database
) -> None:
    image_id = uuid4()
    first = await owe(worker, image_id)

    async with database.connect("maintenance") as maintenance:
        async with asyncio.TaskGroup() as group, maintenance.transaction():
            await commit_batch(maintenance, await owed(maintenance), wildcard, within=ROOMY)
            owing = group.create_task(owe(worker, image_id))
            await eventually(lambda: somebody_waits(maintenance))

        assert first != owing.result()
        assert [owing.result()] == [debt.id for debt in await owed(maintenance)]


async def test_a_batch_has_no_more_wildcards_than_fit_beside_those_in_flight(
    worker: Connection, maintenance: Connection
) -> None:
    for _ in range(12):
        await owe(worker)
    within = BatchLimits(paths=3000, wildcards=10)

    first = await commit_batch(maintenance, await owed(maintenance), wildcard, within=within)
    assert first is not None
    await begin_send(maintenance, first.id)
    await accept_batch(maintenance, first.id, "I1")
    none = await commit_batch(maintenance, await owed(maintenance), wildcard, within=within)
    tags = await commit_batch(maintenance, await owed(maintenance), tag, within=within)

    assert 10 == len(first.items)
    assert none is None
    assert tags is not None
    assert 2 == len(tags.items)


async def test_a_batch_has_no_more_paths_than_fit(
    worker: Connection, maintenance: Connection
) -> None:
    oldest = [await owe(worker) for _ in range(5)]
    within = BatchLimits(paths=3, wildcards=0)

    batch = await commit_batch(maintenance, await owed(maintenance), tag, within=within)
    assert batch is not None
    full = await commit_batch(maintenance, await owed(maintenance), tag, within=within)
    await accept_batch(maintenance, batch.id, "I1")
    await complete_batch(maintenance, Accepted(batch.id, "I1"))
    rest = await commit_batch(maintenance, await owed(maintenance), tag, within=within)

    assert 3 == len(batch.items)
    assert full is None
    assert rest is not None
    assert 2 == len(rest.items)
    stamped = "SELECT id FROM invalidations WHERE batch_id = $1"
    assert set(oldest[3:]) == {row["id"] for row in await maintenance.fetch(stamped, rest.id)}


async def test_an_image_that_never_rests_owes_another_one_after_its_batch(
    worker: Connection, maintenance: Connection
) -> None:
    restless, settled = uuid4(), uuid4()
    await owe(worker, restless)
    await owe(worker, settled)
    debts = await owed(maintenance)

    batch = await commit_batch(
        maintenance,
        debts,
        wildcard,
        within=ROOMY,
        again=[debts[0], Debt(uuid4(), debts[0].last_owed_at)],
    )

    assert batch is not None
    assert [wildcard(restless), wildcard(settled)] == batch.items
    left = await maintenance.fetch("SELECT image_id FROM invalidations WHERE batch_id IS NULL")
    assert [restless] == [row["image_id"] for row in left]


async def test_an_accepted_batch_is_followed_until_it_is_complete(
    worker: Connection, maintenance: Connection, superuser: Connection
) -> None:
    debt = await owe(worker)
    batch = await commit_batch(maintenance, await owed(maintenance), wildcard, within=ROOMY)
    assert batch is not None
    assert [batch.id] == [unsent.id for unsent in await list_unsent(maintenance, limit=9)]
    assert await begin_send(maintenance, batch.id)
    await send_again(maintenance, batch.id, "cloudfront_too_many: wait")
    assert await begin_send(maintenance, batch.id)

    accepted = [await accept_batch(maintenance, batch.id, name) for name in ("I1", "I2")]
    (followed,) = await list_accepted(maintenance, limit=9)
    completed = [await complete_batch(maintenance, followed) for _ in range(2)]

    assert [Taken(paths=1, debts=1, month_paths=1), None] == accepted
    assert [[], None] == completed
    assert Accepted(batch.id, "I1") == followed
    assert not await begin_send(maintenance, batch.id)
    assert [] == await list_unsent(maintenance, limit=9) + await list_accepted(maintenance, limit=9)
    row = await superuser.fetchrow(
        "SELECT batches.sends, batches.last_error, batches.completed_at IS NOT NULL"
        "  FROM invalidations JOIN invalidation_batches AS batches ON batches.id = batch_id"
        " WHERE invalidations.id = $1",
        debt,
    )
    assert (2, "cloudfront_too_many: wait", True) == tuple(row or ())


async def test_a_batch_that_cloudfront_does_not_know_is_sent_again_as_it_was(
    worker: Connection, maintenance: Connection
) -> None:
    await owe(worker)
    batch = await commit_batch(maintenance, await owed(maintenance), wildcard, within=ROOMY)
    assert batch is not None
    await accept_batch(maintenance, batch.id, "I1")

    await send_again(maintenance, batch.id, "x", unknown="another")
    assert [] == await list_unsent(maintenance, limit=9)
    await send_again(maintenance, batch.id, "not_found", unknown="I1")

    (again,) = await list_unsent(maintenance, limit=9)
    assert (batch.id, tuple(batch.items), "not_found") == (again.id, again.items, again.last_error)


async def test_a_batch_that_is_never_taken_lets_others_pass(
    worker: Connection, maintenance: Connection
) -> None:
    batches = []
    for _ in range(2):
        await owe(worker)
        batch = await commit_batch(maintenance, await owed(maintenance), wildcard, within=ROOMY)
        assert batch is not None
        batches.append(batch.id)
    await begin_send(maintenance, batches[0])

    assert batches[::-1] == [unsent.id for unsent in await list_unsent(maintenance, limit=9)]


async def test_what_is_not_complete_is_counted(
    worker: Connection, maintenance: Connection, superuser: Connection
) -> None:
    assert InvalidationSample(owed=0, oldest_age=timedelta(0), in_flight=0) == (
        await sample_invalidations(maintenance)
    )
    image_id = uuid4()
    await owe(worker, image_id)
    done = await commit_batch(maintenance, await owed(maintenance), wildcard, within=ROOMY)
    assert done is not None
    await accept_batch(maintenance, done.id, "I1")
    await complete_batch(maintenance, Accepted(done.id, "I1"))
    await owe(worker, image_id)
    await owe(worker)
    under_way = await commit_batch(maintenance, await owed(maintenance), wildcard, within=ROOMY)
    assert under_way is not None
    unsent = await sample_invalidations(maintenance)
    await accept_batch(maintenance, under_way.id, "I2")
    await owe(worker, image_id)
    await superuser.execute("UPDATE invalidations SET owed_at = owed_at - interval '1 hour'")

    sample = await sample_invalidations(maintenance)

    assert (2, 0) == (unsent.owed, unsent.in_flight)
    assert (2, 2) == (sample.owed, sample.in_flight)
    assert 3 == sample.month_paths
    assert timedelta(hours=1) <= sample.oldest_age < timedelta(hours=2)


@pytest.mark.parametrize("role", ["api", "worker", "operator"])
async def test_only_maintenance_makes_batches(database: Database, role: str) -> None:
    async with database.connect(role) as connection:  # type: ignore[arg-type]
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await driver_of(connection).execute(
                "INSERT INTO invalidation_batches (id, items, paths) VALUES ($1, '[]', 0)", uuid4()
            )
