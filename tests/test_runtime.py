"""How a process lives and ends: signals, parts and threads."""

import asyncio
import gc
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import IO

import pytest
from structlog.testing import capture_logs

from imagefleet.runtime import (
    Drain,
    in_thread,
    run_until_signalled,
    supervise,
    unless,
)
from tests.support.eventually import eventually

HOUR = timedelta(hours=1)
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


def test_what_a_start_leaves_is_not_looked_through_for_ever() -> None:
    program = """
        import gc
        from imagefleet import runtime
        runtime.STANDS_AFTER = 0.0
        async def main(drain):
            say(gc.get_freeze_count())
            while not gc.get_freeze_count(): await asyncio.sleep(0.001)
            say("stands")
        sys.exit(run_until_signalled(main))
    """
    with process(program) as (running, said):
        expect(said, "0")
        expect(said, "stands")
        assert running.wait(PATIENCE) == 0


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


@pytest.mark.parametrize("meaning", [signal.SIG_IGN, signal.default_int_handler])
def test_signals_mean_what_they_meant_before_once_a_process_has_ended(
    meaning: signal.Handlers, request: pytest.FixtureRequest
) -> None:
    async def main(_drain: Drain) -> None:
        assert signal.getsignal(signal.SIGTERM) is not before[0]

    numbers = (signal.SIGTERM, signal.SIGINT)
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, meaning)
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
