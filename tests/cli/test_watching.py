"""`imagefleet queue stats --watch`: a page that is kept up to date, until Ctrl-C."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.cli.scripted import Script, ok, problem
from tests.support.api import Running
from tests.support.eventually import eventually

STATS = "GET /v1/operator/queues"
FLEET = {
    "lanes": [{"lane": "fast", "workers": 1, "busy": 0, "slots": 8, "processing": 0,
               "waiting": 4711, "announced": 0, "window": 100}],
    "depths": [], "tenants": [], "throughput": [], "failures": [], "stuck": [],
    "unacknowledged": 0,
}  # fmt: skip
CURSOR_IS_BACK = "\x1b[?25h"


@dataclass
class Watching:
    process: asyncio.subprocess.Process
    heard: bytearray = field(default_factory=bytearray)

    @property
    def out(self) -> str:
        return self.heard.decode(errors="replace")

    async def shows(self, text: str, times: int = 1) -> None:
        def shown() -> bool:
            assert self.process.returncode is None, self.out
            return self.out.count(text) >= times

        await eventually(shown, within=30)

    async def ends_by(self, sent: signal.Signals) -> int:
        self.process.send_signal(sent)
        return await asyncio.wait_for(self.process.wait(), 30)


@asynccontextmanager
async def watching(
    url: str, key: str, *words: str, columns: int | None = None
) -> AsyncIterator[Watching]:
    """The verb in a process of its own: in a terminal of so many columns, or in a pipe."""
    ours, theirs = os.pipe() if columns is None else pty.openpty()
    if columns is not None:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "IMAGEFLEET_URL": url, "IMAGEFLEET_KEY": key, "TERM": "xterm"}  # noqa: TID251
    environment.pop("COLUMNS", None)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "imagefleet", "queue", "stats", "--watch", "--every", "0.2", *words,
        env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    watching, loop = Watching(process), asyncio.get_running_loop()

    def hear() -> None:
        try:
            piece = os.read(ours, 2**16)
        except OSError:  # a terminal that nobody has any more
            piece = b""
        watching.heard.extend(piece)
        if not piece:
            loop.remove_reader(ours)

    loop.add_reader(ours, hear)
    try:
        yield watching
    finally:
        loop.remove_reader(ours)
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)


async def test_a_terminal_shows_one_page_that_ctrl_c_ends_in_order(running: Running) -> None:
    """Neither a traceback, nor a terminal without a cursor."""
    async with watching(running.url, running.secrets["operator"], columns=100) as page:
        await page.shows("dead letters wait for somebody", times=3)
        code = await page.ends_by(signal.SIGINT)

    assert code == 0, page.out
    assert "Traceback" not in page.out
    assert CURSOR_IS_BACK in page.out
    assert re.search(r"\x1b\[\d*A", page.out)  # it is written over


async def test_a_pipe_has_one_block_after_the_other(running: Running) -> None:
    async with watching(running.url, running.secrets["operator"]) as blocks:
        await blocks.shows("dead letters wait for somebody", times=3)
        code = await blocks.ends_by(signal.SIGINT)

    assert code == 0, blocks.out
    assert "\x1b" not in blocks.out
    assert len(re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", blocks.out, re.MULTILINE)) >= 3


async def test_for_scripts_each_look_is_a_line(running: Running) -> None:
    async with watching(running.url, running.secrets["operator"], "--json") as lines:
        await lines.shows('"lanes"', times=3)
        code = await lines.ends_by(signal.SIGINT)

    assert code == 0, lines.out
    assert all(line.startswith("{") for line in lines.out.splitlines())


@pytest.mark.parametrize("columns", [None, 80])
async def test_what_was_seen_last_stays_while_nobody_answers(
    script: Script, columns: int | None
) -> None:
    away = problem(503, "unavailable", "Postgres is away.", **{"Retry-After": "0"})
    script.on(STATS, ok(FLEET), *[away] * 5, ok(FLEET))

    async with watching(script.url, "if_x", columns=columns) as page:
        await page.shows("Postgres is away.")
        await page.shows("4711", times=2)
        code = await page.ends_by(signal.SIGINT)

    assert code == 0, page.out
    assert "not up to date" in page.out


async def test_who_never_answered_is_told_as_by_any_verb(script: Script) -> None:
    script.on(STATS, problem(403, "forbidden", "Not with this key."))

    async with watching(script.url, "if_x") as refused:
        code = await asyncio.wait_for(refused.process.wait(), 30)

    assert code == 3, refused.out
