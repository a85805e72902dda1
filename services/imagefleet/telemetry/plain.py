"""Text of strangers: on a terminal it steers nothing, as a label's value there is an end of it.

By itself, so that the command line has it without the libraries of log lines and of series.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Final

import orjson

_CACHED: Final = 0x3000  # characters, what is written most; of the rest there are a million

OTHER: Final = "other"
UNMATCHED: Final = "unmatched"

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:/{}-]{1,100}")
METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


class Visible(dict[int, str]):
    """For `str.translate`: what no terminal may act upon, written down instead.

    Controls of C0 and C1, what turns the direction of reading, what breaks lines, spaces and
    joiners without width, halves of surrogates, and what no font knows. What combines with the
    character before it passes, as accents do and what makes an emoji of it.
    """

    def __init__(self, written: Callable[[str], str], *, kept: str = "") -> None:
        super().__init__({ord(character): character for character in kept})
        self._written = written

    def __missing__(self, code: int) -> str:
        character = chr(code)
        harmless = character.isprintable() or unicodedata.category(character) == "Zs"
        shown = character if harmless else self._written(character)
        if code < _CACHED:
            self[code] = shown
        return shown


def escaped(character: str) -> str:
    """As Python would write it."""
    return character.encode("unicode_escape").decode()


_IN_TEXT: Final = Visible(escaped)


def plain(text: str) -> str:
    """A stranger's text on one line, with escapes for what would steer a terminal."""
    return text if text.isprintable() else text.translate(_IN_TEXT)


def _in_json(character: str) -> str:
    units = character.encode("utf-16-be")
    pairs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
    return "".join(f"\\u{pair}" for pair in pairs)


_IN_JSON: Final = Visible(_in_json, kept="\n")  # a break in a string is escaped by then


def json(document: object, *, on_a_line: bool = False) -> str:
    """A document that means what it did, with escapes for what would steer a terminal."""
    option = 0 if on_a_line else orjson.OPT_INDENT_2
    try:
        written = orjson.dumps(document, str, option)
    except orjson.JSONEncodeError:  # the name of a file need not be Unicode
        written = orjson.dumps(_encodable(document), str, option)
    return written.decode().translate(_IN_JSON)


def _encodable(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_encodable(name): _encodable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_encodable(inner) for inner in value]
        case _:
            return value


class Vocabulary:
    """The values of one label: the known ones, and the first few plain ones that come beyond.

    A series is kept for ever, so nobody may invent values without end.
    """

    def __init__(self, known: Iterable[str] = (), *, room: int = 0, other: str = OTHER) -> None:
        self._words = set(known)
        self._most = len(self._words) + room
        self._other = other

    def __call__(self, value: str | None) -> str:
        """Return the value, or the word that stands for all others."""
        if value is None:
            return self._other
        if value in self._words:
            return value
        if len(self._words) < self._most and _PLAIN.fullmatch(value):
            self._words.add(value)
            return value
        return self._other


def methods() -> Vocabulary:
    """HTTP methods: the standard ones."""
    return Vocabulary(METHODS)


def routes() -> Vocabulary:
    """Templates of routes, such as `/v1/jobs/{job_id}`; there are far fewer than this."""
    return Vocabulary(room=200, other=UNMATCHED)


def codes() -> Vocabulary:
    """Codes of errors, names of statements and operations: ours are fixed, a handler's are not."""
    return Vocabulary(room=100)


def names() -> Vocabulary:
    """Names from the settings: buckets, services."""
    return Vocabulary(room=20)
