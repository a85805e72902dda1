"""How tables fit a terminal: what somebody selects and pastes is never cut, all else gives way.

An id, a fingerprint or an address is worth nothing when it is cut, or broken over two lines. So a
column is whole, unless its table says that it is prose, which folds between words, or that it may
be dropped; where even those that must stay have no room, each row is a record, a line for each of
its fields. What is wider than the terminal stays one line, which the terminal folds for the eye
alone. In a pipe there is room for everything.
"""

import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
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
    """A table, and the columns that there is no room for."""

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
    empty = [head for head, (_, *cells) in columns.items() if not any(cell.text for cell in cells)]
    for gone in ([], *([*empty, *drops[:many]] for many in range(len(drops) + 1))):
        kept = {head: cells for head, cells in columns.items() if head not in gone}
        if kept and (widths := _fit(kept, wraps, width)) is not None:
            return Laid(_rows(kept, widths), [head for head in gone if head not in empty])
    named, label = [Cell(head, "bold") for head in heads], max(map(columns_of, heads))
    records = [[pair for pair in zip(named, row, strict=True) if pair[1].text] for row in rows]
    return Laid([line for each in records for line in [[], *fields(each, width, label)]][1:])


def fields(pairs: Iterable[tuple[Cell, Cell]], width: int | None, label: int = 0) -> Iterator[Line]:
    """A line for each, its label before it, or above it where that leaves too little room."""
    pairs = [*pairs]
    label = GAP + max(label, *(columns_of(name.text) for name, _ in pairs), 0)
    for name, (text, style) in pairs:
        between = "\n" if "\n" in text else " "  # a document is not folded
        above = width is not None and max(map(columns_of, text.split(between))) > width - label
        room = None if between == "\n" or width is None else width - (0 if above else label)
        if above:
            yield [name]
        for place, line in enumerate(folded(text, room)):
            before = "" if above else _padded("" if place else name.text, label)
            yield [(before, name.style), (line, style)]


def folded(text: str, width: int | None, *, longest: int | None = None) -> Iterable[str]:
    """Lines that are no wider, broken between words; in a word only if it is the `longest`."""
    if width is None or columns_of(text) <= width:
        return text.split("\n")
    return _folded(text, width, longest)


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
    for head in columns:
        more = max(0, min(spare, widths[head] - least[head]))
        least[head], spare = least[head] + more, spare - more
    return None if spare < 0 else least


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
