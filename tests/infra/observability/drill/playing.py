"""One fault from its beginning to its end: alerts seen to fire, commands given, alerts seen gone.

What counts is what Prometheus says. An alert that was over before its command was given says
nothing of that command; and one that acts has changed something, which the audit tells, or the
cluster.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import httpx

from tests.infra.observability.drill.faults import Fault
from tests.infra.observability.drill.runbooks import Command, NoCommandError, command_of
from tests.infra.observability.drill.world import World

LOOKS_EVERY: Final = 0.25  # seconds
ACTS: Final = "SELECT count(*) FROM audit WHERE key_id IS NOT NULL"

Say: TypeAlias = Callable[[str], None]
Commands: TypeAlias = Callable[[str, Mapping[str, str]], Command]
"""The command for an alert: what its runbook says, unless somebody breaks it on purpose."""


@dataclass(slots=True)
class Row:
    """One alert of a fault, in seconds; None: that was not seen."""

    fault: str
    alert: str
    fired: float | None = None
    command: str = ""
    given_at: float | None = None
    resolved: float | None = None


@dataclass(slots=True)
class Played:
    """What became of a fault."""

    rows: list[Row]
    others: dict[str, str] = field(default_factory=dict)
    """Alerts that fired beside those expected, each with its severity."""
    wrong: list[str] = field(default_factory=list)


class Watch:
    """Looks at the alerts of a Prometheus, and remembers which it saw."""

    def __init__(self, world: World, expected: Collection[str]) -> None:
        self._world = world
        self._expected = expected
        self.others: dict[str, str] = {}

    async def firing(self) -> dict[str, str]:
        """Those that fire now, each with its severity."""
        now = await self._world.prometheus.firing()
        self.others |= {name: how for name, how in now.items() if name not in self._expected}
        return now

    async def sees(
        self, rows: Sequence[Row], *, fire: bool, within: float, tell: Callable[[Row], None]
    ) -> None:
        """Look until each of them fires, or no longer does; `tell` when it is so."""
        waiting, deadline = list(rows), time.monotonic() + within
        while waiting and time.monotonic() < deadline:
            now = await self.firing()
            for row in [row for row in waiting if (row.alert in now) == fire]:
                tell(row)
                waiting.remove(row)
            await asyncio.sleep(LOOKS_EVERY)

    async def calms(self, *, within: float) -> list[str]:
        """Those that still fire when it is over: the expected ones, and whatever wakes somebody."""
        deadline = time.monotonic() + within
        while True:
            now = await self.firing()
            left = {name for name in now if now[name] == "page" or name in self._expected}
            if not left or time.monotonic() > deadline:
                return sorted(left)
            await asyncio.sleep(LOOKS_EVERY)


class Player:
    """Plays faults one after another."""

    def __init__(
        self, world: World, say: Say, *, commands: Commands = command_of, patience: float
    ) -> None:
        """`patience` is how long an alert may take to fire, and to be gone."""
        self._world = world
        self._say = say
        self._commands = commands
        self._patience = patience

    async def play(self, fault: Fault) -> Played:
        """Bring it in, see it, follow its runbooks, see it gone."""
        played = Played([Row(fault.name, alert) for alert in fault.alerts])
        watch = Watch(self._world, fault.alerts)
        before = await watch.firing()
        played.wrong += [f"{alert} fired before" for alert in fault.alerts if alert in before]
        try:
            await self._course(fault, played, watch)
        except (AssertionError, httpx.HTTPError) as error:
            played.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            await self._clear(fault, played.wrong)
        left = await watch.calms(within=self._patience)
        played.wrong += [f"{alert} was left behind" for alert in left]
        played.others = watch.others
        played.wrong = [f"{fault.name}: {what}" for what in played.wrong]
        if watch.others:
            self._say(f"{fault.name}: beside them fired {', '.join(sorted(watch.others))}")
        return played

    async def _clear(self, fault: Fault, wrong: list[str]) -> None:
        try:
            await fault.cleared(self._world)
        except (AssertionError, httpx.HTTPError) as error:
            wrong.append(f"it could not be cleared away: {error}")

    async def _course(self, fault: Fault, played: Played, watch: Watch) -> None:
        await fault.prepared(self._world)
        self._say(f"{fault.name}: it is brought in")
        begun = time.monotonic()
        stands_for = await fault.brought(self._world)

        def fired(row: Row) -> None:
            row.fired = time.monotonic() - begun
            self._say(f"{fault.name}: {row.alert} fires after {row.fired:.1f} s")

        await watch.sees(played.rows, fire=True, within=self._patience, tell=fired)
        seen = [row for row in played.rows if row.fired is not None]
        played.wrong += [f"{row.alert} did not fire" for row in played.rows if row not in seen]
        await fault.mended(self._world)
        for row in seen:
            await self._follow(row, stands_for, played.wrong, watch)

        def resolved(row: Row) -> None:
            assert row.given_at is not None
            row.resolved = time.monotonic() - row.given_at
            self._say(f"{fault.name}: {row.alert} is gone after {row.resolved:.1f} s")

        followed = [row for row in seen if row.given_at is not None]
        await watch.sees(followed, fire=False, within=self._patience, tell=resolved)
        played.wrong += [f"{row.alert} still fires" for row in followed if row.resolved is None]

    async def _follow(
        self, row: Row, stands_for: Mapping[str, str], wrong: list[str], watch: Watch
    ) -> None:
        try:
            command = self._commands(row.alert, stands_for)
        except NoCommandError as error:
            wrong.append(str(error))
            return
        row.command = command.written
        if row.alert not in await watch.firing():
            wrong.append(f"{row.alert} was over before its command was given")
        before = await self._changes()
        row.given_at = time.monotonic()
        self._say(f"{row.fault}: {' '.join(command.words)}")
        answer = await self._world.gives(command.words)
        if answer.code != 0:
            wrong.append(f"`{command.written}` ended with {answer.code}: {answer.said}")
        elif before == await self._changes():
            wrong.append(f"`{command.written}` changed nothing")

    async def _changes(self) -> tuple[int, int]:
        """How many there were, by people and of the cluster."""
        return await self._world.asks(ACTS), self._world.cluster.obeyed
