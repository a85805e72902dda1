"""How a process lives: it runs until a signal, drains, and owns every task it starts.

The only place that knows signals, event loops and tasks. `run_until_signalled` gives `main` a
`Drain`; `main` opens what it needs and starts its parts under `supervise`, which waits for all of
them. A part that breaks asks for the drain too, so that the others come to an orderly end and the
error is raised after that. The first SIGTERM or SIGINT asks for the drain, the second stops now.

Two kinds of work recur: what is done once an interval (`every`), and what many ask for in one
moment and is written together (`Batcher`).
"""

import asyncio
import contextvars
import ctypes
import gc
import os
import random
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Generic, Self, TypeAlias, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from imagefleet.errors import FleetError, Unavailable

new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
with suppress(ImportError):  # it does not exist for every platform
    import uvloop

    new_event_loop = uvloop.new_event_loop

log: Final[FilteringBoundLogger] = structlog.get_logger()

Step: TypeAlias = Callable[[], Awaitable[object]]
Dice: TypeAlias = Callable[[], float]
Result = TypeVar("Result")
Item = TypeVar("Item")
Answer = TypeVar("Answer")

FIRST_PAUSE: Final = 0.1  # seconds, doubled with every question that nobody answered
LONGEST_PAUSE: Final = 2.0
LONGEST_BACKOFF: Final = timedelta(minutes=1)  # a broken loop still looks often enough to recover
NEWS_AFTER: Final = 60.0  # seconds for which others of this process miss the same
BACKOFF_JITTER: Final = 0.2  # so that a fleet whose database was away does not come back as one
STANDS_AFTER: Final = 5.0  # seconds; a start takes one or two
INIT: Final = 1  # the first process of a container, to which the kernel does nothing by default
BURY_EVERY: Final = 1.0  # seconds; whoever started a process has asked for its end by then
KILLED_BY_SIGNAL: Final = 128  # what a shell adds to the number of the signal that ended a process


class Drain:
    """The wish to end: uttered once, by a signal or a broken part, and never taken back."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._requested_at = 0.0
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        """Tell whether nothing new may be begun."""
        return self._requested.is_set()

    def request(self, reason: str) -> None:
        """Ask everybody to come to an end; the first reason is the one that is kept."""
        if self.requested:
            return
        self.reason = reason
        self._requested_at = time.monotonic()
        self._requested.set()
        log.info("process.draining", reason=reason)

    async def wait(self) -> None:
        """Return when the end is wished for."""
        await self._requested.wait()

    async def until_answered(self, ask: Step, *, within: timedelta) -> None:
        """Ask, and go on asking while nobody can say, until this long after the wish to end."""
        left = within.total_seconds() - (time.monotonic() - self._requested_at)
        pause = FIRST_PAUSE
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                while True:
                    with suppress(Unavailable):
                        await ask()
                        return
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)

    async def wait_at_most(self, span: timedelta) -> bool:
        """Pause for this long, or until the end is wished for; return whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(span.total_seconds()):
                await self.wait()
        return self.requested


def run_until_signalled(main: Callable[[Drain], Coroutine[object, object, None]]) -> int:
    """Run `main` to its end and return the exit code; errors of `main` are raised."""
    stopped_by: list[signal.Signals] = []

    async def run() -> None:
        drain = Drain()
        with_signals = _Signals(drain, stopped_by)
        with_signals.install()
        asyncio.get_running_loop().call_later(STANDS_AFTER, let_go_of_the_start)
        try:
            await main(drain)
        finally:
            with_signals.remove()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            runner.run(run())
        except asyncio.CancelledError:
            if not stopped_by:
                raise
    return KILLED_BY_SIGNAL + stopped_by[0] if stopped_by else 0


def let_go_of_the_start() -> None:
    """Give back what only the start needed; what is left stays, and is not looked through again."""
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):  # a C library that keeps nothing has no word for it
        ctypes.CDLL(None).malloc_trim(0)


def end_at_once(number: int, _frame: object = None) -> None:
    """What the kernel does for a signal that nobody handles, but not to the first process."""
    os._exit(KILLED_BY_SIGNAL + number)


class Undertaker:
    """Buries what was left to the first process: nobody else will ever ask for its end."""

    def __init__(self) -> None:
        self._seen: int | None = None

    def look(self) -> None:
        """Bury whoever was found dead by the last look too: our own were asked for meanwhile."""
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            dead = None if ended is None else ended.si_pid
            if dead is not None and dead == self._seen:
                os.waitpid(dead, os.WNOHANG)
                dead = None
            self._seen = dead


