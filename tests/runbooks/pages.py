"""The runbooks as they are written: parts, and the blocks of commands in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.wheels import ROOT

RUNBOOKS: Final = ROOT / "docs" / "runbooks"
ALERTS: Final = RUNBOOKS / "alerts"
PARTS: Final = ("For users", "See it", "Do", "It worked when")
SEE, DO, WORKED = PARTS[1:]
PART: Final = re.compile(r"^\*\*([^*]+):\*\* ")
CONSOLE: Final = re.compile(
    r"^\*\*See it:\*\* console (?:none: |([A-Z][\w ]+) `(/\w*)`)", re.MULTILINE
)
FENCE: Final = re.compile(r"^```(\w*)$")
INDENT: Final = "    "
LONGEST_NAME: Final = 74


@dataclass(frozen=True, slots=True)
class Block:
    """Commands that stand together."""

    page: str
    part: str
    """Of an alert's page one of PARTS; of a deeper one the heading that it stands below."""
    language: str
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        """The page, and how the first line begins."""
        return f"{self.page}: {self.lines[0]}"[:LONGEST_NAME].rstrip()


@dataclass(frozen=True, slots=True)
class Page:
    """One file."""

    path: Path

    @property
    def name(self) -> str:
        """`BreakerOpen` of an alert, `edge.md` of a deeper page."""
        return self.path.stem if self.path.parent == ALERTS else self.path.name

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def blocks(self) -> list[Block]:
        return list(_blocks(self))

    @property
    def console(self) -> tuple[str, str] | None:
        """The page of the console, by its name and path; None where none works."""
        seen = CONSOLE.search(self.text)
        assert seen, f"{self.name} names no page of the console"
        return (seen[1], seen[2]) if seen[1] else None

    def block(self, part: str) -> Block:
        """The one of a part."""
        (block,) = [block for block in self.blocks if block.part == part]
        return block


@cache
def alerts() -> tuple[Page, ...]:
    return tuple(Page(path) for path in sorted(ALERTS.iterdir()))


@cache
def deeper() -> tuple[Page, ...]:
    return tuple(Page(path) for path in sorted(RUNBOOKS.glob("*.md")))


def _blocks(page: Page) -> Iterator[Block]:
    part, language, lines = "", "", list[str]()
    for line in [*page.text.splitlines(), ""]:
        fence = FENCE.match(line)
        if fence and not language:
            language = fence[1] or "sh"
        elif fence:
            yield Block(page.name, part, language, tuple(lines))
            language, lines = "", []
        elif language:
            lines.append(line)
        elif line.startswith(INDENT):
            lines.append(line.removeprefix(INDENT))
        else:
            if lines:
                yield Block(page.name, part, "sh", tuple(lines))
                lines = []
            if begun := PART.match(line):
                part = begun[1]
            elif line.startswith("#"):
                part = line.lstrip("# ")
