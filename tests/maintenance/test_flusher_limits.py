"""The flusher against a CloudFront that throttles, is full, loses replies and takes its time.

What is accepted is what was owed, each once, in as few calls as the limits allow.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from math import ceil
from typing import Final
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from imagefleet.aws.session import open_session
from imagefleet.maintenance.flusher import Flusher
from imagefleet.store.database import Connection, Pool
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.support.aws import settings_for
from tests.support.cloudfront import DISTRIBUTION, CloudFront, Limits, a_cloudfront
from tests.support.database import Database, driver_of
from tests.support.emulators import CREDENTIALS

AT_ONCE: Final = timedelta(0)
TAKES: Final = 25.0  # seconds to completion, which AWS promises to 95 of 100
LOOK: Final = 2.0

OWE: Final = """
INSERT INTO invalidations (image_id, tenant_id, reason)
SELECT gen_random_uuid(), 'acme', 'replaced' FROM generate_series(1, $1)
RETURNING image_id
"""
OWE_ONE: Final = """
INSERT INTO invalidations AS debt (image_id, tenant_id, reason) VALUES ($1, 'acme', 'replaced')
    ON CONFLICT (image_id) WHERE batch_id IS NULL
    DO UPDATE SET debts = debt.debts + 1, last_owed_at = clock_timestamp()
"""
UNPAID: Final = """
SELECT count(*) FROM invalidations
  LEFT JOIN invalidation_batches AS batches ON batches.id = invalidations.batch_id
 WHERE batches.completed_at IS NULL
"""


async def owe(worker: Connection, images: int) -> list[UUID]:
    return [row["image_id"] for row in await worker.fetch(OWE, images)]


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    async with database.pool("maintenance", max_size=1) as pool:
        yield pool


@asynccontextmanager
async def flushing(
    played: CloudFront, pool: Pool, metrics: MaintenanceMetrics, **how: object
) -> AsyncIterator[Flusher]:
    given = {"by_tag": True, "settled_after": AT_ONCE, "patience": AT_ONCE} | how
    async with (
        a_cloudfront(played),
        open_session(settings_for(played.url), credentials=CREDENTIALS) as session,
    ):
        edge = await session.edge(DISTRIBUTION)
        yield Flusher(pool, edge, uuid4(), metrics, **given)  # type: ignore[arg-type]


async def pay_all(flusher: Flusher, played: CloudFront, superuser: Connection) -> int:
    """Look as often as it takes, two seconds apart by CloudFront's clock; how often that was."""
    for looks in range(1, 20_000):
        await flusher.run_once()
        played.pass_time(LOOK)
        if not await superuser.fetchval(UNPAID):
            return looks
    raise AssertionError


def tags(images: list[UUID]) -> set[str]:
    return {f"#img-{image_id}" for image_id in images}


def wildcards(images: list[UUID]) -> set[str]:
    return {f"/i/{image_id}/*" for image_id in images}


def items_of(played: CloudFront) -> list[str]:
    return [item for items in played.accepted for item in items]