class _Signals:
    """The first signal drains, the second cancels the current task, the third is the kernel's."""

    NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, drain: Drain, stopped_by: list[signal.Signals]) -> None:
        self._drain = drain
        self._stopped_by = stopped_by
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._undertaker = Undertaker()

    def install(self) -> None:
        self._before = {number: signal.getsignal(number) for number in self.NUMBERS}
        for number in self.NUMBERS:
            self._loop.add_signal_handler(number, self._received, number)
        if os.getpid() == INIT:
            self._bury()

    def remove(self) -> None:
        for number, before in self._before.items():  # a shell's background jobs ignore SIGINT
            self._loop.remove_signal_handler(number)
            signal.signal(number, before or signal.SIG_DFL)

    def _bury(self) -> None:
        self._undertaker.look()
        self._loop.call_later(BURY_EVERY, self._bury)  # SIGCHLD is the event loop's own

    def _received(self, number: signal.Signals) -> None:
        if not self._drain.requested:
            self._drain.request(number.name)
            return
        log.warning("process.stopping", signal=number.name)
        self._stopped_by.append(number)
        self.remove()
        for each in self.NUMBERS:
            # Cleaning up may hang; a third one must not.
            signal.signal(each, end_at_once if os.getpid() == INIT else signal.SIG_DFL)
        if self._main is not None:
            self._main.cancel()


class Parts:
    """The running parts of a process; made by `supervise`."""

    def __init__(self, group: asyncio.TaskGroup, drain: Drain) -> None:
        self._group = group
        self._drain = drain
        self.broken: list[Exception] = []

    def start(self, name: str, part: Coroutine[object, object, object]) -> asyncio.Task[None]:
        """Run a part until it returns; if it raises instead, the process drains."""
        return self._group.create_task(self._run(name, part), name=name)

    def broke(self, name: str, error: Exception) -> None:
        """Remember the error for the end, and ask for the end."""
        log.error("part.broke", part=name, exc_info=error)
        self.broken.append(error)
        self._drain.request(f"{name} broke")

    async def _run(self, name: str, part: Coroutine[object, object, object]) -> None:
        try:
            await part
        except Exception as error:  # noqa: BLE001 - raised by supervise, after the drain
            self.broke(name, error)


@asynccontextmanager
async def supervise(drain: Drain) -> AsyncIterator[Parts]:
    """Own tasks: wait for every part, then raise what broke; cancellation reaches all of them."""
    async with asyncio.TaskGroup() as group:
        parts = Parts(group, drain)
        try:
            yield parts
        except Exception as error:  # noqa: BLE001 - raised below, after the drain
            parts.broke("main", error)
    if len(parts.broken) == 1:
        raise parts.broken[0]
    if parts.broken:
        msg = "several parts of the process broke"
        raise ExceptionGroup(msg, parts.broken)


async def every(
    interval: timedelta,
    step: Step,
    *,
    stop: Drain,
    name: str,
    timeout: timedelta,  # noqa: ASYNC109 - of each step, not of this call
    dice: Dice = random.random,
) -> None:
    """Run the step, at once and then once an interval, until `stop`; a step never overlaps another.

    A step that fails or passes its deadline is logged, and the pause grows until one succeeds. A
    step that runs when the end is wished for is finished, within its deadline.
    """
    clock = asyncio.get_running_loop().time
    failures = 0
    while not stop.requested:
        started = clock()
        failures = 0 if await _succeeds(step, name, timeout) else failures + 1
        elapsed = timedelta(seconds=clock() - started)
        await stop.wait_at_most(pause_after(interval, elapsed, failures, dice()))


def pause_after(interval: timedelta, elapsed: timedelta, failures: int, draw: float) -> timedelta:
    """Return how long a loop rests: the rest of its interval, or longer after failures in a row."""
    if failures == 0:
        return max(timedelta(0), interval - elapsed)
    doublings = min(failures, 16)  # enough from a millisecond to a minute, and no overflow
    backoff = min(interval * (1 << doublings), max(interval, LONGEST_BACKOFF))
    return backoff * (1 + BACKOFF_JITTER * draw)


async def _succeeds(step: Step, name: str, deadline: timedelta) -> bool:
    limit = asyncio.timeout(deadline.total_seconds())
    try:
        async with limit:
            await step()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled this loop: the step awaited something that somebody else cancelled.
        log.warning("step.failed", step=name, exc_info=True)
        return False
    except Exception as error:
        if limit.expired() and isinstance(error, TimeoutError):
            log.warning("step.overdue", step=name, deadline_seconds=deadline.total_seconds())
        elif isinstance(error, Unavailable):
            tell_missed(error, "step.failed", step=name)
        else:
            log.warning("step.failed", step=name, exc_info=error)
        return False
    return True


def tell_missed(error: FleetError, event: str, **told: object) -> None:
    """Tell what could not be done without something outside.

    The first of this process to miss it warns, once a minute; whoever else misses it meanwhile says
    so as an `info`. There is no trace: it would end at whoever asked, and the fault lies elsewhere.
    What is no outage is always a warning.
    """
    now, missed = time.monotonic(), error.code.partition("_")[0]  # the service, such as `database`
    is_outage = isinstance(error, Unavailable)
    is_news = not is_outage or now - _WARNED.get(missed, -NEWS_AFTER) >= NEWS_AFTER
    if is_outage and is_news:
        _WARNED[missed] = now
    say = log.warning if is_news else log.info
    say(event, code=error.code, detail=error.detail, **told)


