"""What is told of a run: a table for a terminal, the same as Markdown, and everything as JSON."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from rich import box
from rich.table import Table

from tests.bench.rounds import Figure, Measured, Row, Summary
from tests.support.wheels import ROOT

HEADINGS: Final = ("what", "ours", "beside it", "of whom", "ours : other", "goal", "met")
MET: Final = {True: "yes", False: "no", None: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure over all rounds, fit to be written down."""

    row: str
    title: str
    unit: str
    compare: str
    goal: str
    met: bool | None
    other_name: str | None
    ours: Summary
    other: Summary | None
    compared: Summary

    @classmethod
    def of(cls, row: Row, figure: Figure, rounds: Sequence[Measured]) -> "Line":
        """The line of this figure."""
        other = figure.other
        compared = Summary(tuple(figure.compared(measured) for measured in rounds))
        return cls(
            row=row.name,
            title=figure.title,
            unit=figure.unit,
            compare=figure.compare if other else "alone",
            goal=figure.goal,
            met=figure.met(compared.median),
            other_name=other,
            ours=Summary(tuple(measured[figure.ours] for measured in rounds)),
            other=None if other is None else Summary(tuple(m[other] for m in rounds)),
            compared=compared,
        )

    def document(self) -> dict[str, Any]:
        """Everything of it, each value of each round too."""
        return {
            **{name: getattr(self, name) for name in ("row", "title", "unit", "compare", "goal")},
            "met": self.met,
            "other_name": self.other_name,
            "ours": _told(self.ours),
            "other": None if self.other is None else _told(self.other),
            "compared": _told(self.compared),
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Line":
        """What `document` wrote."""
        summaries = {
            name: None if document[name] is None else Summary(tuple(document[name]["values"]))
            for name in ("ours", "other", "compared")
        }
        return cls(**{**document, **summaries})

    @property
    def told(self) -> str:
        """What a goal is held against."""
        if self.compare == "difference":
            return f"{shown(self.compared, sign=True)} {self.unit}"
        return (
            shown(self.compared) if self.compare == "ratio" else f"{shown(self.ours)} {self.unit}"
        )

    def again(self, others: Sequence["Line"]) -> str:
        """The same of another run, and whether something changed between them."""
        for other in others:
            if (other.title, other.other_name) == (self.title, self.other_name):
                (low, high), (least, most) = self.compared.interval, other.compared.interval
                return other.told + ("" if low <= most and least <= high else ", changed")
        return ""

    def cells(self) -> list[str]:
        """As the headings say."""
        return [
            self.title,
            f"{shown(self.ours)} {self.unit}",
            "" if self.other is None else f"{shown(self.other)} {self.unit}",
            self.other_name or "",
            "" if self.compare == "alone" else self.told,
            self.goal,
            MET[self.met],
        ]


def lines_of(row: Row, rounds: Sequence[Measured]) -> list[Line]:
    """The figures of a row; where nobody else was measured, ours alone and once."""
    measured = rounds[0].keys()
    figures = [figure for figure in row.figures if figure.ours in measured]
    beside = [figure for figure in figures if figure.other is None or figure.other in measured]
    told = {figure.title for figure in beside}
    alone = {
        figure.title: replace(figure, other=None, at_least=None, at_most=None)
        for figure in figures
        if figure.title not in told
    }
    return [Line.of(row, figure, rounds) for figure in (*beside, *alone.values())]


def shown(summary: Summary, *, sign: bool = False) -> str:
    """The median, and the interval behind it where it is one."""
    low, median, high = (
        number(value, sign=sign)
        for value in (summary.interval[0], summary.median, summary.interval[1])
    )
    return median if low == high else f"{median} ({low} to {high})"


def number(value: float, *, sign: bool = False) -> str:
    """Three figures, and no more."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:{'+' if sign else ''},.{digits}f}"


def table(lines: Sequence[Line]) -> Table:
    """For a terminal, or for a page of Markdown."""
    made = Table(*HEADINGS, box=box.SIMPLE_HEAD, title_justify="left")
    for line in lines:
        style = {True: "green", False: "red", None: None}[line.met]
        made.add_row(*line.cells(), style=style)
    return made


def markdown(document: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> str:
    """A table to be put on a page, above it what it was measured on; beside it what another run."""
    lines = [Line.read(line) for line in document["lines"]]
    rows = [[*HEADINGS], ["---"] * len(HEADINGS), *(line.cells() for line in lines)]
    if beside is not None:
        others = [Line.read(line) for line in beside["lines"]]
        column = ["another run", "---", *(line.again(others) for line in lines)]
        rows = [[*row, cell] for row, cell in zip(rows, column, strict=True)]
    on = document["on"]
    told = (
        f"Measured {on['at']} at {on['revision']}: {on['rounds']} rounds on {on['cores']} cores, "
        f"Python {on['python']}, Postgres {on['postgres']}."
    )
    cells = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n\n".join([told, "\n".join(cells), *on["notes"]])


def document(lines: Sequence[Line], **on: object) -> dict[str, Any]:
    """Everything: where it was measured, what was asked, each value of each round."""
    return {
        "on": {
            "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "revision": _revision(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            **on,
        },
        "lines": [line.document() for line in lines],
    }


def _told(summary: Summary) -> dict[str, Any]:
    low, high = summary.interval
    return {
        "median": summary.median,
        "low": low,
        "high": high,
        "values": list(summary.values),
    }


def _revision() -> str:
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
