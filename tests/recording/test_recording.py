"""Recordings: what a terminal showed is what is drawn, and what is drawn can still be typed."""

import os
import re
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import pytest

from imagefleet.cli.main import app
from tests.project.test_surface import VERBS
from tests.recording.__main__ import COLUMNS, PAGES, ROOT, is_head
from tests.recording.drawing import CUT, LONGEST_WAIT, paced, svg, typed
from tests.recording.terminal import PLAIN, Ended, Line, Screen, run_in_terminal

SVG: Final = "{http://www.w3.org/2000/svg}"
RECORDED: Final = ("healed", "newcomer")
MOST_UNTIL_THE_TABLE: Final = 15


def shown(*written: str, columns: int = COLUMNS) -> Screen:
    """A screen on which each of these was written, a second after the other."""
    screen = Screen(columns)
    for second, text in enumerate(written):
        screen.write(text, float(second))
    return screen


def drawn(name: str) -> list[str]:
    """The lines of a recording that the pages show, as they are read."""
    picture = ET.parse(PAGES / f"{name}.svg")  # noqa: S314 - a file of ours
    return ["".join(text.itertext()) for text in picture.iterfind(f"{SVG}g/{SVG}text")]


def test_what_was_drawn_over_is_not_there_and_a_line_is_as_old_as_its_last_word() -> None:
    screen = shown("one\r\n", "waiting ", "50 %", "\r\x1b[2Kdone", "\r\n\x1b[1A\x1b[2Kover")

    assert ["one", "over"] == [line.text for line in screen.lines[:2]]
    assert [0.0, 4.0] == [line.at for line in screen.lines[:2]]


def test_colours_come_and_go_even_where_a_sequence_comes_in_two_pieces() -> None:
    screen = shown("\x1b[1;32mgreen\x1b[0m plain \x1b[3", "1mred\x1b[39m\x1b[2m dim")

    assert [
        (0, "green", ("bold", "green")), (5, " plain ", PLAIN), (12, "red", ("red",)),
        (15, " dim", ("dim",)),
    ] == screen.lines[0].runs()  # fmt: skip


def test_a_line_that_is_too_long_goes_on_in_the_next() -> None:
    assert ["abcd", "ef"] == [line.text for line in shown("abcdef", columns=4).lines]


async def recorded(folder: Path, script: str) -> Ended:
    here = dict(os.environ)  # noqa: TID251 - as from a terminal
    return await run_in_terminal(
        ["bash", "-c", script], columns=40, folder=folder, environment=here, within=20
    )


async def test_a_command_has_a_terminal_of_so_many_columns_and_its_exit_code(
    tmp_path: Path,
) -> None:
    ended = await recorded(tmp_path, "stty size; test -t 1 && echo yes; exit 3")

    assert "40" in ended.text
    assert "yes" in ended.text
    assert 3 == ended.code


async def test_a_command_that_does_not_end_is_ended(tmp_path: Path) -> None:
    here = dict(os.environ)  # noqa: TID251 - as from a terminal
    with pytest.raises(TimeoutError):
        await run_in_terminal(
            ["sleep", "60"], columns=40, folder=tmp_path, environment=here, within=0.2
        )


def test_a_wait_is_cut_and_said_to_be_cut() -> None:
    first, last = Line([("a", PLAIN)], at=1.0), Line([("b", PLAIN)], at=34.0)

    lines = [*paced([first, last])]

    assert ["a", "… 33 s", "b"] == [each.line.text for each in lines]
    assert lines[2].at - lines[0].at == pytest.approx(LONGEST_WAIT)


def test_a_drawing_says_what_the_terminal_said_and_needs_nothing_else() -> None:
    lines = [typed("imagefleet jobs list"), Line([(c, PLAIN) for c in "<b> & 'x'"], at=0.2)]

    picture = svg([*paced(lines)], columns=40, title="t", about="for those who cannot see it")

    root = ET.fromstring(picture)  # noqa: S314 - a text of ours
    texts = ["".join(text.itertext()) for text in root.iterfind(f"{SVG}g/{SVG}text")]
    assert ["$ imagefleet jobs list", "<b> & 'x'"] == texts
    assert "for those who cannot see it" == root.findtext(f"{SVG}desc")
    assert re.findall(r"<script|href|url\(|@import|@font-face", picture) == []


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_types_only_what_there_is_and_fits_its_terminal(name: str) -> None:
    lines = drawn(name)
    typed_lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    verbs = [
        " ".join(re.findall(r"^imagefleet ((?:[a-z]+ ?){1,2})", line)[0].split())
        for line in typed_lines
        if line.startswith("imagefleet")
    ]

    assert app.info.name == "imagefleet"
    known = [verb for verb in verbs if {verb, verb.partition(" ")[0]} & VERBS]
    assert typed_lines
    assert verbs == known
    assert max(map(len, lines)) <= COLUMNS
    text = (PAGES / f"{name}.svg").read_text(encoding="utf-8")
    assert re.findall(r"<script|href|url\(|@import|@font-face", text) == []


def test_the_recording_shows_a_job_that_was_processing_rescued_and_completed() -> None:
    text = "\n".join(drawn("healed"))
    story = ("submit --wait photo.jpg", "ready", "submit scan.png", "processing", "kill -9",
             "… ", "completed", "rescued", "worker_lost", "imagefleet status", "kept")  # fmt: skip

    assert re.search(".*".join(map(re.escape, story)), text, re.DOTALL), text


def test_the_readme_says_of_the_newcomers_terminal_what_that_showed() -> None:
    title = ET.parse(PAGES / "newcomer.svg").findtext(f"{SVG}title") or ""  # noqa: S314 - of ours

    assert title.partition(": ")[2] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_newcomer_reads_few_lines_until_the_table_of_results() -> None:
    lines = [line for line in drawn("newcomer") if not line.startswith(CUT)]
    until = next(place for place, line in enumerate(lines) if is_head(line))

    assert until - 1 <= MOST_UNTIL_THE_TABLE
