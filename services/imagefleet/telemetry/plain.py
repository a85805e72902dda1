"""Text of strangers, for a terminal: what would steer that is written down.

By itself, so that the command line has it without the library of log lines.
"""

import unicodedata
from collections.abc import Callable
from typing import Final

_CACHED: Final = 0x3000  # characters, what is written most; of the rest there are a million


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
        found = character if harmless else self._written(character)
        if code < _CACHED:
            self[code] = found
        return found


def escaped(character: str) -> str:
    """As Python would write it."""
    return character.encode("unicode_escape").decode()


_IN_TEXT: Final = Visible(escaped)


def plain(text: str) -> str:
    """A stranger's text on one line, with escapes for what would steer a terminal."""
    return text if text.isprintable() else text.translate(_IN_TEXT)
