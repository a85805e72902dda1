"""The flusher: what it waits for, what it asks of CloudFront, and what it does with a refusal."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID, uuid4

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from imagefleet.api.public.stable import ANSWER_WITHIN
from imagefleet.aws.edge import Edge, Invalidation
from imagefleet.aws.session import open_session
from imagefleet.embedded.bootstrap import Endpoints, apply
from imagefleet.errors import FleetError, NotFound, Unavailable
from imagefleet.maintenance.flusher import FLUSH_EVERY, LIMITS, Flushed, Flusher
from imagefleet.maintenance.sampler import Sampler
from imagefleet.store.database import Connection, Pool
from imagefleet.store.edge.invalidations import Batch, commit_batch, look_at_owed
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.support.aws import Answer, a_name, forwarding, settings_for
from tests.support.emulators import CREDENTIALS, REGION, Emulator
from tests.support.eventually import eventually
from tests.support.fleet import Place, inside

AT_ONCE = timedelta(0)
NOTHING = Flushed(elected=True)
Make: TypeAlias = Callable[..., Flusher]


MALFORMED = FleetError("cloudfront_rejected", "Something went wrong.", "MalformedItem")


class Watched(Edge):
    """The real thing on an emulator; notes what it is asked, and fails when told to."""

    sent: list[tuple[str, tuple[str, ...]]]
    asked: list[str]
    refuses: FleetError | None = None
    loses: FleetError | None = None
    forgets: bool = False
    hesitates: bool = False
    never_takes: str | None = None

    @classmethod
    def over(cls, edge: Edge) -> "Watched":
        watched = cls(edge.distribution_id, line=edge._line, client=edge._client)
        watched.sent, watched.asked = [], []
        return watched

    async def create_invalidation(
        self, items: Sequence[str], *, caller_reference: str
    ) -> Invalidation:
        self.sent.append((caller_reference, tuple(items)))
        if caller_reference == self.never_takes:
            raise MALFORMED
        if self.refuses is not None:
            raise self.refuses
        taken = await super().create_invalidation(items, caller_reference=caller_reference)
        if self.loses is not None:
            raise self.loses
        return taken

    async def get_invalidation(self, invalidation_id: str) -> Invalidation:
        self.asked.append(invalidation_id)
        if self.refuses is not None:
            raise self.refuses
        if self.forgets:
            raise NotFound("invalidation")
        answer = await super().get_invalidation(invalidation_id)
        return Invalidation(id=answer.id, completed=answer.completed and not self.hesitates)


def refusal(code: str) -> Unavailable:
    return Unavailable(code, "Not now.", "as told by a test")


@pytest.fixture(scope="session")
def distribution_id(emulator: Emulator) -> str:
    applied = asyncio.run(
        apply(
            Endpoints.all_at(emulator.url),
            region=REGION,
            credentials=CREDENTIALS,
            prefix=a_name("edge"),
        )
    )
    assert applied.distribution_id is not None
    return applied.distribution_id


@pytest.fixture
async def edge(emulator: Emulator, distribution_id: str) -> AsyncIterator[Watched]:
    async with open_session(settings_for(emulator.url), credentials=CREDENTIALS) as session:
        yield Watched.over(await session.edge(distribution_id))


@pytest.fixture
def make(pool: Pool, edge: Watched, metrics: MaintenanceMetrics) -> Make:
    """A flusher for which every debt is old enough, and that never sulks."""

    def made(
        *,
        by_tag: bool = False,
        settled_after: timedelta = AT_ONCE,
        patience: timedelta = AT_ONCE,
        over: Edge = edge,
    ) -> Flusher:
        return Flusher(
            pool,
            over,
            uuid4(),
            metrics,
            by_tag=by_tag,
            settled_after=settled_after,
            patience=patience,
        )

    return made


OWE = """
INSERT INTO invalidations AS debt (image_id, tenant_id, reason) VALUES ($1, 'acme', 'replaced')
    ON CONFLICT (image_id) WHERE batch_id IS NULL
    DO UPDATE SET debts = debt.debts + 1, last_owed_at = clock_timestamp()
