"""What every verb shows on terminals of 80 and 130 columns, and that nothing in it is cut.

The files `terminal-80.txt` and `terminal-130.txt` beside the other golden ones hold it, with ids
numbered, times and durations alike; `make golden` writes them anew.
"""

import asyncio
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import typer

from imagefleet.api.http.requests import Tools
from imagefleet.api.operators.queues import Looks
from imagefleet.cli.layout import columns_of
from imagefleet.cli.main import app
from imagefleet.embedded.bootstrap import Endpoints, InPlace, apply
from imagefleet.store.database import Connection
from tests.cli.conftest import Cli, Ended
from tests.cli.world import EIGHT_FILES, SAY_NOTHING_OF_A_FLEET, VERBS, a_world
from tests.support.api import PUBLIC, Running, app_of
from tests.support.aws import a_name
from tests.support.database import Database
from tests.support.emulators import CREDENTIALS, REGION, Emulator
from tests.support.golden import Golden

ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FINGERPRINT: Final = re.compile(r"([0-9a-f]{32}){1,2}(?![0-9a-f])")
ADDRESS: Final = re.compile(rf"{PUBLIC}/i/{ID.pattern}/[0-9]+\.[0-9]+/[a-z]+\.(jpg|webp)")
# What each of them begins with, where it begins; the rest has to follow.
BEGUN: Final = (
    (re.compile(r"(?<![0-9a-f-])[0-9a-f]{8}-"), ID),
    (re.compile(r"(?<![\w-])(?=[0-9]*[a-f])[0-9a-f]{10,}"), FINGERPRINT),
    (re.compile(PUBLIC), ADDRESS),
)


ALIKE: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d"), r"2026-01-02\g<1>03:04:05"),
    (re.compile(r"(?<=05)\.\d+"), ".678901"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b(?![ T]03)"), "2026-01-02"),
    (re.compile(r"\b\d\d-\d\d \d\d:\d\d\b(?!:)"), "01-02 03:04"),
    (re.compile(r"^\d\d:\d\d:\d\d\b", re.MULTILINE), "03:04:05"),
    (re.compile(r"(?<=due for )\d+ min\b"), "0 s"),
    (re.compile(r"^at risk(?=  waiting)", re.MULTILINE), "kept   "),  # a machine may be slow
    (re.compile(r"\b\d+(?=(\.\d+)? s\b)"), "0"),
    (re.compile(r"(?<=\b0\.)\d+(?= s\b)"), lambda found: "0" * len(found[0])),
    (re.compile(r"\bif_[A-Za-z0-9_-]{20,}"), "if_secret"),
    (re.compile(r"--cursor \w+"), "--cursor further"),
    # Each migration is a line, and a new one no other answer.
    (re.compile(r"^migration +state\n(\d{4}_[\w.]+ +applied\n)*", re.MULTILINE), "applied\n"),
    (re.compile(r"(?<=^current: at )\d{4}_[\w.]+", re.MULTILINE), "the newest"),
)


@pytest.fixture
def applied(emulator: Emulator) -> InPlace:
    """Queues of this test alone: how many messages they hold is among what is shown."""
    endpoints = Endpoints(sqs=emulator.url, s3=emulator.url, cloudfront=None)
    prefix = a_name("terminals")
    return asyncio.run(apply(endpoints, region=REGION, credentials=CREDENTIALS, prefix=prefix))


async def rung(running: Running) -> None:
    """Wait until the API has announced every job that it took."""
    tools: Tools = app_of(running).state.tools
    if writing := tools.doorbell._rings._writing:
        await writing


@pytest.mark.timeout(240)  # seventy verbs one after the other, on a busy machine
@pytest.mark.parametrize("columns", [80, 100, 130, None])
async def test_every_verb_on_a_terminal_and_nothing_that_is_pasted_is_cut(
    columns: int | None,
    golden: Golden,
    cli: Cli,
    terminal: Callable[[int], None],
    running: Running,
    database: Database,
    worker: Connection,
    maintenance: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    values = await a_world(running, worker, maintenance, superuser, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    if columns:
        terminal(columns)
    told = []
    for who, verb in VERBS:
        monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets[who])
        url = database.url("owner" if verb.startswith("migrate") else "admin")
        monkeypatch.setenv("DATABASE_URL", url)
        await superuser.execute("UPDATE workers SET beat_at = now()")  # the machine may be slow
        await rung(running)
        app_of(running).state.looks = Looks()  # what was seen a moment ago is looked at again
        ended = await cli(*(word.format(**values) for word in verb.split()))

        is_whole(verb, ended, columns)
        told.append(f"$ imagefleet {verb}\n{ended.out}{marked(ended.err)}= {ended.code}\n")

    if columns in {80, 130}:
        golden.holds(f"terminal-{columns}.txt", alike("\n".join(told)).rstrip("\n").encode())


def is_whole(verb: str, ended: Ended, columns: int | None) -> None:
    """Nothing is cut, folded, or laid over the terminal's edge that has room on a line of it."""
    assert "…" not in ended.out + ended.err
    for line in (ended.out + ended.err).splitlines():
        for begins, whole in BEGUN:
            for begun in begins.finditer(line):
                found = whole.match(line, begun.start())
                assert found, f"{verb}: cut in {line}"
                if columns and len(found[0]) <= columns:
                    first, last = (
                        columns_of(line[: found.start()]),
                        columns_of(line[: found.end()]),
                    )
                    assert last <= columns or first >= columns, f"{verb}: over the edge in {line}"
        if columns and columns_of(line) > columns:
            rest = max(line.split(), key=len)
            assert columns_of(line) - len(rest) < 20, f"{verb}: wider than the terminal: {line}"


def marked(err: str) -> str:
    return "".join(f"! {line}\n" for line in err.splitlines())


def alike(text: str) -> str:
    """The same whenever it is run: ids in the order of their coming, times as one."""
    known: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        return known.setdefault(found[0], f"{len(known) + 1:08d}-0000-7000-8000-000000000000")

    text = ID.sub(numbered, text)
    for differs, same in ALIKE:
        text = differs.sub(same, text)
    return text


def test_every_verb_is_among_those() -> None:
    def names(command: object, path: str = "") -> Iterator[str]:
        inside: dict[str, object] = getattr(command, "commands", {})
        for name, inner in inside.items():
            yield from names(inner, f"{path} {name}".strip())
        if not inside or path in {"migrate", "settings"}:
            yield path

    tried = {f"{verb} " for _, verb in VERBS}
    assert SAY_NOTHING_OF_A_FLEET == {
        name
        for name in names(typer.main.get_command(app))
        if not any(verb.startswith(f"{name} ") for verb in tried)
    }


@pytest.mark.parametrize("columns", [60, 200])
def test_a_terminal_itself_is_asked_for_its_width(columns: int, tmp_path: Path) -> None:
    """Not by an environment: a pseudo-terminal of so many columns, where a table of hashes is."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    process = subprocess.Popen(
        [sys.executable, "-m", "imagefleet", "recipes", "diff", str(EIGHT_FILES)],
        stdin=theirs, stdout=theirs, stderr=theirs, env={"TERM": "xterm"}, cwd=tmp_path,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 65_536):
            seen += piece
    except OSError:  # the other side was closed
        pass
    os.close(ours)
    assert 0 == process.wait(30)
    rows = re.sub(r"\x1b\[[0-9;]*m", "", seen.decode()).split("\r\n")
    most = max(len(FINGERPRINT.findall(row)) for row in rows)
    assert most == (2 if columns == 200 else 1), "beside each other, or one below the other"