async def test_ten_thousand_images_are_four_calls_by_tag(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    images = await owe(worker, 10_000)
    played = CloudFront(completes_after=TAKES)
    statements = 0

    def count(_: object) -> None:
        nonlocal statements
        statements += 1

    async with flushing(played, pool, metrics) as flusher:
        async with pool.connection() as connection:  # the only one that the pool has
            driver_of(connection).add_query_logger(count)
        looks = await pay_all(flusher, played, superuser)

    assert ceil(10_000 / 3000) == played.calls["Create"]
    assert [3000, 3000, 3000, 1000] == [len(items) for items in played.accepted]
    items = items_of(played)
    assert len(items) == len(set(items))
    assert tags(images) == set(items)
    assert {} == played.refusals
    # Four looks for each of 3,000, and never one statement a debt.
    assert statements <= 8 * looks + 20 * played.calls["Create"]
    assert looks <= 4 * (TAKES / LOOK + 3)


async def test_wildcards_are_fifteen_at_a_time(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    images = await owe(worker, 500)
    played = CloudFront(completes_after=TAKES)

    async with flushing(played, pool, metrics, by_tag=False) as flusher:
        await pay_all(flusher, played, superuser)

    assert ceil(500 / 15) == played.calls["Create"]
    assert 15 == played.most_in_progress
    items = items_of(played)
    assert len(items) == len(set(items))
    assert wildcards(images) == set(items)
    assert {} == played.refusals, "at its own pace it is never throttled"


async def test_many_debts_of_one_image_are_one_path(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    image_id, played = uuid4(), CloudFront()
    for _ in range(5):
        await worker.execute(OWE_ONE, image_id)

    async with flushing(played, pool, metrics) as flusher:
        await pay_all(flusher, played, superuser)

    assert [(f"#img-{image_id}",)] == played.accepted
    shown = metrics.exposition()
    assert b"invalidation_paths_total 1.0" in shown
    assert b"invalidation_debts_total 5.0" in shown
    (month,) = await superuser.fetch("SELECT paths, debts, batches FROM invalidation_months")
    assert (1, 5, 1) == tuple(month)


@pytest.mark.parametrize("code", ["Throttling", "TooManyInvalidationsInProgress"])
async def test_what_is_refused_for_now_is_sent_again_exactly_so(
    pool: Pool,
    metrics: MaintenanceMetrics,
    worker: Connection,
    superuser: Connection,
    code: str,
) -> None:
    images = await owe(worker, 20)
    played = CloudFront(limits=Limits(burst=None), refuses=code)

    async with flushing(played, pool, metrics) as flusher:
        for _ in range(3):
            await flusher.run_once()
        (refused,) = await superuser.fetch("SELECT id, items, sends FROM invalidation_batches")
        more = await owe(worker, 5)
        await flusher.run_once()
        played.refuses = None
        await pay_all(flusher, played, superuser)

    assert 3 == refused["sends"]
    (first, second) = played.made.values()
    assert (str(refused["id"]), tuple(refused["items"])) == (first.reference, first.items)
    assert tags(images) == set(first.items)
    assert tags(more) == set(second.items), "they waited, and shared one"


async def test_somebody_elses_invalidations_are_waited_for(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    """The limits are the distribution's, which others may use as well."""
    images = await owe(worker, 10)
    played = CloudFront(completes_after=TAKES)

    async with flushing(played, pool, metrics, by_tag=False) as flusher:
        edge = flusher._edge
        assert edge is not None
        await edge.create_invalidation([f"/o/{n}/*" for n in range(10)], caller_reference="x")
        await pay_all(flusher, played, superuser)

    assert 0 < played.refusals["TooManyInvalidationsInProgress"]
    assert wildcards(images) == set(played.accepted[1])
    assert 2 == len(played.made)


async def test_lost_replies_make_no_second_invalidation(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    images = await owe(worker, 50)
    played = CloudFront(limits=Limits(burst=None), loses_replies=7)  # of three tries a call

    async with flushing(played, pool, metrics) as flusher:
        await pay_all(flusher, played, superuser)

    assert 1 == len(played.made)
    assert tags(images) == set(items_of(played))
    (batch,) = await superuser.fetch("SELECT * FROM invalidation_batches")
    assert [batch["cloudfront_id"]] == list(played.made)
    assert batch["sends"] > 1
    assert b"invalidation_paths_total 50.0" in metrics.exposition()


async def test_slow_completion_is_followed_and_its_time_is_recorded(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    await owe(worker, 3)
    played = CloudFront(completes_after=15 * 60)

    async with flushing(played, pool, metrics) as flusher:
        await flusher.run_once()
        played.pass_time(14 * 60)
        for _ in range(3):
            await flusher.run_once()
        (waiting,) = await superuser.fetch("SELECT * FROM invalidation_batches")
        played.pass_time(60)
        before = await superuser.fetchval("SELECT clock_timestamp()")
        await flusher.run_once()
    (done,) = await superuser.fetch("SELECT * FROM invalidation_batches")

    assert waiting["accepted_at"] is not None
    assert waiting["completed_at"] is None
    assert before <= done["completed_at"] <= await superuser.fetchval("SELECT clock_timestamp()")
    assert 1 == played.calls["Create"]


async def test_a_whole_load_that_is_never_taken_holds_up_no_other(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    """Fifteen wildcards that CloudFront calls malformed are not in progress there."""
    malformed = await owe(worker, 15)
    never = frozenset(wildcards(malformed))
    played = CloudFront(limits=Limits(burst=None), malformed=never)

    async with flushing(played, pool, metrics, by_tag=False) as flusher:
        await flusher.run_once()
        images = await owe(worker, 15)
        for _ in range(4):
            await flusher.run_once()
        tried = await superuser.fetchval(
            "SELECT sends FROM invalidation_batches ORDER BY created_at"
        )
        played.malformed = frozenset()
        await pay_all(flusher, played, superuser)

    first, second = (set(items) for items in played.accepted)
    assert wildcards(images) == first
    assert never == second, "it was tried all the time"
    assert tried > 1


async def test_nothing_is_sent_before_every_answer_of_before_the_debt_is_out(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    """Three seconds by the database, from a look that saw the commit; the transaction was older."""
    settled = timedelta(seconds=0.5)
    played, image_id = CloudFront(limits=Limits(burst=None)), uuid4()

    async with flushing(played, pool, metrics, settled_after=settled) as flusher:
        async with worker.transaction():
            await worker.execute(OWE_ONE, image_id)
            await worker.execute("SELECT pg_sleep(0.6)")
            await flusher.run_once()
        committed = await superuser.fetchval("SELECT clock_timestamp()")
        await pay_all(flusher, played, superuser)

    (batch,) = await superuser.fetch("SELECT * FROM invalidation_batches")
    assert settled <= batch["created_at"] - committed


async def test_a_budget_that_is_used_up_is_a_warning_and_stops_nothing(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    played = CloudFront(limits=Limits(burst=None))
    told = []

    async with flushing(played, pool, metrics, monthly_paths=10) as flusher:
        for images in (10, 1, 5, 25):
            await owe(worker, images)
            with capture_logs() as lines:
                await pay_all(flusher, played, superuser)
            told.append(
                [
                    line["month_paths"]
                    for line in lines
                    if line["event"] == "invalidation.over_budget"
                ]
            )

    assert [[], [11], [], [41]] == told
    assert 41 == len(items_of(played))
    assert b"invalidation_paths_budget 10.0" in metrics.exposition()


async def test_last_months_paths_are_not_this_months(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    await superuser.execute(
        "INSERT INTO invalidation_months (month, paths, debts, batches)"
        " SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date - interval '1 month', 9, 9, 1"
    )
    await owe(worker, 3)

    with capture_logs() as lines:
        async with flushing(CloudFront(), pool, metrics, monthly_paths=10) as flusher:
            await pay_all(flusher, CloudFront(), superuser)

    assert [] == [line for line in lines if line["event"] == "invalidation.over_budget"]
