"""Looking for many things with few statements, whoever goes away meanwhile."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

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
    tasks = await begun(finding, [0, *range(100), *range(100)])
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


async def test_who_asks_for_all_may_go_away() -> None:
    store = Store()
    finding = Lookups(store.ask, absent_for=LONG, apart=A_MOMENT)
    first, second, third = await begun(finding, [1, 2, 4])

    first.cancel()
    await asyncio.wait([first])
    second.cancel()  # whose turn it is now
    store.open.set()

    assert await third == "4"
    assert first.cancelled()
    assert second.cancelled()
    assert await finding.find(6) == "6"


async def test_who_asks_for_all_may_go_away_while_others_ask_for_the_same_name_again() -> None:
    store = Store()
    finding = Lookups(store.ask, absent_for=LONG, apart=A_MOMENT)
    first, *those = await begun(finding, [1, 2, 2, 2])
    since = []
    for asker in (first, those[0], those[1]):
        asker.cancel()
        await eventually(partial(store.was_asked, len(store.asked) + 1))  # by the next of them
        since += await begun(finding, [2])
    store.open.set()

    async with asyncio.timeout(5):
        assert {await asker for asker in (those[2], *since)} == {"2"}
    assert await finding.find(4) == "4"


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
    tasks = await begun(finding, range(10))
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
