"""Keeps child processes alive, lets them speak, and ends them in order.

A child that dies is started again, at first soon and then ever later, and said so in one line. The
end goes stage by stage: a child is asked to end with SIGTERM, is killed with all it started when
its grace is over, and only then the next stage is asked. Cancelled instead, all are killed at once.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from imagefleet.runtime import Parts

FIRST_PAUSE: Final = 0.5  # seconds
LONGEST_PAUSE: Final = 15.0
STEADY_AFTER: Final = 20.0  # seconds of life after which a death counts as a first one again
LAST_WORDS_WITHIN: Final = 0.5  # seconds; what a child started may hold its output open for ever
LONGEST_LINE: Final = 65_536  # bytes
REFUSED_TO_START: Final = 2  # the exit code of a process whose settings are not usable

Hear: TypeAlias = Callable[[str, str], None]
"""A line that a process said: its name and the line."""
Say: TypeAlias = Callable[[str], None]
Changed: TypeAlias = Callable[[], None]
"""Another process runs now."""


INSIST_AFTER: Final = 5.0  # seconds; what they talk to is on its way out as well

# Not PR_SET_PDEATHSIG: that one fires when the *thread* that started the child ends, and is lost
# when the child changes its user.
WATCHDOG: Final = """
import os, select, signal, sys, time
held = {}
for line in sys.stdin:
    for gone in select.select(list(held), [], [], 0)[0]:
        os.close(gone)
        del held[gone]
    try:
        held[os.pidfd_open(int(line))] = int(line)
    except ProcessLookupError:
        pass
for pidfd in held:
    try:
        signal.pidfd_send_signal(pidfd, int(sys.argv[2]))
    except ProcessLookupError:
        pass
deadline = time.monotonic() + float(sys.argv[1])
while held and time.monotonic() < deadline:
    for gone in select.select(list(held), [], [], deadline - time.monotonic())[0]:
        del held[gone]
for pidfd, pid in held.items():
    if not select.select([pidfd], [], [], 0)[0]:
        os.killpg(pid, int(sys.argv[3]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, and how long it may take to end."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    grace: timedelta


class Watchdog:
    """Ends what this process started, should it be killed outright.

    A process of its own that reads process ids from a pipe. When the pipe closes, however that
    happened, it asks those still alive to end, and a little later it insists. A pidfd cannot hit
    another process that was given the same number.
    """

    def __init__(
        self, first: int = signal.SIGTERM, then: int = signal.SIGKILL, after: float = INSIST_AFTER
    ) -> None:
        # -I -S: starts in 10 ms and imports nothing that is not Python's own.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WATCHDOG, f"{after}", f"{first:d}", f"{then:d}"],
            stdin=subprocess.PIPE,
            cwd="/",
            env={},
            start_new_session=True,
            text=True,
        )

    def watch(self, pid: int) -> None:
        """End this process, which leads a group of its own, should we be gone."""
        assert self._process.stdin is not None  # noqa: S101 - see above
        self._process.stdin.write(f"{pid}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Call it off, once every process has ended."""
        self._process.communicate()


class Keeper:
    """One program, running again and again until it is asked to end."""

    def __init__(
        self, program: Program, *, hear: Hear, say: Say, changed: Changed, watchdog: Watchdog
    ) -> None:
        self.program = program
        self.pid: int | None = None
        self.restarts = 0
        self.refused = False
        """It said that it will never start like this."""
        self._hear = hear
        self._say = say
        self._changed = changed
        self._watchdog = watchdog
        self._ending = asyncio.Event()
        self._ended = asyncio.Event()

    async def keep(self) -> None:
        """Run the program until `end`."""
        clock = asyncio.get_running_loop().time
        failures = 0
        try:
            while not self._ending.is_set():
                begun = clock()
                code = await self._run_once()
                if self._ending.is_set():
                    return
                lasted = clock() - begun
                failures = 1 if lasted > STEADY_AFTER else failures + 1
                pause = pause_before_restart(failures)
                self.refused = code == REFUSED_TO_START
                self.restarts += 1
                self._say(
                    f"{self.program.name} {ended_how(code)} after {lasted:.1f} s, "
                    f"starts again in {pause:g} s (restart {self.restarts})"
                )
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._ending.wait()
        finally:
            self._ended.set()

    async def end(self) -> None:
        """Ask it to end; when its grace is over, kill it with all it started."""
        self._ending.set()
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.program.grace.total_seconds()):
                await self._ended.wait()
        except TimeoutError:
            grace = self.program.grace.total_seconds()
            self._say(f"{self.program.name} did not end within {grace:g} s and is killed")
            self._kill_group()
            await self._ended.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def replace(self, program: Program) -> None:
        """Run this instead from now on; what runs is asked to end, and is started again."""
        self.program = program
        self.signal(signal.SIGTERM)

    async def _run_once(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *self.program.command,
            env=self.program.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is ours: there is an order to the end
        )
        self.pid = process.pid
        try:
            self._watchdog.watch(process.pid)
            self._changed()
            assert process.stdout is not None  # noqa: S101 - see above
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen(process.stdout))
                code = await process.wait()
                await asyncio.wait([listening], timeout=LAST_WORDS_WITHIN)
                listening.cancel()
        finally:
            # Whatever it started, and on cancellation it itself.
            self._kill_group()
            await process.wait()
            self.pid = None
        return code

    async def _listen(self, output: asyncio.StreamReader) -> None:
        async for line in lines_of(output):
            self._hear(self.program.name, line)

    def _kill_group(self) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


class Supervisor:
    """Keepers in stages, in the order in which they end."""

    def __init__(
        self, stages: Sequence[Sequence[Program]], *, hear: Hear, say: Say, changed: Changed
    ) -> None:
        self._watchdog = Watchdog()
        self._stages = [
            [
                Keeper(program, hear=hear, say=say, changed=changed, watchdog=self._watchdog)
                for program in stage
            ]
            for stage in stages
        ]

    @property
    def keepers(self) -> list[Keeper]:
        """All of them."""
        return [keeper for stage in self._stages for keeper in stage]

    @property
    def restarts(self) -> int:
        """How often any of them was started again."""
        return sum(keeper.restarts for keeper in self.keepers)

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now."""
        return {
            keeper.program.name: keeper.pid for keeper in self.keepers if keeper.pid is not None
        }

    def start(self, parts: Parts) -> None:
        """Start all at once; they are kept until `stop`."""
        for keeper in self.keepers:
            parts.start(f"keeper of {keeper.program.name}", keeper.keep())

    def bring_to(self, stages: Sequence[Sequence[Program]]) -> None:
        """Run these instead, by name; those that stay the same are left alone."""
        wanted = {program.name: program for stage in stages for program in stage}
        for keeper in self.keepers:
            if keeper.program != wanted[keeper.program.name]:
                keeper.replace(wanted[keeper.program.name])

    async def stop(self) -> None:
        """End them, stage by stage."""
        for stage in self._stages:
            async with asyncio.TaskGroup() as group:
                for keeper in stage:
                    group.create_task(keeper.end())

    def close(self) -> None:
        """Forget them, once they have ended."""
        self._watchdog.close()


def pause_before_restart(failures: int) -> float:
    """Seconds to wait after so many deaths in a row."""
    return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 16)))


def ended_how(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


async def lines_of(output: asyncio.StreamReader) -> AsyncIterator[str]:
    """Every line; one too long for a terminal comes in pieces."""
    rest = b""
    while chunk := await output.read(LONGEST_LINE):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
        if len(rest) > LONGEST_LINE:
            yield rest.decode(errors="replace")
            rest = b""
    if rest:
        yield rest.decode(errors="replace")
