"""What may become a label: a series is kept for ever, so nobody may invent values without end."""

import asyncio
import re
from collections.abc import Collection
from typing import Final

from imagefleet.errors import ClaimLost, FleetError, RequestRejected

OTHER: Final = "other"
UNMATCHED: Final = "unmatched"

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:/{}-]{1,100}")
_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_MIME_TYPES: Final = ("avif", "gif", "jpeg", "png", "webp")


class Vocabulary:
    """The values of one label: the known ones, and the first few plain ones that come beyond."""

    def __init__(self, known: Collection[str] = (), *, room: int = 0, other: str = OTHER) -> None:
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
    return Vocabulary(_METHODS)


def routes() -> Vocabulary:
    """Templates of routes, such as `/v1/jobs/{job_id}`; there are far fewer than this."""
    return Vocabulary(room=200, other=UNMATCHED)


def codes() -> Vocabulary:
    """Codes of errors, names of statements and operations: ours are fixed, a handler's are not."""
    return Vocabulary(room=100)


def names() -> Vocabulary:
    """Names from the settings: buckets, services."""
    return Vocabulary(room=20)


def mime_type(value: str | None) -> str:
    """The type without its parameters, if we take images of it."""
    kind, _, subtype = (value or "")[:100].partition(";")[0].strip().lower().partition("/")
    return f"image/{subtype}" if kind == "image" and subtype in _MIME_TYPES else OTHER


def status_code(value: int) -> str:
    return str(value) if 100 <= value <= 599 else OTHER  # noqa: PLR2004 - what HTTP has


def error_code(error: BaseException | None) -> str | None:
    """What an error is counted as; None for none, and for refusals, which are answers."""
    match error:
        case None | RequestRejected() | ClaimLost():
            return None
        case FleetError():
            return error.code
        case asyncio.CancelledError():
            return "cancelled"
        case _:
            return "bug"
