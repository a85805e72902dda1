"""What operators turn, followed by every process: a look a second, and a snapshot that all ask.

A look reads one number as long as nothing changed. One that fails leaves what was read last in
force. What is read before the first use is in force from the beginning.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import structlog

from imagefleet.errors import FleetError
from imagefleet.runtime import tell_missed
from imagefleet.settings.in_force import Overlay, in_force
from imagefleet.settings.live import Process, Value
from imagefleet.store.database import Pool, unavailable
from imagefleet.store.fleet.live_settings import (
    MOST_LIMITS,
    MOST_SETTINGS,
    LiveRows,
    read_live,
    tell_defaults,
)

LOOK_EVERY: Final = 1.0  # seconds
LOOK_WITHIN: Final = 3.0  # of a pool that is busy, or a database that is slow
MOST_TOLD: Final = 50  # changes of one look, each a line

Watcher = Callable[[Overlay], object]

log = structlog.get_logger()


class Live:
    """What is in force in this process; without `open`, whatever the environment says."""

    def __init__(self) -> None:
        self.now = Overlay()
        self._version: int | None = None
        self._ignored: Mapping[str, str] = {}
        self._watchers: list[Watcher] = []
        self._looked_at: float | None = None
        self._failing: str | None = None
        """By what, so that each is told once."""

    @property
    def age(self) -> timedelta:
        """How long ago Postgres was last heard of it."""
        if self._looked_at is None:
            return timedelta(0)
        return timedelta(seconds=asyncio.get_running_loop().time() - self._looked_at)

    def watch(self, watcher: Watcher) -> None:
        """Tell it what is in force, now and whenever that changes."""
        self._watchers.append(watcher)
        watcher(self.now)

    @asynccontextmanager
    async def open(
        self, pool: Pool, process: Process, defaults: Mapping[str, Value]
    ) -> AsyncIterator["Live"]:
        """Follow Postgres until the end of the context; what stands there holds from now on."""
        try:
            async with pool.connection() as connection:
                await tell_defaults(connection, process, defaults)
        except FleetError as error:  # only shown to operators: no reason not to work
            log.warning("settings.defaults_untold", code=error.code, detail=error.detail)
        await self.look(pool)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow(pool), name="live-settings")
            try:
                yield self
            finally:
                following.cancel()

    async def look(self, pool: Pool) -> None:
        """Read it once; Unavailable where that takes too long."""
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                async with pool.use("read_live", "live_settings") as connection:
                    rows = await read_live(connection, self._version)
        except TimeoutError as error:
            raise unavailable("database_timeout") from error
        self._looked_at = asyncio.get_running_loop().time()
        if rows is not None:
            self._take(rows)

    async def _follow(self, pool: Pool) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self.look(pool)
            except FleetError as error:
                if self._failing != error.code:
                    age = round(self.age.total_seconds(), 1)
                    tell_missed(error, "settings.unread", age_seconds=age)
                self._failing = error.code
            except Exception as error:
                if self._failing != type(error).__name__:
                    log.exception("settings.unread")
                self._failing = type(error).__name__
            else:
                self._failing = None

    def _take(self, rows: LiveRows) -> None:
        before, known_before = self.now, self._ignored
        first = self._version is None
        self.now, self._ignored = in_force(rows.settings, rows.limits)
        for name, why in sorted(self._ignored.items())[:MOST_TOLD]:
            if known_before.get(name) != why:
                log.warning("setting.ignored", name=name, why=why)
        if len(rows.settings) >= MOST_SETTINGS or len(rows.limits) >= MOST_LIMITS:
            log.warning("settings.too_many", settings=len(rows.settings), limits=len(rows.limits))
        _tell("setting.changed", before.turned, self.now.turned, first=first)
        limits = [_by_name(overlay.tenant_limits) for overlay in (before, self.now)]
        _tell("limit.changed", *limits, first=first)
        for watcher in self._watchers:
            watcher(self.now)
        self._version = rows.version  # not before: where one raised, the next look tries again


def _by_name(limits: Mapping[tuple[str, str], int]) -> dict[str, int]:
    return {f"{tenant} {name}": value for (tenant, name), value in limits.items()}


def _tell(
    event: str, before: Mapping[str, Value], after: Mapping[str, Value], *, first: bool
) -> None:
    """A line a change; what is turned when a process starts is a change of its environment too."""
    changed = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    for name in changed[:MOST_TOLD]:
        log.info(event, name=name, before=before.get(name), after=after.get(name), at_start=first)
    if len(changed) > MOST_TOLD:
        log.info("settings.changed_too", changes=len(changed) - MOST_TOLD)
