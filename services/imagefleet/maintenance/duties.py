"""What every agent of this process is given: a ticker, an office, a period, a pace.

An agent that only one process of the fleet should be holds an office while it works; a step that
is taken once in a while belongs to whoever takes its period first. Two holders for a moment are
harmless by the design of what they do (`store/fleet/elections.py`). Upkeep works in bounded
batches, resting as long as it worked: no number says how much there may be to do in a day, a
backlog is worked off at half of what the database gives, and nothing to do costs one question. How
far behind a step is, is sampled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from uuid import UUID

import structlog

from imagefleet.errors import FleetError
from imagefleet.runtime import Drain, Step, every
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.elections import begin_period, finish_period, hold_election, resign
from imagefleet.telemetry.health import Pulse

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

STEP_WITHIN: Final = timedelta(seconds=30)
LEAVE_WITHIN: Final = 5.0  # seconds
LONGEST_SILENCE: Final = timedelta(minutes=3)  # a failing loop pauses for up to 1.2 minutes

Batch: TypeAlias = Callable[[], Awaitable[bool]]
"""Does a bounded part; True: there is more."""

Rest: TypeAlias = Callable[[timedelta], Awaitable[bool]]
"""Waits for this long, or until the process is asked to end; True: it is."""

Done = TypeVar("Done", bound="DataclassInstance")

log = structlog.get_logger()


class Duty:
    """A step that is taken again and again, and how it fared last."""

    def __init__(
        self,
        step: Step,
        interval: timedelta,
        *,
        leave: Step | None = None,
        within: timedelta = STEP_WITHIN,
    ) -> None:
        """`leave` is for the end: to hand an office on at once."""
        self.pulse = Pulse(LONGEST_SILENCE)
        self.failing: str | None = None
        self._step = step
        self._interval = interval
        self._leave = leave
        self._within = within

    async def look_after(self, name: str, drain: Drain) -> None:
        """Take it until the drain."""
        await every(self._interval, self, stop=drain, name=name, timeout=self._within)
        if self._leave is None:
            return
        try:
            async with asyncio.timeout(LEAVE_WITHIN):
                await self._leave()
        except (FleetError, TimeoutError):  # then it runs out by itself
            log.warning("office.not_left", office=name, exc_info=True)

    async def __call__(self) -> None:
        """Take it once; whatever it raises is logged by `every`, and slows it down."""
        self.pulse.felt()
        try:
            await self._step()
        except FleetError as error:
            self.failing = error.code
            raise
        self.failing = None


class Office:
    """What one process of the fleet is at a time; free ten seconds after it was renewed last."""

    def __init__(self, name: str, pool: Pool, holder: UUID) -> None:
        self.term: int | None = None
        """Of this holder, as it was renewed last; None: somebody else has the office."""
        self._name = name
        self._pool = pool
        self._holder = holder

    async def held(self, connection: Connection | None = None) -> bool:
        """Win it, or renew it; whether it is ours."""
        if connection is None:
            async with self._pool.connection() as own:
                return await self.held(own)
        self.term = await hold_election(connection, self._name, self._holder)
        return self.term is not None

    async def resign(self) -> None:
        """Leave it, if it is ours, so that nobody has to wait until it is free."""
        async with self._pool.use("resign") as connection:
            await resign(connection, self._name, self._holder)
        self.term = None


class Period:
    """A step that is taken once in so long, by whoever of the fleet comes first."""

    def __init__(self, name: str, interval: timedelta, pool: Pool, holder: UUID) -> None:
        self._name = name
        self._interval = interval
        self._pool = pool
        self._holder = holder

    async def once(
        self,
        step: Callable[[], Awaitable[Done]],
        *,
        report: Callable[[Done], dict[str, object]] = asdict,
    ) -> Done | None:
        """Take the step and write down what it did; None: another process has the period."""
        async with self._pool.use("begin_period") as connection:
            start = await begin_period(connection, self._name, self._interval, self._holder)
        if start is None:
            return None
        done = await step()
        async with self._pool.use("finish_period") as connection:
            await finish_period(connection, self._name, start, report(done))
        return done


async def keep_at(batch: Batch, *, within: timedelta, rest: Rest) -> bool:
    """Take batch after batch until there is no more, and say so; False: it ended before that."""
    clock = asyncio.get_running_loop().time
    ends_at = clock() + within.total_seconds()
    while True:
        began = clock()
        if not await batch():
            return True
        ended = clock()
        if ended >= ends_at or await rest(timedelta(seconds=ended - began)):
            return False
