"""How a process lives and ends: signals, parts and loops."""

import asyncio
import contextvars
import gc
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from imagefleet.runtime import (
    LONGEST_BACKOFF,
    Batcher,
    Drain,
    every,
    in_thread,
    pause_after,
    run_until_signalled,
    supervise,
    unless,
)
from tests.support.eventually import eventually

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
INSTANT = timedelta(milliseconds=1)
PATIENCE = 20  # seconds after which a test that hangs says so


class BrokenError(Exception):
    """What a broken part raises."""


# Processes.


@contextmanager
def process(program: str) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    head = """
        import asyncio, signal, sys
        from datetime import timedelta
        from imagefleet.runtime import run_until_signalled, supervise, every
        def say(text): print(text, flush=True)
    """
    source = textwrap.dedent(head) + textwrap.dedent(program)
    running = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        yield running, running.stdout
    finally:
        running.kill()
        running.stdout.close()
        running.wait(PATIENCE)


def expect(said: IO[str], text: str) -> None:
    for line in said:
        if text in line:
            return
    pytest.fail(f"the process never said {text!r}")


DRAINS = """
    async def main(drain):
        say("ready")
        await drain.wait()
        say(f"draining because of {drain.reason}")
    sys.exit(run_until_signalled(main))
"""

WILL_NOT_END = """
    async def main(drain):
        try:
            say("ready")
            await drain.wait()
            say("draining")
            await asyncio.Event().wait()
        finally:
            say("cleaned up")
    sys.exit(run_until_signalled(main))
"""

