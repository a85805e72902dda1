"""Who asks: an API key in `Authorization: Bearer …`, looked up by the SHA-256 of its secret.

Comparing is the index's work on a hash that nobody can choose, so there is no time to measure. A
key that was found is believed for `TRUST`, which is how long a revoked one may live on; one that
was not found is never remembered, so a new key works at once.
"""

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Annotated, Final, Literal

import structlog
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from imagefleet.api.tools import Tools
from imagefleet.errors import RequestRejected, Unavailable
from imagefleet.store.keys import ApiKey, digest_of, find_key, touch_key

Scope = Literal["submit", "read", "operate"]

TRUST: Final = timedelta(seconds=20)  # a key that was revoked is to be dead within a minute
MOST_REMEMBERED: Final = 10_000

# Of our making, or nothing that a database need be asked about.
_CREDENTIALS: Final = re.compile(r"[Bb]earer +(if_[A-Za-z0-9_-]{20,100}) *")
_UNAUTHORIZED: Final = "A valid API key is needed: Authorization: Bearer <key>."
_FORBIDDEN: Final = "This API key may not do that: it lacks the scope `{}`."

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Known:
    key: ApiKey
    until: float


class Keys:
    """The keys that were seen lately."""

    def __init__(self, tools: Tools, *, trust: timedelta = TRUST) -> None:
        self._tools = tools
        self._trust = trust.total_seconds()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    async def find(self, authorization: str | None) -> ApiKey | None:
        """The key in force that this header holds, if any."""
        match = _CREDENTIALS.fullmatch(authorization or "")
        if match is None:
            return None
        digest = digest_of(match[1])
        known = self._known.get(digest)
        if known is None or known.until < monotonic():
            self._known.pop(digest, None)
            key = await self._look_up(match[1])
            if key is None:
                return None
            known = self._remember(digest, key)
        # The lookup asked the database's clock; this only shortens what is believed after it.
        expires_at = known.key.expires_at
        return known.key if expires_at is None or expires_at > datetime.now(UTC) else None

    async def _look_up(self, secret: str) -> ApiKey | None:
        async with self._tools.database("find_key", "api_keys") as connection:
            key = await find_key(connection, secret)
            if key is not None:
                try:
                    await touch_key(connection, key.id)
                except Unavailable as error:  # worth a line, not a request
                    log.warning("key.untouched", code=error.code)
            return key

    def _remember(self, digest: bytes, key: ApiKey) -> _Known:
        known = _Known(key, monotonic() + self._trust)
        self._known[digest] = known
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return known


def needs(scope: Scope) -> Callable[..., Awaitable[ApiKey]]:
    """A dependency: the key of the request, which must have this scope."""

    async def key_of(request: Request, _documented: Annotated[object, Security(_BEARER)]) -> ApiKey:
        keys: Keys = request.app.state.keys
        key = await keys.find(request.headers.get("authorization"))
        if key is None:
            raise RequestRejected("unauthorized", _UNAUTHORIZED)
        request.state.tenant_id = key.tenant_id
        if scope not in key.scopes:
            raise RequestRejected("forbidden", _FORBIDDEN.format(scope))
        return key

    return key_of


_BEARER: Final = HTTPBearer(auto_error=False, description="An API key, `if_…`.")

Submitter = Annotated[ApiKey, Depends(needs("submit"))]
Reader = Annotated[ApiKey, Depends(needs("read"))]
Operator = Annotated[ApiKey, Depends(needs("operate"))]
