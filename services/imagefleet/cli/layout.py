"""How tables fit a terminal: what somebody selects and pastes is never cut, all else gives way.

An id, a fingerprint or an address is worth nothing when it is cut, nor when it is broken over two
lines. So a column is whole, unless its table says that it is prose, which folds between words, or
that it may be dropped; and where even those that must stay have no room, each row is a record of
its own, a line for each of its fields. What is wider than the whole terminal stays on one line: the
terminal folds it for the eye alone. In a pipe there is room for everything.
"""

import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final, NamedTuple, TypeAlias

GAP: Final = 2
LEAST: Final = 16  # columns of the terminal; prose in fewer is a tower of words
LONGEST: Final = 64  # a fingerprint; prose has no longer word of ours, and a longer one is broken

Line: TypeAlias = Sequence[tuple[str, str]]
"""What is printed, each with its style."""


class Cell(NamedTuple):
    """What stands in a table: a line, or several, which are kept as they are."""

    text: str
    style: str = ""


class Laid(NamedTuple):
    """A table as it is printed, and the columns that it has no room for."""

    lines: Iterable[Line]
    dropped: Sequence[str] = ()


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    width: int | None,
    *,
    wraps: Collection[str] = (),
    drops: Sequence[str] = (),
) -> Laid:
    """Rows below their heads, or record after record; no width is room for everything."""
    columns = {head: [Cell(head), *cells] for head, *cells in zip(heads, *rows, strict=True)}
    for many in range(len(drops) + 1):
        kept = {head: cells for head, cells in columns.items() if head not in drops[:many]}
        if (widths := _fit(kept, wraps, width)) is not None:
            return Laid(_rows(kept, widths), drops[:many])
    named = [Cell(head, "bold") for head in heads]
    label = max(map(columns_of, heads))
    records = [[pair for pair in zip(named, row, strict=True) if pair[1].text] for row in rows]
    lines = [line for record in records for line in [[], *fields(record, width, label)]]
    return Laid(lines[1:])


def fields(pairs: Iterable[tuple[Cell, Cell]], width: int | None, label: int = 0) -> Iterator[Line]:
    """A line for each, its label before it; more where it is too long for one."""
    pairs = [*pairs]
    label = GAP + max([label, *(columns_of(name.text) for name, _ in pairs)])
    for name, cell in pairs:
        room = None if width is None or "\n" in cell.text else max(LEAST, width - label)
        for place, text in enumerate(folded(cell.text, room)):
            yield [(_padded("" if place else name.text, label), name.style), (text, cell.style)]


def folded(text: str, width: int | None, *, longest: int | None = None) -> list[str]:
    """Lines that are no wider, broken between words; in a word only if it is the `longest`."""
    lines = text.split("\n")
    return lines if width is None else [*chain(*(_folded(line, width, longest) for line in lines))]


def columns_of(text: str) -> int:
    """How many columns of a terminal it takes."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(character) in "WF" else
        unicodedata.category(character) not in {"Mn", "Me"}
        for character in text
    )  # fmt: skip


def _fit(
    columns: Mapping[str, Sequence[Cell]], wraps: Collection[str], width: int | None
) -> dict[str, int] | None:
    """How wide each column is; None: there is no room for all of them."""
    widths = {head: max(columns_of(cell.text) for cell in cells) for head, cells in columns.items()}
    if width is None:
        return widths
    least = dict(widths)
    for head in least.keys() & wraps:
        word = max(columns_of(word) for cell in columns[head] for word in cell.text.split(" "))
        least[head] = min(widths[head], max(LEAST, min(LONGEST, word)))
    spare = width - sum(least.values()) - GAP * (len(columns) - 1)
    if spare < 0:
        return None
    for head in columns:
        more = min(spare, widths[head] - least[head])
        least[head], spare = least[head] + more, spare - more
    return least


def _rows(columns: Mapping[str, Sequence[Cell]], widths: Mapping[str, int]) -> Iterator[Line]:
    for place, cells in enumerate(zip(*columns.values(), strict=True)):
        folds = [
            folded(cell.text, wide, longest=wide)
            for cell, wide in zip(cells, widths.values(), strict=True)
        ]
        for texts in zip_longest(*folds, fillvalue=""):
            yield [
                (_padded(text, wide + GAP), cell.style if place else "bold")
                for text, cell, wide in zip(texts, cells, widths.values(), strict=True)
            ]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - columns_of(text))


def _folded(text: str, width: int, longest: int | None) -> Iterator[str]:
    if columns_of(text) <= width:
        yield text
        return
    line: str | None = None
    for word in text.split(" "):
        joined = word if line is None else f"{line} {word}"
        if columns_of(joined) <= width:
            line = joined
            continue
        if line and not line.isspace():
            yield line
        *broken, line = _broken(word, longest)
        yield from broken
    yield line or ""


def _broken(word: str, longest: int | None) -> Iterator[str]:
    piece, taken = "", 0
    for character in word:
        wide = columns_of(character)
        if longest is not None and taken + wide > longest:
            yield piece
            piece, taken = "", 0
        piece, taken = piece + character, taken + wide
    yield piece
