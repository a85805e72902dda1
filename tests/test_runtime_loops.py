"""What is done once an interval, and how long until it is done again."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from imagefleet import runtime
from imagefleet.errors import StoreRejected, Unavailable
from imagefleet.runtime import (
    LONGEST_BACKOFF,
    Drain,
    every,
    pause_after,
    tell_missed,
)

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
INSTANT = timedelta(milliseconds=1)
PATIENCE = 20  # seconds after which a test that hangs says so


class BrokenError(Exception):
    """What a broken step raises."""


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


async def test_what_a_process_misses_is_warned_of_once_however_many_loops_miss_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And without a trace, which would end at each of them."""
    monkeypatch.setattr(runtime, "_WARNED", {})

    def misses(code: str) -> Callable[[], object]:
        def raises() -> None:
            raise Unavailable(code, "It is away.", "somewhere")

        return raises

    with capture_logs() as logs:
        await Beat(misses("database_unavailable"), misses("database_timeout")).run()
        await Beat(misses("database_unavailable"), misses("sqs_unavailable")).run()
        monkeypatch.setattr(runtime, "NEWS_AFTER", 0.0)
        await Beat(misses("database_unavailable")).run()

    told = [line for line in logs if line["event"] == "step.failed"]
    levels = ["warning", "info", "info", "warning", "warning"]
    assert levels == [line["log_level"] for line in told]
    assert ("database_unavailable", "somewhere") == (told[0]["code"], told[0]["detail"])
    assert not any("exc_info" in line for line in told)


async def test_what_is_no_outage_is_warned_of_every_time() -> None:
    rejected = StoreRejected("store_rejected", "It is refused.")

    with capture_logs() as logs:
        for _ in range(2):
            tell_missed(rejected, "sample.failed", sample="jobs")

    assert ["warning", "warning"] == [line["log_level"] for line in logs]


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
