"""Requests whose key is refused, as those who watch for attacks see them: counted all, told some.

A flood of guesses must not become a flood of lines: a process tells so many a second of each
reason, and the next line says how many of it were kept back. So whoever floods with one reason
hides no other. No line holds what was presented: a key that is known is told
by its id, one that is not by the beginning of its digest, which is enough to see that it is the
same one again.
"""

from dataclasses import dataclass
from time import monotonic
from typing import Final, Literal, get_args
from uuid import UUID

import structlog

from imagefleet.api.http.tools import Tools

Reason = Literal["missing", "malformed", "unknown", "revoked", "expired", "forbidden"]

LINES_A_SECOND: Final = 2.0
MOST_AT_ONCE: Final = 10
DIGEST_SHOWN: Final = 12  # hex digits

log = structlog.get_logger()


@dataclass(slots=True)
class _Lines:
    """What may still be told of one reason."""

    at: float
    left: float = float(MOST_AT_ONCE)
    untold: int = 0

    def take(self) -> int | None:
        """How many were not told before this one, which is; None: it is not either."""
        now = monotonic()
        self.left = min(MOST_AT_ONCE, self.left + (now - self.at) * LINES_A_SECOND)
        self.at = now
        if self.left < 1:
            self.untold += 1
            return None
        self.left -= 1
        untold, self.untold = self.untold, 0
        return untold


class Refusals:
    """What a process tells of them."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._lines = {reason: _Lines(monotonic()) for reason in get_args(Reason)}

    def refused(
        self,
        reason: Reason,
        *,
        key_id: UUID | None = None,
        digest: bytes | None = None,
        address: str | None = None,
        scope: str | None = None,
    ) -> None:
        """Count one; tell it, unless many were told just now."""
        self._tools.metrics.authentication_failed(reason)
        untold = self._lines[reason].take()
        if untold is None:
            return
        log.warning(
            "key.refused",
            reason=reason,
            key_id=None if key_id is None else str(key_id),
            digest=None if key_id is not None or digest is None else digest.hex()[:DIGEST_SHOWN],
            address=address,
            scope=scope,
            untold=untold,
        )
