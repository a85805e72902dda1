"""Looking for many things with few statements, whoever goes away meanwhile."""

import asyncio
import gc
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest

from imagefleet.api.http import lookups
from imagefleet.api.http.lookups import Lookups
from imagefleet.errors import Unavailable
from tests.support.eventually import eventually

A_MOMENT = timedelta(milliseconds=1)
LONG = timedelta(minutes=1)


class Store:
    """Knows even numbers; answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.open = asyncio.Event()
        self.fails = False

    def was_asked(self, times: int) -> bool:
        return len(self.asked) == times

    async def ask(self, names: Sequence[int]) -> Mapping[int, str]:
        self.asked.append(list(names))
        await self.open.wait()
        if self.fails:
            raise Unavailable("database_unavailable", "Later.")
        return {name: str(name) for name in names if name % 2 == 0}


async def begun(finding: Lookups[int, str], names: Sequence[int]) -> list[asyncio.Task[str | None]]:
    tasks = [asyncio.create_task(finding.find(name)) for name in names]  # noqa: TID251
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_all_who_ask_at_the_same_time_ask_once() -> None:
    store = Store()
    finding = Lookups(store.ask, absent_for=LONG, apart=A_MOMENT)
    tasks = [*await begun(finding, [0]), *await begun(finding, [*range(100), *range(100)])]
    store.open.set()

    answers = await asyncio.gather(*tasks)

    assert [None if n % 2 else str(n) for n in (0, *range(100), *range(100))] == answers
    assert [[0], list(range(100))] == [sorted(names) for names in store.asked]


async def test_what_was_not_there_is_not_asked_for_again_and_what_was_there_is() -> None:
    store = Store()
    store.open.set()
    finding = Lookups(store.ask, absent_for=LONG, apart=A_MOMENT)

    for _ in range(3):
        assert await finding.find(1) is None
        assert await finding.find(2) == "2"

    assert [[1], [2], [2], [2]] == store.asked


async def test_whoever_asked_first_may_go_away() -> None:
    store = Store()
    finding = Lookups(store.ask, absent_for=LONG, apart=A_MOMENT)
    (first,) = await begun(finding, [1])
    second, third, fourth = await begun(finding, [2, 2, 4])

    for asker in (first, second, fourth):
        asker.cancel()
    await asyncio.wait([first, second, fourth])
    (fifth,) = await begun(finding, [2])
    store.open.set()

    assert [await third, await fifth] == ["2", "2"]
    assert [first.cancelled(), second.cancelled(), fourth.cancelled()] == [True] * 3
    assert [[1], [2, 4]] == store.asked


async def test_who_asks_while_it_is_being_asked_is_answered_by_another_statement() -> None:
    store = Store()
    finding = Lookups(store.ask, absent_for=LONG, apart=A_MOMENT)
    (first,) = await begun(finding, [2])
    await eventually(lambda: store.was_asked(1))
    (second,) = await begun(finding, [2])
    store.open.set()

    assert [await first, await second] == ["2", "2"]
    assert [[2], [2]] == store.asked


async def test_an_outage_that_nobody_waits_for_is_told_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    store.fails = True
    finding = Lookups(store.ask, absent_for=LONG, apart=A_MOMENT)
    (only,) = await begun(finding, [2])
    only.cancel()
    await asyncio.wait([only])
    store.open.set()
    with pytest.raises(Unavailable):
        await finding.find(4)
    gc.collect()

    assert caplog.records == []


async def test_an_outage_is_told_to_all_and_over_when_it_is_over() -> None:
    store = Store()
    store.fails = True
    finding = Lookups(store.ask, absent_for=LONG, apart=A_MOMENT)
    tasks = await begun(finding, range(10))
    store.open.set()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in told)

    store.fails = False

    assert await finding.find(2) == "2"


async def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "MOST_WAITING", 5)
    store = Store()
    finding = Lookups(store.ask, absent_for=LONG, apart=A_MOMENT)
    tasks = [*await begun(finding, [0]), *await begun(finding, range(1, 10))]
    store.open.set()

    told = await asyncio.gather(*tasks, return_exceptions=True)

    refused = [answer for answer in told if isinstance(answer, Unavailable)]
    assert len(refused) == 4  # one is asked about, and five wait
    assert {"busy"} == {answer.code for answer in refused}


async def test_statements_keep_their_distance() -> None:
    store = Store()
    store.open.set()
    apart = timedelta(milliseconds=50)
    finding = Lookups(store.ask, absent_for=A_MOMENT, apart=apart)
    clock = asyncio.get_running_loop().time
    begin = clock()

    for n in range(5):
        await finding.find(n)

    assert clock() - begin >= 4 * apart.total_seconds()
