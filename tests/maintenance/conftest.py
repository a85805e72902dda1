"""A place for a fleet, as tests/support/fixtures.py promises; and a dispatcher with its queues."""

from collections.abc import AsyncIterator

import pytest

from imagefleet.aws.queue import Queue, QueueDepth
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.model import Lane, WorkerId
from imagefleet.maintenance import dispatcher as dispatcher_module
from imagefleet.maintenance.dispatcher import Dispatcher
from imagefleet.store.database import Connection, Pool
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.maintenance.dispatching import a_dispatcher
from tests.maintenance.storage import Storage
from tests.support.database import Database
from tests.support.factories import a_worker
from tests.support.fixtures import emulator, place
from tests.support.fleet import Place
from tests.support.queues import FakeQueue

__all__ = ["emulator", "place"]


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    async with database.pool("maintenance") as pool:
        yield pool


@pytest.fixture
def metrics() -> MaintenanceMetrics:
    return MaintenanceMetrics(job_types=BUILT_IN)


@pytest.fixture
async def dead_letters(place: Place) -> Queue:
    return await place.dead_letters()


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> dict[Lane, FakeQueue]:
    """Queues that hold messages all the time: nothing of a dispatcher may depend on silence.

    It has no rests: tests call `run_once` when they want a look.
    """
    monkeypatch.setattr(dispatcher_module, "REST_AFTER_REFUSAL", 0.0)
    monkeypatch.setattr(dispatcher_module, "FORGET_LOST_EVERY", 0.0)
    full = QueueDepth(visible=7, in_flight=0, delayed=0)
    return {lane: FakeQueue(lane.value, depths=full) for lane in Lane}


@pytest.fixture
def fast(lanes: dict[Lane, FakeQueue]) -> FakeQueue:
    return lanes[Lane.FAST]


@pytest.fixture
async def me(worker: Connection) -> WorkerId:
    """A worker that lives, with free slots in every lane and nearly every type."""
    return await a_worker(worker)


@pytest.fixture
async def dispatcher(pool: Pool, lanes: dict[Lane, FakeQueue], me: WorkerId) -> Dispatcher:
    """With one idle worker that it announces jobs to."""
    return a_dispatcher(pool, lanes)


@pytest.fixture
async def storage(
    place: Place, api: Connection, worker: Connection, superuser: Connection
) -> Storage:
    return Storage(
        place=place,
        originals=await place.session.objects(place.settings.originals_bucket),
        outputs=await place.session.objects(place.settings.outputs_bucket),
        api=api,
        worker=worker,
        superuser=superuser,
    )
