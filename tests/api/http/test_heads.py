"""Heads are read beside the loop, one after the other, and only so many wait for it."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from imagefleet.api.http import intake as module
from imagefleet.api.http.intake import MOST_WAITING, Heads
from imagefleet.errors import RequestRejected, Unavailable
from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.sniff import sniff
from tests.support.eventually import eventually
from tests.support.http import a_jpeg

LIMITS = Limits()


class Gate:
    """Holds the reading thread until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.threads: set[int] = set()
        self.inside = self.most_inside = 0

    def sniff(self, head: bytes) -> HeaderFacts:
        self.threads.add(threading.get_ident())
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.open.wait(10)
        self.inside -= 1
        return sniff(head)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(module, "sniff", gate.sniff)
    yield gate
    gate.open.set()


async def test_the_loop_goes_on_while_heads_are_read(gate: Gate) -> None:
    heads = Heads()
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(heads.judged(a_jpeg(), None, LIMITS)) for _ in range(5)]
        await eventually(lambda: gate.inside)
        assert not any(task.done() for task in reading)
        gate.open.set()

    assert [task.result().width for task in reading] == [64] * 5
    assert threading.get_ident() not in gate.threads
    assert (len(gate.threads), gate.most_inside, heads.waiting) == (1, 1, 0)


async def test_whoever_comes_when_too_many_wait_is_sent_away(gate: Gate) -> None:
    heads = Heads()
    async with asyncio.TaskGroup() as group:
        for _ in range(MOST_WAITING):
            group.create_task(heads.judged(a_jpeg(), None, LIMITS))
        await eventually(lambda: heads.waiting == MOST_WAITING)

        with pytest.raises(Unavailable, match="busy"):
            await heads.judged(a_jpeg(), None, LIMITS)
        gate.open.set()

    assert (await heads.judged(a_jpeg(), "image/jpeg", LIMITS)).width == 64


async def test_a_refusal_gives_its_place_back() -> None:
    heads = Heads()

    with pytest.raises(RequestRejected, match="type_mismatch"):
        await heads.judged(a_jpeg(), "image/png", LIMITS)
    with pytest.raises(Exception, match="unsupported"):
        await heads.judged(b"text", None, LIMITS)

    assert heads.waiting == 0
