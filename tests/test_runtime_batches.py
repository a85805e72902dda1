"""What many ask for in one moment is written together."""

import asyncio
import contextvars
from collections.abc import Sequence

from imagefleet.runtime import Batcher
from tests.support.eventually import eventually

PATIENCE = 20  # seconds after which a test that hangs says so
FAR_OFF = 3600.0


class Book:
    """What a batcher wrote; a write waits until `opened`, and what is wicked breaks it."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.opened = asyncio.Event()
        self.opened.set()

    async def write(self, items: Sequence[str]) -> Sequence[str | Exception]:
        self.batches.append(list(items))
        await self.opened.wait()
        if "wicked" in items:
            msg = "wicked"
            raise ValueError(msg)
        return [ValueError(one) if one == "bad" else one.upper() for one in items]


def a_batcher(book: Book, *, linger: float = 0, most: int = 3) -> Batcher[str, str]:
    return Batcher(book.write, name="book", linger=linger, most=most)


async def test_what_is_asked_for_in_one_moment_is_written_together_and_answered_in_order() -> None:
    book = Book()
    async with a_batcher(book, linger=0.01).open() as batcher:
        answers = await asyncio.gather(batcher.put("a"), batcher.put("b"))

    assert ["A", "B"] == list(answers)
    assert [["a", "b"]] == book.batches


async def test_a_full_batch_waits_for_nobody_and_the_rest_for_company() -> None:
    book = Book()
    async with a_batcher(book, linger=FAR_OFF).open() as batcher:
        first, *_, last = [batcher.put(one) for one in "abcd"]
        assert "A" == await first
        await asyncio.sleep(0.01)

        assert [["a", "b", "c"]] == book.batches
        assert 1 == batcher.waiting
    assert [["a", "b", "c"], ["d"]] == book.batches
    assert "D" == await last


async def test_nobody_is_waited_for_once_nobody_is_expected() -> None:
    book, expected = Book(), {"b"}
    batcher = Batcher[str, str](book.write, name="book", linger=FAR_OFF, most=3, expected=expected)
    async with asyncio.timeout(PATIENCE), batcher.open():
        first = batcher.put("a")
        await asyncio.sleep(0.01)
        assert [] == book.batches

        expected.clear()
        second = batcher.put("b")
        assert ["A", "B"] == [await first, await second]
        assert "C" == await batcher.put("c")
    assert [["a", "b"], ["c"]] == book.batches


async def test_who_came_while_another_batch_was_written_has_waited_already() -> None:
    book = Book()
    book.opened.clear()
    async with a_batcher(book, linger=0.05).open() as batcher:
        first = batcher.put("a")
        await eventually(lambda: book.batches)
        second = batcher.put("b")
        await asyncio.sleep(0.05)
        book.opened.set()
        await first
        began = asyncio.get_running_loop().time()
        await second

    assert asyncio.get_running_loop().time() - began < 0.04


async def test_one_that_cannot_be_written_is_told_to_whoever_asked_for_it() -> None:
    book = Book()
    async with a_batcher(book).open() as batcher:
        good, bad = await asyncio.gather(
            batcher.put("good"), batcher.put("bad"), return_exceptions=True
        )

    assert "GOOD" == good
    assert isinstance(bad, ValueError)


async def test_a_write_that_breaks_is_told_to_all_of_its_batch_and_the_next_is_written() -> None:
    book = Book()
    async with a_batcher(book).open() as batcher:
        told = await asyncio.gather(
            batcher.put("wicked"), batcher.put("good"), return_exceptions=True
        )
        assert [ValueError, ValueError] == [type(one) for one in told]

        assert "GOOD" == await batcher.put("good")


async def test_who_has_stopped_waiting_is_not_written() -> None:
    book = Book()
    async with a_batcher(book, linger=0.01).open() as batcher:
        given_up, kept = batcher.put("a"), batcher.put("b")
        given_up.cancel()
        await kept

    assert [["b"]] == book.batches


async def test_what_waits_is_written_before_the_end_without_delay() -> None:
    book = Book()
    async with asyncio.timeout(PATIENCE), a_batcher(book, linger=FAR_OFF).open() as batcher:
        batcher.put("a")

    assert [["a"]] == book.batches


async def test_what_hangs_is_given_up_after_a_while() -> None:
    book = Book()
    book.opened.clear()
    batcher = a_batcher(book)
    batcher.put("a")

    assert not await batcher.close(0.01)
    assert await a_batcher(book).close(0.01), "nothing was asked for"


async def test_a_cancelled_process_writes_nothing_more() -> None:
    book, opened = Book(), asyncio.Event()

    async def work() -> None:
        async with a_batcher(book, linger=FAR_OFF).open() as batcher:
            batcher.put("a")
            await asyncio.sleep(0)
            opened.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        working = group.create_task(work())
        await opened.wait()
        working.cancel()

    assert [] == book.batches


async def test_a_batch_belongs_to_none_of_those_who_asked() -> None:
    """Its lines would carry the ids of one job, and its span would be of one trace."""
    seen: list[str] = []
    name = contextvars.ContextVar("name", default="nobody")

    async def write(items: Sequence[str]) -> Sequence[None]:
        seen.append(name.get())
        return [None] * len(items)

    async with Batcher[str, None](write, name="book", linger=0, most=3).open() as batcher:
        name.set("somebody")
        await batcher.put("a")

    assert ["nobody"] == seen
