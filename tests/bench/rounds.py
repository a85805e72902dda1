"""Rounds: in each of them every side of a row is measured once, one after the other.

What a machine does beside changes from minute to minute, so a figure of one run says little, and
less beside a figure of another. Here sides take turns, each round begins with another one, and a
ratio is made within its round. Told is the median of all rounds and an interval that holds it.
"""

import math
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tests.bench.ground import Ground

SURE: Final = 0.95
FEWEST: Final = 5  # rounds, below which nothing should be said in public

Measured: TypeAlias = Mapping[str, float]
"""What one side came to in one round, by name."""
Measure: TypeAlias = Callable[[], Awaitable[Measured]]
Sides: TypeAlias = Mapping[str, Measure]
Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks of every row."""

    rounds: int = FEWEST
    jobs: int | None = None
    """A side and round, of rows that count jobs; None is each row's own number."""
    quick: bool = False
    long: bool = False
    """What takes ten minutes and more."""
    peers: bool = True
    """Whether others may be installed, and are measured beside ours."""

    def jobs_of(self, row: "Row") -> int:
        if self.jobs is not None:
            return self.jobs
        return row.jobs // 10 if self.quick else row.jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A line of the table: something of ours, perhaps beside the same of another side."""

    title: str
    unit: str
    ours: str
    other: str | None = None
    compare: Literal["ratio", "difference"] = "ratio"
    """How ours is held against the other: by division, or by what it takes more."""
    at_least: float | None = None
    at_most: float | None = None

    def compared(self, measured: Measured) -> float:
        """What the goal is about: ours alone where there is nobody else."""
        if self.other is None:
            return measured[self.ours]
        if self.compare == "difference":
            return measured[self.ours] - measured[self.other]
        return measured[self.ours] / measured[self.other]

    def met(self, value: float) -> bool | None:
        """Whether the goal is; None where none was set."""
        if self.at_least is not None:
            return value >= self.at_least
        return None if self.at_most is None else value <= self.at_most

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is measured together, by the name that `--only` knows."""

    name: str
    about: str
    figures: Sequence[Figure]
    open: Callable[[Ground, Asked], AbstractAsyncContextManager[Sides]]
    """Make what the sides stand on; in it each of them can be measured, again and again."""
    jobs: int = 0
    """A side and round, unless the command line says otherwise; 0 where none are counted."""
    by_name: bool = False
    """It takes long and is compared with nobody's: only where `--only` names it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All that was measured of one thing, and what is told of it."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """The narrowest two of the values that hold the true median, as 95 times of 100.

        By the binomial distribution, whatever the values' own one is. Fewer than six values cannot
        be so sure: of them it is the least and the greatest, with five 94 times of 100.
        """
        ordered, cut = sorted(self.values), 0
        while 2 * (cut + 1) < len(ordered) and 1 - 2 * _tail(cut + 1, len(ordered)) >= SURE:
            cut += 1
        return ordered[cut], ordered[-1 - cut]


def _tail(most: int, tosses: int) -> float:
    """How likely at most so many heads are."""
    return sum(math.comb(tosses, heads) for heads in range(most + 1)) * 0.5**tosses


async def measure(row: Row, ground: Ground, asked: Asked, tell: Tell) -> list[Measured]:
    """Every round of a row: what all its sides came to."""
    tell("getting ready")
    rounds: list[Measured] = []
    async with row.open(ground, asked) as sides:
        for number in range(asked.rounds):
            measured: dict[str, float] = {}
            for name in rotated(tuple(sides), number):
                tell(f"round {number + 1} of {asked.rounds}: {name}")
                measured |= await sides[name]()
            rounds.append(measured)
    return rounds


def rotated(names: Sequence[str], number: int) -> Sequence[str]:
    """The same names, beginning with another one each time."""
    start = number % len(names)
    return [*names[start:], *names[:start]]
