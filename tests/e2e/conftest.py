"""One stack for all tests that leave it as they found it; its run is judged when they are over."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.faults.director import ALWAYS
from tests.support.otlp import Collector, collecting
from tests.support.stack import Producer, Stack, running_stack

SETTINGS = {
    "all": {"OTEL_BSP_SCHEDULE_DELAY": "200", "BACKOFF_BASE_SECONDS": "1"},
    "maintenance": {"SAMPLE_INTERVAL_SECONDS": "1"},
}


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under `--dist loadgroup` one test process runs them all; else each has a stack of its own.

    xdist 3.8 names groups by an attribute that pytest 9.2 has no more, so there it changes nothing.
    """
    for item in items:
        if "tests/e2e/" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("e2e"))


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(collector: Collector) -> AsyncIterator[Stack]:
    settings = {
        **SETTINGS,
        "all": {**SETTINGS["all"], "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint},
    }
    async with running_stack(workers=2, settings=settings, points=(*ALWAYS, "committed")) as stack:
        yield stack
        await stack.all_ended(within=30)
        assert [] == await stack.breaches(backoff_base=1)


@pytest.fixture
async def producer(stack: Stack) -> AsyncIterator[Producer]:
    async with stack.producer() as producer:
        yield producer
