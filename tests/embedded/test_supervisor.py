"""Child processes, for real: restarted, heard, and ended in order."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.embedded.supervisor import (
    LONGEST_LINE,
    LONGEST_PAUSE,
    Program,
    Supervisor,
    ended_how,
    lines_of,
    pause_before_restart,
)
from imagefleet.runtime import Drain, supervise
from tests.support.children import alive
from tests.support.eventually import eventually

PATIENCE = 10  # seconds

WAITS = """
    import os, signal, sys
    def end(number, frame):
        os.write(1, b"ended by " + signal.Signals(number).name.encode())
        sys.exit()
    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    while True:
        signal.pause()
"""
IGNORES_SIGTERM = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print("ready", child, flush=True)
    time.sleep(60)
"""


def program(name: str, source: str, *, grace: float = PATIENCE, **environment: str) -> Program:
    return Program(
        name=name,
        command=[sys.executable, "-I", "-S", "-c", textwrap.dedent(source)],
        environment=environment,
        grace=timedelta(seconds=grace),
    )


@dataclass
class Terminal:
    heard: list[tuple[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def hear(self, name: str, line: str) -> None:
        self.heard.append((name, line))


@dataclass
class Running:
    supervisor: Supervisor
    terminal: Terminal

    async def heard(self, name: str, beginning: str, times: int = 1) -> None:
        await eventually(lambda: self.count(name, beginning) >= times, within=PATIENCE)

    def count(self, name: str, beginning: str) -> int:
        heard = self.terminal.heard
        return sum(1 for who, line in heard if who == name and line.startswith(beginning))


@asynccontextmanager
async def running(stages: Sequence[Sequence[Program]]) -> AsyncIterator[Running]:
    terminal = Terminal()
    supervisor = Supervisor(
        stages, hear=terminal.hear, say=terminal.said.append, changed=lambda: None
    )
    try:
        async with supervise(Drain()) as parts:
            supervisor.start(parts)
            try:
                yield Running(supervisor, terminal)
            finally:
                await supervisor.stop()
    finally:
        supervisor.close()


async def test_what_a_process_says_is_heard_with_its_name() -> None:
    async with running([[program("a", WAITS), program("b", WAITS)]]) as kept:
        await kept.heard("a", "ready")
        await kept.heard("b", "ready")

    assert ("a", "ended by SIGTERM") in kept.terminal.heard


async def test_last_words_on_the_standard_error_are_heard() -> None:
    async with running([[program("a", "raise SystemExit('the reason')")]]) as kept:
        await kept.heard("a", "the reason")


async def test_a_process_that_dies_is_started_again_and_said_so() -> None:
    async with running([[program("a", WAITS)]]) as kept:
        await kept.heard("a", "ready")
        first = kept.supervisor.pids["a"]
        os.kill(first, signal.SIGKILL)
        await kept.heard("a", "ready", times=2)
        second = kept.supervisor.pids["a"]

    assert second != first
    assert kept.supervisor.restarts == 1
    assert len(kept.terminal.said) == 1
    assert kept.terminal.said[0].startswith("a was ended by SIGKILL after ")
    assert kept.terminal.said[0].endswith("starts again in 0.5 s (restart 1)")


async def test_restarts_come_ever_later() -> None:
    async with running([[program("a", "raise SystemExit(1)")]]) as kept:
        await eventually(lambda: len(kept.terminal.said) == 3, within=PATIENCE)

    pauses = [line.split(" again in ")[1].split(" (")[0] for line in kept.terminal.said]
    assert pauses == ["0.5 s", "1 s", "2 s"]


@given(st.integers(min_value=1, max_value=10_000))
def test_no_pause_is_longer_than_the_longest(failures: int) -> None:
    assert 0 < pause_before_restart(failures) <= LONGEST_PAUSE


async def test_settings_that_are_not_usable_are_noticed() -> None:
    async with running([[program("a", "raise SystemExit(2)")]]) as kept:
        await eventually(lambda: kept.supervisor.keepers[0].refused, within=PATIENCE)


async def test_the_end_is_asked_for_in_order() -> None:
    stages = [[program("first", WAITS)], [program("second", WAITS)], [program("third", WAITS)]]

    async with running(stages) as kept:
        for name in ("first", "second", "third"):
            await kept.heard(name, "ready")

    ends = [name for name, line in kept.terminal.heard if line.startswith("ended")]
    assert ends == ["first", "second", "third"]
    assert kept.supervisor.restarts == 0


async def test_a_process_that_ignores_sigterm_is_killed_after_its_grace_with_its_children() -> None:
    async with running([[program("deaf", IGNORES_SIGTERM, grace=0.2)]]) as kept:
        await kept.heard("deaf", "ready")
        pid = kept.supervisor.pids["deaf"]
        child = int(kept.terminal.heard[0][1].split()[1])

    assert kept.terminal.said == ["deaf did not end within 0.2 s and is killed"]
    await eventually(lambda: not alive(pid) and not alive(child), within=PATIENCE)


async def test_a_process_that_waits_for_its_restart_is_not_started_by_the_end() -> None:
    async with running([[program("a", "raise SystemExit(1)")]]) as kept:
        await eventually(lambda: len(kept.terminal.said) == 2, within=PATIENCE)

    assert kept.supervisor.pids == {}
    assert len(kept.terminal.said) == 2


async def test_cancelled_all_are_killed_at_once() -> None:
    seen: dict[str, int] = {}

    async def run() -> None:
        async with running([[program("deaf", IGNORES_SIGTERM, grace=600)]]) as kept:
            await kept.heard("deaf", "ready")
            seen.update(kept.supervisor.pids)
            await Drain().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        await eventually(lambda: seen, within=PATIENCE)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # the first one asks for the orderly end, as a signal does

    await eventually(lambda: not alive(seen["deaf"]), within=PATIENCE)


async def test_another_program_takes_the_place_of_the_old_one() -> None:
    says = "import os, time; print(os.environ['WORD'], flush=True); time.sleep(60)"
    async with running([[program("a", says, WORD="old"), program("b", WAITS)]]) as kept:
        await kept.heard("a", "old")
        await kept.heard("b", "ready")
        untouched = kept.supervisor.pids["b"]
        kept.supervisor.bring_to([[program("a", says, WORD="new"), program("b", WAITS)]])
        await kept.heard("a", "new")

        assert untouched == kept.supervisor.pids["b"]


async def test_a_process_has_the_environment_it_was_given_and_no_other() -> None:
    says = "import os; print(sorted(os.environ), flush=True); import time; time.sleep(60)"
    async with running([[program("a", says, ONLY="this", LC_CTYPE="C.UTF-8")]]) as kept:
        await kept.heard("a", "['LC_CTYPE', 'ONLY']")


SUPERVISES = """
    import asyncio, sys
    from datetime import timedelta
    from imagefleet.embedded.supervisor import Program, Supervisor
    from imagefleet.runtime import Drain, supervise
    async def main():
        program = Program(name="a", command=[sys.executable, "-c", sys.argv[1]], environment={},
                          grace=timedelta(seconds=5))
        supervisor = Supervisor([[program]], hear=lambda name, line: print(line, flush=True),
                                say=print, changed=lambda: None)
        async with supervise(Drain()) as parts:
            supervisor.start(parts)
    asyncio.run(main())
"""


async def test_processes_end_when_their_supervisor_is_killed() -> None:
    source = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(SUPERVISES),
        source,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert supervisor.stdout is not None
        pid = int(await supervisor.stdout.readline())
    finally:
        supervisor.kill()
        await supervisor.communicate()

    await eventually(lambda: not alive(pid), within=PATIENCE)


async def test_a_line_without_an_end_comes_in_pieces() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"one\r\ntwo\n" + b"x" * (2 * LONGEST_LINE) + b"\nthree")
    reader.feed_eof()

    lines = [line async for line in lines_of(reader)]

    assert lines[:2] == ["one", "two"]
    assert "".join(lines[2:-1]) == "x" * (2 * LONGEST_LINE)
    assert lines[-1] == "three"


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended with exit code 0"), (-9, "was ended by SIGKILL"), (-77, "was ended by signal 77")],
)
def test_an_end_has_words(code: int, words: str) -> None:
    assert words == ended_how(code)