CANNOT_END = """
    async def main(drain):
        try:
            say("ready")
            await asyncio.Event().wait()
        finally:
            asyncio.get_running_loop().call_soon(say, "hanging")  # once it really does
            while True:
                try: await asyncio.Event().wait()
                except asyncio.CancelledError: say("still hanging")
    sys.exit(run_until_signalled(main))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_for_an_orderly_end(number: signal.Signals) -> None:
    with process(DRAINS) as (running, said):
        expect(said, "ready")

        running.send_signal(number)

        expect(said, f"draining because of {number.name}")
        assert running.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)],
)
def test_the_second_signal_stops_at_once_but_still_cleans_up(
    first: signal.Signals, second: signal.Signals
) -> None:
    with process(WILL_NOT_END) as (running, said):
        expect(said, "ready")
        running.send_signal(first)
        expect(said, "draining")

        running.send_signal(second)

        expect(said, "cleaned up")
        assert 128 + second == running.wait(PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_third_signal_ends_even_a_process_that_hangs_while_it_cleans_up(
    number: signal.Signals,
) -> None:
    with process(CANNOT_END) as (running, said):
        expect(said, "ready")
        running.send_signal(number)
        expect(said, "process.draining")
        running.send_signal(number)
        expect(said, "hanging")

        running.send_signal(number)

        assert -number == running.wait(PATIENCE)


def test_a_signal_ends_the_loops_of_a_process() -> None:
    program = """
        async def step(): say("beat")
        async def main(drain):
            async with supervise(drain) as parts:
                parts.start("beat", every(timedelta(hours=1), step, stop=drain, name="beat",
                                          timeout=timedelta(seconds=5)))
            say("all parts ended")
        sys.exit(run_until_signalled(main))
    """
    with process(program) as (running, said):
        expect(said, "beat")

        running.send_signal(signal.SIGTERM)

        expect(said, "all parts ended")
        assert running.wait(PATIENCE) == 0


def test_uvloop_is_used_where_there_is_one_and_not_needed() -> None:
    ask = """
        async def main(drain): say(type(asyncio.get_running_loop()).__module__)
        sys.exit(run_until_signalled(main))
    """
    for before, loop in [("", "uvloop"), ("import sys; sys.modules['uvloop'] = None", "asyncio")]:
        source = f"{before}\n" + textwrap.dedent(
            """
            import asyncio, sys
            from imagefleet.runtime import run_until_signalled
            def say(text): print(text, flush=True)
            """
        )
        done = subprocess.run(
            [sys.executable, "-c", source + textwrap.dedent(ask)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )

        assert done.stdout.startswith(loop)


def test_a_process_whose_main_returns_ends_well() -> None:
    async def main(drain: Drain) -> None:
        assert not drain.requested

    assert run_until_signalled(main) == 0


def test_an_error_of_main_is_raised() -> None:
    async def main(_drain: Drain) -> None:
        raise BrokenError

    with pytest.raises(BrokenError):
        run_until_signalled(main)


def test_a_cancellation_that_no_signal_asked_for_is_an_error() -> None:
    async def main(_drain: Drain) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_until_signalled(main)


def test_signals_mean_what_they_meant_before_once_a_process_has_ended() -> None:
    async def main(_drain: Drain) -> None:
        assert signal.getsignal(signal.SIGTERM) is not before[0]

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    run_until_signalled(main)

    assert before == [signal.getsignal(number) for number in numbers]


# The wish to end.


async def test_the_first_reason_to_end_is_kept() -> None:
    drain = Drain()

    drain.request("SIGTERM")
    drain.request("SIGINT")

    assert drain.requested
    assert drain.reason == "SIGTERM"


async def test_a_pause_ends_early_when_the_end_is_wished_for() -> None:
    drain = Drain()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        pause = group.create_task(drain.wait_at_most(HOUR))
        drain.request("test")

    assert pause.result()


async def test_a_pause_is_over_after_its_span() -> None:
    assert not await Drain().wait_at_most(INSTANT)


async def test_waiting_goes_on_until_its_answer_while_nobody_wishes_for_the_end() -> None:
    async def answer() -> str:
        return "answer"

    assert await unless(Drain(), answer()) == "answer"


async def test_an_error_of_what_is_awaited_is_raised() -> None:
    async def breaking() -> None:
        raise BrokenError

    with pytest.raises(BrokenError):
        await unless(Drain(), breaking())


async def test_waiting_is_cancelled_when_the_end_is_wished_for() -> None:
    drain, cleaned_up = Drain(), list[str]()

    async def forever() -> bool:
        try:
            drain.request("test")
            return await asyncio.Event().wait()
        finally:
            cleaned_up.append("forever")

    async with asyncio.timeout(PATIENCE):
        assert await unless(drain, forever()) is None

    assert cleaned_up == ["forever"]


# Threads.


async def test_what_a_thread_began_is_ended_though_nobody_waits_for_it_any_more() -> None:
    begun, ended, told = threading.Event(), threading.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def breaking() -> None:
        begun.set()
        assert ended.wait(PATIENCE)
        raise BrokenError

    waiting = asyncio.ensure_future(in_thread(breaking))  # noqa: TID251 - awaited below
    await eventually(begun.is_set)
    waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    ended.set()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    del waiting
    gc.collect()

    assert told == []  # asyncio tells of an exception that nobody took when it is collected


# Parts.


async def test_all_parts_are_waited_for() -> None:
    drain, ended = Drain(), list[str]()

    async def part(name: str) -> None:
        await drain.wait()
        ended.append(name)

    async with asyncio.timeout(PATIENCE), supervise(drain) as parts:
        parts.start("first", part("first"))
        parts.start("second", part("second"))
        drain.request("test")

    assert sorted(ended) == ["first", "second"]


async def test_a_part_that_breaks_lets_the_others_end_in_order_and_is_then_raised() -> None:
    drain, ended = Drain(), list[str]()

    async def breaks() -> None:
        raise BrokenError

    async def works() -> None:
        await drain.wait()
        ended.append("works")

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), supervise(drain) as parts:
            parts.start("works", works())
            parts.start("breaks", breaks())

    with capture_logs() as logs, pytest.raises(BrokenError):
        await main()

    assert ended == ["works"]
    assert drain.reason == "breaks broke"
    assert [("part.broke", "breaks")] == [(line["event"], line["part"]) for line in logs[:1]]


async def test_an_error_of_main_itself_drains_the_parts_too() -> None:
    drain = Drain()

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), supervise(drain) as parts:
            parts.start("works", drain.wait())
            raise BrokenError

    with pytest.raises(BrokenError):
        await main()

    assert drain.reason == "main broke"


async def test_several_broken_parts_are_raised_together() -> None:
    async def breaks() -> None:
        raise BrokenError

    async def main() -> None:
        async with supervise(Drain()) as parts:
            parts.start("first", breaks())
            parts.start("second", breaks())

    with pytest.raises(ExceptionGroup) as raised:
        await main()

    assert [BrokenError, BrokenError] == [type(error) for error in raised.value.exceptions]


async def test_cancelling_the_process_reaches_every_part() -> None:
    drain, started, cancelled = Drain(), asyncio.Event(), list[str]()

    async def part() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("part")
            raise

    async def main() -> None:
        async with supervise(drain) as parts:
            parts.start("part", part())

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        running = group.create_task(main())
        await started.wait()
        running.cancel()

    assert cancelled == ["part"]
    assert not drain.requested


# Loops.


class Beat:
    """A step that does what it is given, run by run, and asks for the end with the last."""

    def __init__(self, *runs: Callable[[], object]) -> None:
        self.drain = Drain()
        self.count = 0
        self._runs = runs

    async def __call__(self) -> None:
        run = self._runs[self.count]
        self.count += 1
        if self.count == len(self._runs):
            self.drain.request("test")
        run()

    async def run(self, interval: timedelta = INSTANT) -> None:
        async with asyncio.timeout(PATIENCE):
            await every(
                interval, self, stop=self.drain, name="beat", timeout=SECOND, dice=lambda: 0.0
            )


def nothing() -> None:
    """Succeed."""


def breaks() -> None:
    raise BrokenError


def is_cancelled() -> None:
    raise asyncio.CancelledError


async def test_a_loop_runs_its_step_at_once_and_again_until_the_end() -> None:
    beat = Beat(nothing, nothing, nothing)

    await beat.run()

    assert beat.count == 3


async def test_a_loop_does_not_sit_out_its_interval_when_the_end_is_wished_for() -> None:
    beat = Beat(nothing)

    await beat.run(interval=HOUR)

    assert beat.count == 1


async def test_a_loop_that_is_to_end_does_not_begin() -> None:
    beat = Beat(nothing)
    beat.drain.request("test")

    await beat.run()

    assert beat.count == 0


@pytest.mark.parametrize("failure", [breaks, is_cancelled])
async def test_a_loop_outlives_a_step_that_fails(failure: Callable[[], object]) -> None:
    beat = Beat(failure, nothing)

    with capture_logs() as logs:
        await beat.run()

    assert beat.count == 2
    (line,) = [line for line in logs if line["event"] == "step.failed"]
    assert line["step"] == "beat"
    assert line["exc_info"]


async def test_a_step_that_passes_its_deadline_is_cancelled_and_the_loop_goes_on() -> None:
    drain, runs = Drain(), list[str]()

    async def step() -> None:
        runs.append("run")
        if len(runs) == 1:
            await asyncio.Event().wait()
        drain.request("test")

    with capture_logs() as logs:
        async with asyncio.timeout(PATIENCE):
            await every(INSTANT, step, stop=drain, name="slow", timeout=INSTANT)

    assert runs == ["run", "run"]
    assert logs[0]["event"] == "step.overdue"


async def test_a_timeout_of_the_steps_own_is_a_failure_and_no_deadline() -> None:
    def times_out() -> None:
        raise TimeoutError

    with capture_logs() as logs:
        await Beat(times_out).run()

    assert "step.failed" in [line["event"] for line in logs]


async def test_a_running_step_is_finished_before_the_loop_ends() -> None:
    drain, started, may_end, ended = Drain(), asyncio.Event(), asyncio.Event(), list[str]()

    async def step() -> None:
        started.set()
        await may_end.wait()
        ended.append("step")

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        loop = group.create_task(every(HOUR, step, stop=drain, name="beat", timeout=HOUR))
        await started.wait()
        drain.request("test")
        may_end.set()
        await loop

    assert ended == ["step"]


async def test_a_cancelled_loop_ends() -> None:
    started = asyncio.Event()

    async def step() -> None:
        started.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        loop = group.create_task(every(HOUR, step, stop=Drain(), name="beat", timeout=HOUR))
        await started.wait()
        loop.cancel()

    assert loop.cancelled()


async def test_steps_of_one_loop_never_overlap() -> None:
    drain, running, most = Drain(), 0, 0
    runs = 0

    async def step() -> None:
        nonlocal running, most, runs
        running += 1
        most = max(most, running)
        runs += 1
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        if runs == 5:
            drain.request("test")

    async with asyncio.timeout(PATIENCE):
        await every(timedelta(microseconds=1), step, stop=drain, name="beat", timeout=SECOND)

    assert (runs, most) == (5, 1)


async def test_the_pauses_grow_while_a_step_fails_and_shrink_when_it_succeeds() -> None:
    class Impatient(Drain):
        """Remembers how long it was asked to wait, and does not."""

        def __init__(self) -> None:
            super().__init__()
            self.asked: list[timedelta] = []

        async def wait_at_most(self, span: timedelta) -> bool:
            self.asked.append(span)
            return self.requested

    beat = Beat(breaks, breaks, nothing, breaks)
    beat.drain = impatient = Impatient()

    await beat.run(interval=10 * SECOND)

    first, second, success, third = impatient.asked
    assert (first, second, third) == (20 * SECOND, 40 * SECOND, 20 * SECOND)
    assert success <= 10 * SECOND


# Pauses.


def test_the_pause_is_what_the_step_left_of_its_interval() -> None:
    assert pause_after(10 * SECOND, 4 * SECOND, 0, 0.9) == 6 * SECOND
    assert pause_after(10 * SECOND, 14 * SECOND, 0, 0.9) == timedelta(0)


def test_the_pause_doubles_with_every_failure_up_to_a_minute() -> None:
    pauses = [pause_after(5 * SECOND, SECOND, failures, 0) / SECOND for failures in range(1, 7)]

    assert pauses == [10, 20, 40, 60, 60, 60]


def test_a_loop_with_a_longer_interval_keeps_to_it_when_it_fails() -> None:
    assert pause_after(HOUR, SECOND, 9, 0) == HOUR


@given(
    st.timedeltas(min_value=INSTANT, max_value=HOUR),
    st.integers(1, 10**9),
    st.floats(0, 1, exclude_max=True),
)
def test_the_pause_after_a_failure_is_jittered_and_bounded(
    interval: timedelta, failures: int, draw: float
) -> None:
    pause = pause_after(interval, SECOND, failures, draw)

    assert interval <= pause <= max(interval, LONGEST_BACKOFF) * 1.2


# Batches.

FAR_OFF = 3600.0


class Book:
    """What a batcher wrote; `closed` keeps it from writing, and what is wicked breaks it."""

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
