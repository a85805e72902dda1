"""A terminal as an SVG: text that can be selected and read out, which lights up as it came then.

It is one file without scripts or fonts of others. A reader who wants no motion, and a program that
knows none, see everything at once. It has a ground of its own, and is read on light and dark pages.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from tests.recording.terminal import PLAIN, Line, Style

WIDE: Final = 8.4  # of a character, in a font of that size
SIZE: Final = 14
HIGH: Final = 19  # of a line
MARGIN: Final = 18
BAR: Final = 30  # above the first line
LONGEST_WAIT: Final = 2.5  # seconds that nothing happens; what is longer is cut, and told
CUT: Final = "… "
"""How a line begins that tells of time which is not shown."""
FIRST: Final = 0.6  # seconds before the first line

LOOK: Final = f"""
text {{ font: {SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: #d8dee9; white-space: pre; }}
.typed {{ fill: #ffffff; font-weight: 600; }} .prompt {{ fill: #8fbf7f; }}
.cut {{ fill: #9aa5b8; font-style: italic; }} .title {{ fill: #9aa5b8; font-size: 12px; }}
.bold {{ font-weight: 600; fill: #ffffff; }} .dim {{ fill: #9aa5b8; }}
.italic {{ font-style: italic; }} .underlined {{ text-decoration: underline; }}
.red {{ fill: #ff8080; }} .green {{ fill: #8fd17f; }} .yellow {{ fill: #f0c674; }}
.blue {{ fill: #8ab4f8; }} .magenta {{ fill: #d7a0e8; }} .cyan {{ fill: #7fd1d1; }}
.white {{ fill: #ffffff; }} .black {{ fill: #7b8496; }}
@media (prefers-reduced-motion: no-preference) {{
  g {{ animation: appear 1ms linear both; }}
  @keyframes appear {{ from {{ opacity: 0.25; }} to {{ opacity: 1; }} }}
}}
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """A line of the picture, and how long after the beginning of it that appears."""

    line: Line
    at: float


def typed(command: str, remark: str = "") -> Line:
    """The line of somebody who types it."""
    styles = (("$ ", "prompt"), (command, "typed"), (f"  # {remark}" if remark else "", "cut"))
    cells: list[tuple[str, Style]] = []
    for text, style in styles:
        cells += [(character, (style,)) for character in text]
    return Line(cells)


def paced(lines: Iterable[Line]) -> Iterator[Shown]:
    """As they came, without the time in which nothing did: in its place is told how long it was."""
    clock, before = FIRST, 0.0
    for line in lines:
        waited = line.at - before
        if waited > LONGEST_WAIT:
            told: list[tuple[str, Style]] = [(each, ("cut",)) for each in f"{CUT}{waited:.0f} s"]
            yield Shown(Line(told, line.at), clock + 0.5)
            waited = LONGEST_WAIT
        clock, before = clock + max(waited, 0), max(before, line.at)
        yield Shown(line, clock)


def svg(shown: Sequence[Shown], *, columns: int, title: str, about: str) -> str:
    """The picture; `about` is what somebody is told who cannot see it."""
    width = round(columns * WIDE + 2 * MARGIN)
    height = round(BAR + len(shown) * HIGH + MARGIN)
    rows = "\n".join(_row(place, each) for place, each in enumerate(shown))
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>{escape(title)}</title>
<desc>{escape(about)}</desc>
<style>{LOOK}</style>
<rect width="{width}" height="{height}" rx="8" fill="#1f2430"/>
<text class="title" x="{MARGIN}" y="20">{escape(title)}</text>
{rows}
</svg>
"""


def _row(place: int, shown: Shown) -> str:
    y = BAR + place * HIGH + SIZE
    runs = "".join(_run(*run) for run in shown.line.runs())
    text = f'<text y="{y}" xml:space="preserve">{runs}</text>'
    return f'<g style="animation-delay:{shown.at:.2f}s">{text}</g>'


def _run(column: int, text: str, style: tuple[str, ...]) -> str:
    """Each begins in its column, whatever font there is."""
    x = f"{MARGIN + column * WIDE:.1f}"
    wide = f'textLength="{len(text) * WIDE:.1f}" lengthAdjust="spacingAndGlyphs"'
    words = "" if style == PLAIN else f' class="{" ".join(style)}"'
    return f'<tspan x="{x}" {wide}{words}>{escape(text)}</tspan>'
