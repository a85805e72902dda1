"""A place for a fleet, as tests/support/fixtures.py promises, the pool of maintenance, queues."""

from collections.abc import AsyncIterator

import pytest

from imagefleet.aws.queue import QueueDepth
from imagefleet.jobs.model import Lane
from imagefleet.maintenance import dispatcher
from imagefleet.store.database import Pool
from tests.support.database import Database
from tests.support.fixtures import emulator, place
from tests.support.queues import FakeQueue

__all__ = ["emulator", "place"]


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    async with database.pool("maintenance") as pool:
        yield pool


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> dict[Lane, FakeQueue]:
    """Queues that hold messages all the time: nothing of a dispatcher may depend on silence.

    It has no rests: tests call `run_once` when they want a look.
    """
    monkeypatch.setattr(dispatcher, "REST_AFTER_REFUSAL", 0.0)
    monkeypatch.setattr(dispatcher, "FORGET_LOST_EVERY", 0.0)
    full = QueueDepth(visible=7, in_flight=0, delayed=0)
    return {lane: FakeQueue(lane.value, depths=full) for lane in Lane}
