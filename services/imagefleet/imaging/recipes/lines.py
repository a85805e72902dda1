"""On which line of a TOML or JSON text each value stands: neither of Python's readers tells."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

Where: TypeAlias = tuple[str | int, ...]
Lines: TypeAlias = Mapping[Where, int]

# A whole string, a bracket, a comma or colon, or a number or word; JSON's strings have no breaks.
_PIECE: Final = re.compile(r'\n|"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
# TOML's keys may have any number of parts, each a table in the one before.
_DEEP_KEY: Final = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')\s*\.\s*){50}""")
_TOML_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class Unreadable(ValueError):
    """The text is not what it should be; `line` says from where on."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def parse(text: str, *, as_json: bool) -> tuple[Any, Callable[[], Lines]]:
    """What the text says, and how to find out where; Unreadable if it is neither whole nor valid.

    Of a key that is there twice neither value can be the one that is meant.
    """
    if not as_json and (deep := _DEEP_KEY.search(text)):
        raise Unreadable(text.count("\n", 0, deep.start()) + 1, "a key has over 50 parts")
    try:
        if not as_json:
            return tomllib.loads(text), lambda: _lines_of_toml(text)
        document, lines = json.loads(text), _lines_of_json(text)
    except RecursionError:
        raise Unreadable(1, "it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Unreadable(error.lineno, f"no JSON: {error.msg}") from None
    except tomllib.TOMLDecodeError as error:
        place = _TOML_PLACE.search(str(error))
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        raise Unreadable(line, f"no TOML: {_TOML_PLACE.sub('', str(error))}") from None
    except Unreadable:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise Unreadable(1, str(error)) from None
    return document, lambda: lines


def _lines_of_json(text: str) -> Lines:
    """Of a text that is valid JSON."""
    lines: dict[Where, int] = {}
    pieces = _pieces(text)

    def walk(path: Where, line: int, piece: str) -> None:
        if path in lines:
            raise Unreadable(line, f"{path[-1]!r} is there twice")
        lines[path] = line
        place = 0
        while piece in {"{", "["} and (item := next(pieces))[1] not in {"}", "]"}:
            if item[1] == ",":
                continue
            if piece == "{":
                next(pieces)  # the colon
                walk((*path, json.loads(item[1])), *next(pieces))
            else:
                walk((*path, place), *item)
                place += 1

    walk((), *next(pieces))
    return lines


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    line = 1
    for piece in _PIECE.findall(text):
        if piece == "\n":
            line += 1
        else:
            yield line, piece


def _lines_of_toml(text: str) -> Lines:
    """Of a text that is valid TOML: it is read statement by statement, each from where it begins.

    A statement ends with the first line that makes it whole. Of an array that goes on, what it has
    so far is read as well, for the lines of its items.
    """
    lines: dict[Where, int] = {(): 1}
    tables: dict[Where, int] = {}  # how many an array of tables has by now
    here: Where = ()
    statement, begun = "", 1
    for number, row in enumerate(text.split("\n"), 1):
        statement += row + "\n"
        for end in ("", "]"):
            try:
                said = tomllib.loads(statement + end)
            except tomllib.TOMLDecodeError:
                continue
            if statement.lstrip().startswith("["):
                here = _entered(said, tables)
                for depth in range(len(here) + 1):
                    lines.setdefault(here[:depth], number)
            else:
                _found(said, here, begun, lines)
            begun = number + 1
            statement = statement if end else ""
            break
    return lines


def _entered(header: Any, tables: dict[Where, int]) -> Where:  # noqa: ANN401 - TOML
    """Where a header leads, with the places of all arrays of tables on the way."""
    path: Where = ()
    while header:
        ((name, header),) = header.items()
        path = (*path, name)
        if isinstance(header, list):
            tables[path] = tables.get(path, 0) + 1
            header = header[0]
        if path in tables:
            path = (*path, tables[path] - 1)
    return path


def _found(value: object, path: Where, line: int, lines: dict[Where, int]) -> None:
    lines.setdefault(path, line)
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _found(inner, (*path, key), line, lines)
