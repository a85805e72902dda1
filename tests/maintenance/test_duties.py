"""Upkeep goes on while there is work, and gives as much time to others as it takes."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from imagefleet.maintenance import duties
from imagefleet.maintenance.duties import Batch, keep_at
from tests.support.eventually import Resting


class Clock:
    """Time goes by only where somebody works."""

    now = 0.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(duties, "asyncio", SimpleNamespace(get_running_loop=lambda: clock))
    return clock


def batches(clock: Clock, *, seconds: float, full: int) -> tuple[Batch, list[float]]:
    begun: list[float] = []

    async def batch() -> bool:
        begun.append(clock.now)
        clock.now += seconds
        return len(begun) <= full

    return batch, begun


async def test_it_goes_on_until_a_batch_finds_no_more(clock: Clock) -> None:
    batch, begun = batches(clock, seconds=0.1, full=7)

    assert await keep_at(batch, within=timedelta(seconds=60), rest=Resting())
    assert 8 == len(begun)


async def test_it_rests_as_long_as_it_worked(clock: Clock) -> None:
    batch, _ = batches(clock, seconds=0.25, full=3)
    resting = Resting()

    await keep_at(batch, within=timedelta(seconds=60), rest=resting)

    assert [timedelta(seconds=0.25)] * 3 == resting.rests


async def test_it_ends_with_its_time_and_says_that_there_is_more(clock: Clock) -> None:
    batch, begun = batches(clock, seconds=1, full=100)

    assert not await keep_at(batch, within=timedelta(seconds=5), rest=Resting())
    assert 5 == len(begun)


async def test_it_ends_when_the_process_does(clock: Clock) -> None:
    batch, begun = batches(clock, seconds=1, full=100)

    assert not await keep_at(
        batch, within=timedelta(seconds=60), rest=Resting(lambda rests: rests == 2)
    )
    assert 2 == len(begun)
