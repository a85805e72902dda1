"""A command in a pseudo-terminal: what its screen shows in the end, and since when each line does.

As much of a terminal as Rich and the shell ask of one: text, colours, going back to the beginning
of a line or up some lines, erasing. What was drawn over, such as a bar, is not there in the end.
"""

import asyncio
import codecs
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

ROWS: Final = 50
TAB: Final = 8
TOKEN: Final = re.compile(
    r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[^\[]|[\r\n\t\x07\x08]|[^\x1b\r\n\t\x07\x08]+"
)

Style: TypeAlias = tuple[str, ...]
PLAIN: Final[Style] = ()
COLOURS: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
FACES: Final = {1: "bold", 2: "dim", 3: "italic", 4: "underlined"}


@dataclass(slots=True)
class Line:
    """What stands in one row, character by character, and when that was written last."""

    cells: list[tuple[str, Style]] = field(default_factory=list)
    at: float = 0.0

    @property
    def text(self) -> str:
        return "".join(character for character, _ in self.cells).rstrip()

    def runs(self) -> list[tuple[int, str, Style]]:
        """Column, text and style of each stretch of one style; without what is blank at the end."""
        runs: list[tuple[int, str, Style]] = []
        for column, (character, style) in enumerate(self.cells[: len(self.text)]):
            if runs and runs[-1][2] == style:
                begins, text, _ = runs[-1]
                runs[-1] = (begins, text + character, style)
            else:
                runs.append((column, character, style))
        return runs


class Screen:
    """Everything that was written, as rows of so many columns; nothing scrolls away."""

    def __init__(self, columns: int) -> None:
        self.lines = [Line()]
        self._columns = columns
        self._row = self._column = 0
        self._style: Style = PLAIN
        self._rest = ""

    def write(self, text: str, at: float) -> None:
        """What a program sent, that long after the beginning; a sequence may go on in the next."""
        text = self._rest + text
        begun = re.search(r"\x1b(\[[?0-9;]*)?$", text)
        self._rest, text = (text[begun.start() :], text[: begun.start()]) if begun else ("", text)
        for token in TOKEN.finditer(text):
            if token[2]:
                self._obey(token[1], token[2], at)
            elif not token[0].startswith("\x1b"):
                self._put(token[0], at)

    def _put(self, text: str, at: float) -> None:
        match text:
            case "\r":
                self._column = 0
            case "\n":
                self._go(self._row + 1, at)
            case "\t":
                self._column += TAB - self._column % TAB
            case "\x08":
                self._column = max(0, self._column - 1)
            case "\x07":
                pass
            case _:
                for character in text:
                    self._print(character, at)

    def _print(self, character: str, at: float) -> None:
        if self._column >= self._columns:
            self._go(self._row + 1, at)
            self._column = 0
        line = self.lines[self._row]
        line.cells += [(" ", PLAIN)] * (self._column + 1 - len(line.cells))
        if line.cells[self._column] != (character, self._style):
            line.at = at
        line.cells[self._column] = (character, self._style)
        self._column += 1

    def _go(self, row: int, at: float) -> None:
        self._row = max(0, row)
        while len(self.lines) <= self._row:
            self.lines.append(Line(at=at))

    def _obey(self, numbers: str, what: str, at: float) -> None:
        given = [int(number) for number in numbers.strip("?").split(";") if number] or [0]
        match what:
            case "m":
                self._wear(given)
            case "A":
                self._go(self._row - max(1, given[0]), at)
            case "B":
                self._go(self._row + max(1, given[0]), at)
            case "G":
                self._column = max(0, given[0] - 1)
            case "K":
                line = self.lines[self._row]
                kept = {0: line.cells[: self._column], 2: []}.get(given[0], line.cells)
                line.cells = kept
            case "J":
                del self.lines[self._row + 1 :]
                del self.lines[self._row].cells[self._column :]
            case _:
                pass  # what hides and shows the cursor, and the like

    def _wear(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number == 0:
                self._style = PLAIN
            elif number in FACES:
                self._style = (*self._style, FACES[number])
            elif number in {22, 23, 24}:
                gone = {22: {"bold", "dim"}, 23: {"italic"}, 24: {"underlined"}}[number]
                self._style = tuple(word for word in self._style if word not in gone)
            elif number == 39 or 30 <= number <= 37 or 90 <= number <= 97:
                faces = tuple(word for word in self._style if word not in COLOURS)
                self._style = faces if number == 39 else (*faces, COLOURS[number % 10])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that is over."""

    code: int
    seconds: float
    lines: list[Line]
    """Those that were there in the end; `at` is seconds since it began."""

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)


async def run_in_terminal(
    command: Sequence[str],
    *,
    columns: int,
    folder: Path,
    environment: Mapping[str, str],
    within: float,
) -> Ended:
    """Run it to its end on a terminal of so many columns; TimeoutError if that takes longer."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    loop = asyncio.get_running_loop()
    screen, begun, heard_all = Screen(columns), loop.time(), asyncio.Event()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def hear() -> None:
        heard = b""
        with suppress(OSError):  # the other end is closed
            heard = os.read(ours, 65_536)
        if heard:
            screen.write(decoder.decode(heard), loop.time() - begun)
        else:
            loop.remove_reader(ours)
            heard_all.set()

    try:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its,
            start_new_session=True,
        )  # fmt: skip
        os.close(its)
        loop.add_reader(ours, hear)
        try:
            async with asyncio.timeout(within):
                code = await process.wait()
                seconds = loop.time() - begun
                await heard_all.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    finally:
        loop.remove_reader(ours)
        os.close(ours)
    lines = screen.lines
    while len(lines) > 1 and not lines[-1].text:
        lines.pop()
    return Ended(code=code, seconds=seconds, lines=lines)
