"""Messages that were received, and what is said to SQS about them, in batches.

Nothing here is ever waited for by a job: a delete or a change that is lost means that a message
comes again, and a message that comes again gets a verdict.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from imagefleet.aws.queue import Queue, Received
from imagefleet.errors import FleetError
from imagefleet.jobs.model import JobMessage

LINGER: Final = 0.01  # seconds: jobs that end together share one call
MOST_AT_ONCE: Final = 200

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivery:
    """One readable message, and the queue it came from."""

    queue: Queue
    received: Received
    message: JobMessage


class Deliveries:
    """Deletes messages and changes their visibility, from one place and a few at a time."""

    def __init__(self) -> None:
        self._done: dict[Queue, list[Received]] = defaultdict(list)
        self._later: dict[Queue, list[tuple[Received, timedelta]]] = defaultdict(list)
        self._wake = asyncio.Event()
        self._closed = False

    def delete(self, queue: Queue, received: Received) -> None:
        """The message has said what it had to say."""
        self._done[queue].append(received)
        self._wake.set()

    def defer(self, queue: Queue, received: Received, span: timedelta) -> None:
        """Let the message come back after this long; zero gives it back at once."""
        self._later[queue].append((received, span))
        self._wake.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Deliveries"]:
        """Work until the end of the context, and say the last things before it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run(), name="deliveries")
            try:
                yield self
            finally:
                self._closed = True
                self._wake.set()

    async def _run(self) -> None:
        while self._done or self._later or not self._closed:
            await self._wake.wait()
            if not self._closed:
                await asyncio.sleep(LINGER)
            self._wake.clear()
            done, self._done = self._done, defaultdict(list)
            later, self._later = self._later, defaultdict(list)
            for queue, messages in done.items():
                await self._delete(queue, messages)
            for queue, changes in later.items():
                await self._change(queue, changes)

    async def _delete(self, queue: Queue, messages: Sequence[Received]) -> None:
        try:
            failures = await queue.delete([message.receipt for message in messages])
        except FleetError as error:
            log.warning("delete.failed", queue=queue.name, messages=len(messages), code=error.code)
        else:
            self._tell("delete.refused", queue, [one.code for one in failures if one])

    async def _change(self, queue: Queue, changes: Sequence[tuple[Received, timedelta]]) -> None:
        try:
            failures = await queue.change_visibility(
                [(message.receipt, span) for message, span in changes]
            )
        except FleetError as error:
            log.warning("defer.failed", queue=queue.name, messages=len(changes), code=error.code)
        else:
            self._tell("defer.refused", queue, [one.code for one in failures if one])

    @staticmethod
    def _tell(event: str, queue: Queue, codes: Sequence[str]) -> None:
        if codes:
            log.warning(event, queue=queue.name, messages=len(codes), codes=sorted(set(codes)))
