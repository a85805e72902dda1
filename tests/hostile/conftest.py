"""One stack that is attacked from outside; at the end nothing was lost, and nothing is wrong."""

import fcntl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.director import ALWAYS
from tests.support.emulators import shared_folder
from tests.support.stack import Producer, Stack, running_stack

SETTINGS = {
    "all": {"BACKOFF_BASE_SECONDS": "1"},
    "maintenance": {"SAMPLE_INTERVAL_SECONDS": "1"},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Waiting for those that measure counts as the time of a test."""
    for item in items:
        if "tests/hostile/" in item.nodeid and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    with path.open("w") as file:  # closing it gives the lock back
        fcntl.flock(file, how)
        yield


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Of the locks between the test processes of this run."""
    return shared_folder(tmp_path_factory, worker_id)


@pytest.fixture(autouse=True)
def attacking(request: pytest.FixtureRequest, places: Path) -> Iterator[None]:
    """While one test measures time, no other attacks a stack of its own beside it."""
    how = fcntl.LOCK_EX if "alone" in request.fixturenames else fcntl.LOCK_SH
    with ExitStack() as stack:
        with held(places / "hostile.next", fcntl.LOCK_EX):  # whoever waits is next
            stack.enter_context(held(places / "hostile.lock", how))
        yield


@pytest.fixture
def alone() -> None:
    """Asked for by a test that measures time."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(workers=1, settings=SETTINGS, points=(*ALWAYS, "committed")) as stack:
        yield stack
        await stack.all_ended(within=30)
        assert [] == await stack.breaches(backoff_base=1)


@pytest.fixture
async def producer(stack: Stack) -> AsyncIterator[Producer]:
    async with stack.producer() as producer:
        yield producer