RETURNING debt.id
"""
BATCHES = "SELECT * FROM invalidation_batches ORDER BY created_at"


async def owe(worker: Connection, image_id: UUID | None = None) -> UUID:
    debt: UUID = await worker.fetchval(OWE, image_id or uuid4())
    return debt


async def completed(superuser: Connection, debt: UUID) -> bool:
    """As the sweep of what was superseded asks, and the receipt of a deletion."""
    return bool(
        await superuser.fetchval(
            "SELECT completed_at >= accepted_at FROM invalidations"
            "  JOIN invalidation_batches AS batches ON batches.id = invalidations.batch_id"
            " WHERE invalidations.id = $1",
            debt,
        )
    )


async def flushed(flusher: Flusher, superuser: Connection, debt: UUID) -> None:
    async def is_complete() -> bool:
        await flusher.run_once()
        return await completed(superuser, debt)

    await eventually(is_complete, within=10)


@pytest.mark.parametrize("by_tag", [False, True])
async def test_debts_become_one_batch_that_is_followed_to_its_end(
    make: Make,
    edge: Watched,
    worker: Connection,
    superuser: Connection,
    by_tag: bool,  # noqa: FBT001 - a parameter
) -> None:
    images = [uuid4() for _ in range(3)]
    debts = [await owe(worker, image_id) for image_id in images]
    await owe(worker, images[0])
    flusher = make(by_tag=by_tag)

    first = await flusher.run_once()
    (batch,) = await superuser.fetch(BATCHES)
    for debt in debts:
        await flushed(flusher, superuser, debt)

    items = tuple(f"#img-{image_id}" if by_tag else f"/i/{image_id}/*" for image_id in images)
    assert Flushed(elected=True, sent=1) == first
    assert [(str(batch["id"]), items)] == edge.sent
    assert (list(items), 3, 1) == (batch["items"], batch["paths"], batch["sends"])
    assert {batch["cloudfront_id"]} == set(edge.asked)
    assert NOTHING == await flusher.run_once()


async def test_a_debt_waits_until_every_answer_from_before_it_is_out(
    make: Make, edge: Watched, worker: Connection, superuser: Connection
) -> None:
    span = timedelta(seconds=0.4)
    flusher = make(settled_after=span)
    debt = await owe(worker)
    await superuser.execute("UPDATE invalidations SET owed_at = now() - interval '1 hour'")
    await superuser.execute("UPDATE invalidations SET last_owed_at = now() - interval '1 hour'")

    first = await superuser.fetchval("SELECT clock_timestamp()")
    assert NOTHING == await flusher.run_once(), "old, and yet it may have been committed just now"
    await flushed(flusher, superuser, debt)

    (batch,) = await superuser.fetch(BATCHES)
    assert span <= batch["created_at"] - first


async def test_by_default_it_waits_longer_than_the_api_may_take_to_answer(
    pool: Pool,
    edge: Watched,
    metrics: MaintenanceMetrics,
    worker: Connection,
    superuser: Connection,
) -> None:
    flusher = Flusher(pool, edge, uuid4(), metrics, by_tag=False)
    await owe(worker)
    first = await superuser.fetchval("SELECT clock_timestamp()")

    await eventually(lambda: sent(flusher), within=15)

    (batch,) = await superuser.fetch(BATCHES)
    assert timedelta(seconds=ANSWER_WITHIN + 1) <= batch["created_at"] - first


async def sent(flusher: Flusher) -> bool:
    return (await flusher.run_once()).sent == 1


async def test_a_debt_that_grew_waits_anew(
    make: Make, edge: Watched, worker: Connection, superuser: Connection
) -> None:
    image_id, flusher = uuid4(), make(settled_after=timedelta(hours=1))
    await owe(worker, image_id)
    await flusher.run_once()
    (before,) = flusher._seen
    await owe(worker, image_id)
    await flusher.run_once()

    assert [] == edge.sent
    assert before not in flusher._seen
    assert 1 == len(flusher._seen)


async def test_an_image_that_is_replaced_all_the_time_is_not_put_off_for_ever(
    make: Make, edge: Watched, worker: Connection, superuser: Connection
) -> None:
    image_id, flusher = uuid4(), make(settled_after=timedelta(hours=1))
    await owe(worker, image_id)
    await superuser.execute("UPDATE invalidations SET owed_at = now() - interval '2 minutes'")
    await owe(worker, image_id)

    await flusher.run_once()
    await flusher.run_once()

    assert [(f"/i/{image_id}/*",)] == [items for _, items in edge.sent]
    unstamped = "SELECT image_id FROM invalidations WHERE batch_id IS NULL"
    assert image_id == await superuser.fetchval(unstamped), "for the last of them"


async def test_one_is_elected_and_its_successor_goes_on_with_the_same_batch(
    make: Make, edge: Watched, worker: Connection, superuser: Connection
) -> None:
    debt = await owe(worker)
    edge.loses = refusal("cloudfront_unavailable")
    first, other = make(), make()
    await first.run_once()
    edge.loses = None
    assert Flushed(elected=False) == await other.run_once()
    await superuser.execute("UPDATE elections SET until = now()")

    await flushed(other, superuser, debt)

    assert Flushed(elected=False) == await first.run_once()
    assert 2 == len(edge.sent)
    assert 1 == len(set(edge.sent)), "the same reference with the same items"


async def test_two_at_once_do_no_harm(
    make: Make, edge: Watched, worker: Connection, superuser: Connection
) -> None:
    debts = [await owe(worker) for _ in range(5)]
    flushers = [make() for _ in range(2)]

    async def are_complete() -> bool:
        await superuser.execute("UPDATE elections SET until = now() - interval '1 second'")
        await asyncio.gather(*(flusher.run_once() for flusher in flushers))
        return all([await completed(superuser, debt) for debt in debts])

    await eventually(are_complete, within=10)

    items = [item for _, items in set(edge.sent) for item in items]
    assert 5 == len(items) == len(set(items)), "no debt is in two batches"


async def test_a_lost_reply_is_no_second_invalidation(
    make: Make, edge: Watched, worker: Connection, superuser: Connection
) -> None:
    debt = await owe(worker)
    edge.loses = refusal("cloudfront_unavailable")
    flusher = make()
    await flusher.run_once()
    await owe(worker)
    await flusher.run_once()
    edge.loses = None
    (batch,) = await superuser.fetch(BATCHES)
    known = await edge.create_invalidation(batch["items"], caller_reference=str(batch["id"]))

    await flushed(flusher, superuser, debt)

    (first, *_) = await superuser.fetch(BATCHES)
    assert known.id == first["cloudfront_id"]
    assert "cloudfront_unavailable: as told by a test" == first["last_error"]
    assert 3 == first["sends"]


async def test_a_flusher_that_died_after_sending_left_nothing_undone(
    make: Make, edge: Watched, pool: Pool, worker: Connection, superuser: Connection
) -> None:
    debt = await owe(worker)
    batch = await committed(pool)
    known = await edge.create_invalidation(batch.items, caller_reference=str(batch.id))  # and died

    await flushed(make(), superuser, debt)

    (row,) = await superuser.fetch(BATCHES)
    assert known.id == row["cloudfront_id"]


async def committed(pool: Pool) -> Batch:
    async with pool.connection() as connection:
        debts = [owed.debt for owed in await look_at_owed(connection, limit=10)]
        batch = await commit_batch(
            connection, debts, lambda image_id: f"/i/{image_id}/*", within=LIMITS
        )
    assert batch is not None
    return batch


@pytest.mark.parametrize("code", ["cloudfront_too_many", "cloudfront_throttled"])
async def test_a_refusal_is_followed_by_quiet_and_the_debts_of_meanwhile_share_a_batch(
    make: Make, edge: Watched, worker: Connection, superuser: Connection, code: str
) -> None:
    await owe(worker)
    edge.refuses = refusal(code)
    flusher = make(patience=timedelta(hours=1))

    assert NOTHING == await flusher.run_once()
    await owe(worker)
    debt = await owe(worker)
    for _ in range(3):
        assert NOTHING == await flusher.run_once()

    (batch,) = await superuser.fetch(BATCHES)
    assert 1 == len(edge.sent) == batch["sends"]
    assert f"{code}: as told by a test" == batch["last_error"]
    edge.refuses = None
    await superuser.execute("UPDATE elections SET until = now()")
    await flushed(make(), superuser, debt)
    assert [1, 1, 2] == [len(items) for _, items in edge.sent]


async def test_quiet_grows_with_every_refusal(
    make: Make, edge: Watched, worker: Connection
) -> None:
    await owe(worker)
    edge.refuses = refusal("cloudfront_throttled")
    flusher = make(patience=FLUSH_EVERY)
    pauses = []

    with capture_logs() as lines:
        for _ in range(7):
            flusher._quiet_until = 0.0
            await flusher.run_once()
    pauses = [line["pause_seconds"] for line in lines if line["event"] == "invalidation.deferred"]

    assert 7 == len(pauses)
    assert 4 <= pauses[0] < 5
    assert pauses[:4] == sorted(pauses[:4])
    assert 60 <= pauses[-1] <= 72


async def test_a_batch_that_is_never_taken_is_loud_and_holds_up_no_other(
    make: Make, edge: Watched, pool: Pool, worker: Connection, superuser: Connection
) -> None:
    await owe(worker)
    edge.refuses = MALFORMED
    flusher = make()
    with capture_logs() as lines:
        await flusher.run_once()
    edge.never_takes, edge.refuses = edge.sent[0][0], None

    await flushed(flusher, superuser, await owe(worker))

    assert ["error"] == [
        line["log_level"] for line in lines if line["event"] == "invalidation.deferred"
    ]


async def test_what_cloudfront_has_forgotten_is_sent_again(
    make: Make, edge: Watched, worker: Connection, superuser: Connection
) -> None:
    debt, flusher = await owe(worker), make()
    await flusher.run_once()
    edge.forgets = True
    await flusher.run_once()
    edge.forgets = False

    await flushed(flusher, superuser, debt)

    assert 2 == len(edge.sent)
    assert 1 == len(set(edge.sent))


async def test_few_questions_are_asked_at_once_and_each_batch_has_its_turn(
    make: Make, edge: Watched, pool: Pool, worker: Connection, superuser: Connection
) -> None:
    edge.hesitates = True
    flusher = make()
    for _ in range(4):
        await owe(worker)
        await flusher.run_once()
    edge.asked.clear()

    for _ in range(2):
        await flusher.run_once()

    assert 4 == len(edge.asked) == len(set(edge.asked))


async def test_no_more_wildcards_are_in_flight_than_cloudfront_takes(
    make: Make, edge: Watched, worker: Connection, superuser: Connection
) -> None:
    edge.hesitates = True
    debts = [await owe(worker) for _ in range(20)]
    flusher = make()

    for _ in range(3):
        await flusher.run_once()
    in_flight = sum(len(items) for _, items in edge.sent)
    edge.hesitates = False
    await flushed(flusher, superuser, debts[-1])

    assert 15 == in_flight
    assert [15, 5] == [len(items) for _, items in edge.sent]


async def test_paths_are_counted_once_however_often_they_were_sent(
    make: Make,
    edge: Watched,
    metrics: MaintenanceMetrics,
    worker: Connection,
    superuser: Connection,
) -> None:
    debts = [await owe(worker) for _ in range(2)]
    edge.loses = refusal("cloudfront_unavailable")
    flusher = make()
    await flusher.run_once()
    edge.loses = None

    await flushed(flusher, superuser, debts[0])

    assert b"invalidation_paths_total 2.0" in metrics.exposition()


async def test_the_time_until_a_deleted_image_is_dark_is_told_once(
    make: Make,
    edge: Watched,
    metrics: MaintenanceMetrics,
    worker: Connection,
    superuser: Connection,
) -> None:
    image_id, flusher = uuid4(), make()
    debt, replaced = await owe(worker, image_id), await owe(worker)
    await superuser.execute(
        "INSERT INTO image_tombstones (image_id, tenant_id, job_id, requested_by, requested_at,"
        "                              objects_deleted_at, invalidation_id)"
        " VALUES ($1, 'acme', $1, 'tests', now() - interval '45 seconds', now(), $2)",
        image_id,
        debt,
    )

    for due in (debt, replaced):
        await flushed(flusher, superuser, due)
    await flusher.run_once()

    shown = metrics.exposition()
    assert b"image_dark_seconds_count 1.0\n" in shown
    assert b'image_dark_seconds_bucket{le="30.0"} 0.0\n' in shown
    assert b'image_dark_seconds_bucket{le="600.0"} 1.0\n' in shown


async def test_the_sampler_tells_how_the_edge_stands(
    make: Make,
    edge: Watched,
    pool: Pool,
    metrics: MaintenanceMetrics,
    worker: Connection,
    superuser: Connection,
) -> None:
    edge.hesitates = True
    for _ in range(2):
        await owe(worker)
    await make().run_once()
    await owe(worker)
    await superuser.execute("UPDATE invalidations SET owed_at = owed_at - interval '1 hour'")

    await Sampler(pool, {}, uuid4(), metrics, interval=FLUSH_EVERY).run_once()

    shown = metrics.exposition()
    assert b"invalidations_owed 3.0" in shown
    assert b"invalidation_paths_in_flight 2.0" in shown
    assert b"invalidation_oldest_age_seconds 36" in shown


async def test_without_a_distribution_it_does_nothing_and_says_so_once(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    await owe(worker)
    flusher = Flusher(pool, None, uuid4(), metrics, by_tag=False)

    with capture_logs() as lines:
        answers = [await flusher.run_once() for _ in range(3)]

    assert 3 * [Flushed(elected=False)] == answers
    assert ["flusher.idle"] == [line["event"] for line in lines]
    assert [] == await superuser.fetch(BATCHES) + await superuser.fetch("SELECT FROM elections")


async def test_without_a_distribution_nothing_is_called_late_and_nothing_is_lost(
    make: Make,
    pool: Pool,
    metrics: MaintenanceMetrics,
    worker: Connection,
    superuser: Connection,
) -> None:
    """Somebody may have forgotten to name it to one process."""
    debt = await owe(worker)
    sampler = Sampler(pool, {}, uuid4(), metrics, interval=FLUSH_EVERY, has_edge=False)

    await Flusher(pool, None, uuid4(), metrics, by_tag=False).run_once()
    await sampler.run_once()

    assert b"ledger_accepted" in metrics.exposition()
    assert b"invalidation_oldest_age_seconds" not in metrics.exposition()
    await flushed(make(), superuser, debt)


async def test_a_reply_that_is_lost_on_the_wire_is_asked_for_again(
    make: Make, emulator: Emulator, distribution_id: str, worker: Connection, superuser: Connection
) -> None:
    """With real HTTP, and the repeats of the SDK switched off by its time."""
    debt, silent = await owe(worker), True

    async def instead(request: web.Request) -> Answer:
        if silent and request.method == "POST":
            await asyncio.Event().wait()
        raise NotImplementedError

    async with forwarding(emulator.url, instead=instead) as between:
        settings = settings_for(between.url, read_timeout=0.1)
        async with open_session(settings, credentials=CREDENTIALS) as session:
            flusher = make(over=await session.edge(distribution_id))
            assert NOTHING == await flusher.run_once()
            (batch,) = await superuser.fetch(BATCHES)
            silent = False
        async with open_session(settings_for(between.url), credentials=CREDENTIALS) as session:
            await superuser.execute("UPDATE elections SET until = now()")
            await flushed(make(over=await session.edge(distribution_id)), superuser, debt)

    assert batch["last_error"].startswith("cloudfront_unavailable: ")
    assert batch["accepted_at"] is None


async def test_the_process_flushes(
    place: Place, distribution_id: str, worker: Connection, superuser: Connection
) -> None:
    debt = await owe(worker)
    edge = {"CLOUDFRONT_DISTRIBUTION_ID": distribution_id, "SAMPLE_INTERVAL_SECONDS": "1"}

    async with inside(place, "maintenance", environment=edge) as maintenance:
        await eventually(lambda: completed(superuser, debt), within=20)
        assert 1 == await maintenance.counted("invalidation_paths_total")

        async def is_told() -> bool:
            return await maintenance.counted("invalidations_owed") == 0

        await eventually(is_told, within=10)
