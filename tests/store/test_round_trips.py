"""How often a worker asks Postgres to write down what its attempts came to, counted on the wire."""

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

import pytest
import pytest_asyncio

from imagefleet.jobs.lifecycle import Completed, Outcome
from imagefleet.jobs.model import Claim, JobId, WorkerId, new_job_id
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection, Pool, open_pool
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.settling import Settled, Settlement, settle_jobs
from tests.conftest import OpenConnection
from tests.support.database import Database
from tests.support.factories import (
    ALL_LANES,
    TYPES,
    UNAVAILABLE,
    MadeJob,
    a_submission,
    a_worker,
)
from tests.support.image_rows import a_publication, a_variant, an_image
from tests.support.wires import Wire, a_wire

AN_IMAGE = "an image"
TRIPS: Final[Mapping[str, tuple[str | None, Outcome, int]]] = MappingProxyType(
    {
        "completed": (None, Completed(), 1),
        # BEGIN, LOCK_CLAIMS, one or two of what ends them, FREE_TARGETS where there is one, COMMIT.
        "retried": (None, UNAVAILABLE, 4),
        "completed, of a target": ("photo", Completed(), 5),
        "retried, of a target": ("photo", UNAVAILABLE, 5),
        "published": (AN_IMAGE, Completed(), 6),
    }
)


@pytest_asyncio.fixture
async def wire(database: Database) -> AsyncIterator[Wire]:
    async with a_wire(database.url("worker")) as wire:
        yield wire


@pytest_asyncio.fixture
async def by_wire(wire: Wire) -> AsyncIterator[Pool]:
    async with open_pool(wire.url, process="test-worker", max_size=1, generic_plans=True) as pool:
        yield pool


async def submitted(api: Connection, target: str | None) -> JobId:
    if target == AN_IMAGE:
        image_id = await an_image(api)
        query = "SELECT id FROM jobs WHERE target = $1"
        return JobId(await api.fetchval(query, f"image:{image_id}"))
    name = target and f"{target}-{new_job_id()}"
    return (await submit_job(api, a_submission(target=name))).job_id


def outcome_of(claim: Claim, outcome: Outcome) -> Outcome:
    """The same, or the first publication of the claim's image."""
    if claim.target is None or not claim.target.startswith("image:"):
        return outcome
    job = MadeJob(job_id=claim.job_id, claim_no=claim.claim_no, worker_id=WorkerId(claim.job_id))
    image_id = UUID(claim.target.removeprefix("image:"))
    thumb = a_variant(f"i/{image_id}/1.{claim.claim_no}/thumb.webp")
    return Completed(publication=a_publication(job, image_id, 1, [thumb]))


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("what", TRIPS)
async def test_a_batch_of_any_size_is_settled_in_so_many_round_trips(
    what: str, batch: int, wire: Wire, by_wire: Pool, api: OpenConnection, worker: OpenConnection
) -> None:
    target, outcome, trips = TRIPS[what]
    me, before = await a_worker(worker), 0
    for _ in range(2):  # the second time everything is prepared
        ids = [await submitted(api, target) for _ in range(batch)]
        answers = await claim_jobs(worker, ids, worker_id=me, lanes=ALL_LANES, types=TYPES)
        settlements = [
            Settlement.of(answer.claim, outcome_of(answer.claim, outcome), RetryPolicy())
            for answer in answers
            if answer.claim is not None
        ]
        before = wire.round_trips
        async with by_wire.use("settle") as connection:
            report = await settle_jobs(connection, me, settlements)
        assert [receipt.settled for receipt in report.receipts] == [Settled.WRITTEN] * batch

    assert wire.round_trips - before == trips


async def test_what_does_not_stand_any_more_is_looked_up(
    wire: Wire, by_wire: Pool, api: OpenConnection, worker: OpenConnection
) -> None:
    """By one more statement, for all of them; and nothing is sent when a connection is let go."""
    me, before = await a_worker(worker), 0
    ids = [await submitted(api, None) for _ in range(3)]
    answers = await claim_jobs(worker, ids, worker_id=me, lanes=ALL_LANES, types=TYPES)
    settlements = [
        Settlement.of(answer.claim, Completed(), RetryPolicy())
        for answer in answers
        if answer.claim is not None
    ]
    for expected in (Settled.WRITTEN, Settled.ALREADY, Settled.ALREADY):
        before = wire.round_trips
        async with by_wire.use("settle") as connection:
            report = await settle_jobs(connection, me, settlements)
        assert [receipt.settled for receipt in report.receipts] == [expected] * 3

    assert wire.round_trips - before == 2
