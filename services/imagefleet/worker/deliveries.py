"""Messages that were received, and what is said to SQS about them, in batches.

Nothing here is ever waited for by a job: a delete or a change that is lost means that a message
comes again, and a message that comes again gets a verdict.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias, TypeVar

import structlog

from imagefleet.aws.batches import MOST_ENTRIES, Failures
from imagefleet.aws.queue import Queue, Received
from imagefleet.errors import FleetError
from imagefleet.jobs.model import JobMessage

# What waits for a delete is finished, and its message stays invisible for minutes: time enough to
# fill a batch. What is given back is wanted by somebody.
DELETES_LINGER: Final = 0.5  # seconds
CHANGES_LINGER: Final = 0.01
CLOSE_WITHIN: Final = 10.0  # for the last words, when SQS is away

Change: TypeAlias = tuple[Received, timedelta]
Entry = TypeVar("Entry")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivery:
    """One readable message, and the queue it came from."""

    queue: Queue
    received: Received
    message: JobMessage


class Deliveries:
    """Deletes messages and changes their visibility, from one place and a few at a time."""

    def __init__(self, *, deletes_linger: float = DELETES_LINGER) -> None:
        self._deletes_linger = deletes_linger
        self._done: dict[Queue, list[Received]] = defaultdict(list)
        self._later: dict[Queue, list[Change]] = defaultdict(list)
        self._deletable = asyncio.Event()
        self._full = asyncio.Event()
        self._changeable = asyncio.Event()
        self._closed = False

    def delete(self, queue: Queue, received: Received) -> None:
        """The message has said what it had to say."""
        waiting = self._done[queue]
        waiting.append(received)
        self._deletable.set()
        if len(waiting) >= MOST_ENTRIES:
            self._full.set()

    def defer(self, queue: Queue, received: Received, span: timedelta) -> None:
        """Let the message come back after this long from now; zero gives it back at once."""
        self._later[queue].append((received, span))
        self._changeable.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Deliveries"]:
        """Work until the end of the context, and say the last things before it."""
        async with asyncio.TaskGroup() as group:
            tasks = (
                group.create_task(self._delete_on(), name="deletes"),
                group.create_task(self._change_on(), name="changes"),
            )
            try:
                yield self
            except asyncio.CancelledError:  # now means now
                for task in tasks:
                    task.cancel()
                raise
            finally:
                self._closed = True
                for event in (self._deletable, self._full, self._changeable):
                    event.set()
                _, late = await asyncio.wait(tasks, timeout=CLOSE_WITHIN)
                for task in late:
                    log.warning("message.unsaid", what=task.get_name())
                    task.cancel()

    async def _delete_on(self) -> None:
        while self._done or not self._closed:
            await self._deletable.wait()
            await _at_most(self._deletes_linger, self._full.wait())
            if not self._closed:
                self._deletable.clear()
                self._full.clear()
            done, self._done = self._done, defaultdict(list)
            for queue, messages in done.items():
                await _say("delete", queue, messages, _delete)

    async def _change_on(self) -> None:
        while self._later or not self._closed:
            await self._changeable.wait()
            if not self._closed:
                await asyncio.sleep(CHANGES_LINGER)
                self._changeable.clear()
            later, self._later = self._later, defaultdict(list)
            for queue, changes in later.items():
                await _say("defer", queue, changes, _defer)


async def _delete(queue: Queue, messages: Sequence[Received]) -> Failures:
    return await queue.delete([message.receipt for message in messages])


async def _defer(queue: Queue, changes: Sequence[Change]) -> Failures:
    return await queue.change_visibility([(message.receipt, span) for message, span in changes])


async def _say(
    what: str,
    queue: Queue,
    entries: Sequence[Entry],
    call: Callable[[Queue, Sequence[Entry]], Awaitable[Failures]],
) -> None:
    codes: Counter[str] = Counter()
    try:
        codes.update(failure.code for failure in await call(queue, entries) if failure)
    except FleetError as error:
        codes[error.code] += len(entries)
    if codes:  # those messages come again, and get a verdict
        log.warning("message.unsaid", what=what, queue=queue.name, codes=dict(codes))


async def _at_most(seconds: float, awaitable: Awaitable[object]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await awaitable