_WARNED: Final[dict[str, float]] = {}
"""When this process warned last that something is missed."""


async def unless(drain: Drain, awaitable: Awaitable[Result]) -> Result | None:
    """Await something, but no longer than until the end is wished for; then cancel it: None."""
    work = asyncio.ensure_future(awaitable)
    wish = asyncio.ensure_future(drain.wait())
    try:
        await asyncio.wait((work, wish), return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        for task in (work, wish):
            task.cancel()
        await asyncio.gather(work, wish, return_exceptions=True)


async def in_thread(work: Callable[[], Result]) -> Result:
    """Run what blocks in a thread; cancelled, it still comes to its end, for what it began."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # nobody is left to hear it, and whoever collects it must not tell it
        raise


@dataclass(frozen=True, slots=True)
class _Asked(Generic[Item, Answer]):
    item: Item
    answer: asyncio.Future[Answer]
    at: float


class Batcher(Generic[Item, Answer]):
    """Writes together what many ask for in one moment.

    The first of a batch waits `linger` seconds for company, or until there are `most`, or until
    nobody is `expected` any more, where that is known. One batch is written at a time; `write`
    answers in the order of the items, for each of them with an answer or an exception, and what it
    raises is told to all of them. To try again is its own affair.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        name: str,
        linger: float,
        most: int,
        expected: Collection[object] | None = None,
    ) -> None:
        self._write = write
        self.name = name
        self._linger = linger
        self._most = most
        self._expected = expected
        self._waiting: deque[_Asked[Item, Answer]] = deque()
        self._full = asyncio.Event()
        self._closed = False
        self._writing: asyncio.Task[None] | None = None
        # Nothing of whoever happens to ask first: neither the job it logs for nor its span.
        self._context = contextvars.copy_context()

    @property
    def waiting(self) -> int:
        """How many are not being written yet."""
        return len(self._waiting)

    def put(self, item: Item) -> asyncio.Future[Answer]:
        """Have it written soon. Nobody has to wait; an answer that is cancelled takes it back."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append(_Asked(item, answer, loop.time()))
        if self._is_full():
            self._full.set()
        if self._writing is None or self._writing.done():
            self._writing = loop.create_task(
                self._write_on(), name=self.name, context=self._context
            )
        return answer

    @asynccontextmanager
    async def open(self, *, close_within: float | None = None) -> AsyncIterator[Self]:
        """Write until the end of the context, and what waits then before it ends."""
        try:
            yield self
        except asyncio.CancelledError:
            self.stop()
            raise
        finally:
            await self.close(close_within)

    def stop(self) -> None:
        """Write nothing more: now means now."""
        if self._writing is not None:
            self._writing.cancel()

    async def close(self, within: float | None = None) -> bool:
        """Write what waits, and linger no more; False if it took too long and was given up."""
        self._closed = True
        self._full.set()
        if self._writing is None:
            return True
        try:
            written, _ = await asyncio.wait([self._writing], timeout=within)
        finally:
            if not self._writing.done():
                self._writing.cancel()
                await asyncio.wait([self._writing])
        return bool(written)

    async def _write_on(self) -> None:
        while self._waiting:
            await self._gather()
            batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            wanted = [asked for asked in batch if not asked.answer.done()]
            if wanted:
                await self._answer(wanted)

    async def _gather(self) -> None:
        until = self._waiting[0].at + self._linger
        self._full.clear()
        if not self._is_full() and until > asyncio.get_running_loop().time():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._full.wait()

    def _is_full(self) -> bool:
        alone = self._expected is not None and not self._expected
        return self._closed or alone or len(self._waiting) >= self._most

    async def _answer(self, batch: Sequence[_Asked[Item, Answer]]) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._write([asked.item for asked in batch])
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            answers = [error] * len(batch)
        for asked, answer in zip(batch, answers, strict=True):
            if asked.answer.done():
                continue
            if isinstance(answer, Exception):
                asked.answer.set_exception(answer)
            else:
                asked.answer.set_result(answer)


_NO_LIMIT: Final = 2**60  # version 1 says so by a number that no machine has


def container_limit(root: Path = Path("/")) -> int | None:
    """How much memory the kernel gives this process and those beside it; None: it has no limit.

    The least of its control group and of those around it, as far as they are to be seen from here:
    in a container the outermost is usually the container's own.
    """
    limits = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        for part in ("", *path.split("/")):
            folder /= part
            limits += [int(told) for told in _lines(folder / name) if told.isdigit()]
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text(encoding="utf-8").splitlines()
    return []
