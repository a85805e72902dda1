"""Who asks: an API key in `Authorization: Bearer …`, looked up by the SHA-256 of its secret.

Comparing is the index's work on a hash that nobody can choose, so there is no time to measure. A
key that was found is believed for `TRUST`, which is how long a revoked one may live on; one that
was not found is unknown for `ABSENT_FOR` more, so a new key works at once, unless it was tried
before it was made. However many unknown keys come, they are looked for together (`lookups`).

Refused requests are for those who watch for attacks: counted all, told some. A flood of guesses
must not become a flood of lines, so a process tells so many a second of each reason, and the next
line says how many of it were kept back; whoever floods with one reason hides no other. No line
holds what was presented: a key that is known is told by its id, one that is not by the beginning of
its digest, which is enough to see that it is the same one again.
"""

import hashlib
import ipaddress
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Annotated, Final, Literal, TypeAlias, cast, get_args

import structlog
from fastapi import Depends, FastAPI, Request, Security
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute, iter_route_contexts
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from imagefleet.api.http.errors import InvalidRequest
from imagefleet.api.http.limiting import Bucket, Limiting
from imagefleet.api.http.lookups import Lookups
from imagefleet.api.http.requests import Tools
from imagefleet.errors import RequestRejected, Unavailable
from imagefleet.jobs.faults import UNKNOWN, Fault, shown_name, unknown
from imagefleet.settings.values import Network
from imagefleet.store.fleet.keys import ApiKey, DeadKey, seek_keys, touch_keys

Scope = Literal["submit", "read", "operate", "originals"]

TRUST: Final = timedelta(seconds=20)  # a key that was revoked is to be dead within a minute
ABSENT_FOR: Final = timedelta(seconds=1)
MOST_REMEMBERED: Final = 10_000

# Of our making, or nothing that a database need be asked about.
_CREDENTIALS: Final = re.compile(r"[Bb]earer +(if_[A-Za-z0-9_-]{20,100}) *")
_UNAUTHORIZED: Final = "A valid API key is needed: Authorization: Bearer <key>."
_FORBIDDEN: Final = "This API key may not do that: it lacks the scope `{}`."

Answering: TypeAlias = Callable[[Request], Awaitable[Response]]
Refused = Literal["missing", "malformed", "unknown", "revoked", "expired", "forbidden"]

_TOLD: Final = dict.fromkeys(("key_id", "digest", "address", "scope"))
LINES_A_SECOND: Final = 2.0
MOST_AT_ONCE: Final = 10
DIGEST_SHOWN: Final = 12  # hex digits

log = structlog.get_logger()


class Refusals:
    """What a process tells of them."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._lines = {reason: Bucket() for reason in get_args(Refused)}
        self._untold = Counter[Refused]()

    def refused(self, reason: Refused, **told: str | None) -> None:
        """Count one; tell it and what is known of it, unless many were told just now."""
        self._tools.metrics.authentication_failed(reason)
        if self._lines[reason].wait(LINES_A_SECOND, MOST_AT_ONCE, monotonic()) > 0:
            self._untold[reason] += 1
            return
        self._lines[reason].take(1)
        untold = self._untold.pop(reason, 0)
        log.warning("key.refused", reason=reason, **{**_TOLD, **told}, untold=untold)


@dataclass(frozen=True, slots=True)
class _Known:
    key: ApiKey
    until: float


class Keys:
    """The keys that were seen lately."""

    def __init__(self, tools: Tools, *, trust: timedelta = TRUST) -> None:
        self._tools = tools
        self._trust = trust.total_seconds()
        self._refusals = Refusals(tools)
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._lookups = Lookups(self._look_up, absent_for=ABSENT_FOR)

    async def find(self, authorization: str | None, *, address: str | None = None) -> ApiKey | None:
        """The key in force that this header holds, if any; who has none is told of."""
        match = _CREDENTIALS.fullmatch(authorization or "")
        if match is None:
            self._refusals.refused("malformed" if authorization else "missing", address=address)
            return None
        digest = hashlib.sha256(match[1].encode()).digest()
        known = self._known.get(digest)
        if known is None or known.until < monotonic():
            self._known.pop(digest, None)
            key = await self._lookups.find(digest)
            if key is None:
                told = digest.hex()[:DIGEST_SHOWN]
                self._refusals.refused("unknown", digest=told, address=address)
                return None
            if isinstance(key, DeadKey):
                self._refusals.refused(key.why, key_id=str(key.id), address=address)
                return None
            known = self._known[digest] = _Known(key, monotonic() + self._trust)
            if len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        # The lookup asked the database's clock; this only shortens what is believed after it.
        expires_at = known.key.expires_at
        if expires_at is None or expires_at > datetime.now(UTC):
            return known.key
        self._refusals.refused("expired", key_id=str(known.key.id), address=address)
        return None

    def forbidden(self, key: ApiKey, scope: Scope, *, address: str | None) -> None:
        """Tell that a key in force asked for what it may not do."""
        self._refusals.refused("forbidden", key_id=str(key.id), address=address, scope=scope)

    async def _look_up(self, digests: Sequence[bytes]) -> dict[bytes, ApiKey | DeadKey]:
        async with self._tools.pool.use("find_keys", "api_keys") as connection:
            keys = await seek_keys(connection, digests)
            alive = [key.id for key in keys.values() if isinstance(key, ApiKey)]
            if alive:
                try:
                    await touch_keys(connection, alive)
                except Unavailable as error:  # worth a line, not a request
                    log.warning("key.untouched", code=error.code)
            return keys


def needs(scope: Scope | None) -> Callable[..., Awaitable[ApiKey]]:
    """A dependency: the key of the request, which must have this scope; None: any key will do."""

    async def key_of(request: Request, _documented: Annotated[object, Security(_BEARER)]) -> ApiKey:
        keys: Keys = request.app.state.keys
        tools: Tools = request.app.state.tools
        request.state.address = address = whence(request, tools.settings.trusted_proxies)
        key = await keys.find(request.headers.get("authorization"), address=address)
        if key is None:
            raise RequestRejected("unauthorized", _UNAUTHORIZED)
        request.state.tenant_id = key.tenant_id
        limiting: Limiting = request.app.state.limiting
        # Operators' bucket is for those who may operate: who may not has no second one.
        operates = scope == "operate" and scope in key.scopes
        limiting.request(key, sends=scope == "submit", operates=operates)
        if scope is not None and scope not in key.scopes:
            keys.forbidden(key, scope, address=address)
            raise RequestRejected("forbidden", _FORBIDDEN.format(scope))
        request.state.key = key
        request.state.sends = scope == "submit"
        if request.scope["query_string"]:
            refuse_unknown(request)
        return key

    return key_of


def refuse_unknown(request: Request) -> None:
    """Raise for parameters that the route does not have: one that is misspelt would do nothing."""
    wants = request.scope["route"].dependant.query_params  # codespell:ignore
    known = [name for field in wants for name in _parameters(field.alias, field.field_info)]
    made_up = dict.fromkeys(name for name in request.query_params if name not in known)
    if made_up:
        why = unknown(known)
        faults = [Fault(field=shown_name(name), problem=UNKNOWN, detail=why) for name in made_up]
        raise InvalidRequest(faults)


def _parameters(name: str, info: FieldInfo) -> list[str]:
    """The names that a parameter has in a query: one, or those of its model."""
    model = info.annotation
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return [name]
    return [field.alias or own for own, field in model.model_fields.items()]


class Plain(APIRoute):
    """A route that answers with whole responses. What it takes nothing for is not looked for.

    What it depends on is asked here; what that depends on is there to be described.
    """

    def directly(self) -> Answering | None:
        """Its endpoint without the framework; None: its path or query is the framework's affair."""
        wants = self.dependant  # codespell:ignore
        if wants.path_params or wants.query_params or wants.header_params or wants.body_params:
            return None
        asks = [
            (each.name or "", each.call, [None] * len(each.dependencies))
            for each in wants.dependencies
            if each.call is not None
        ]

        async def handle(request: Request) -> Response:
            given = {name: await ask(request, *nothing) for name, ask, nothing in asks}
            return cast("Response", await self.endpoint(request=request, **given))

        return handle


class Direct:
    """Finds plain routes by their address; all else goes through the framework's router.

    That tries each route's pattern twice, and is a dozen calls around each request.
    """

    def __init__(self, app: FastAPI) -> None:
        """Take an application that has all its routes."""
        self._router = AsyncExitStackMiddleware(app.router)
        self._plain = {
            (method, route.path): (route, answering)
            for route in (each.original_route for each in iter_route_contexts(app.routes))
            if isinstance(route, Plain) and (answering := route.directly()) is not None
            for method in route.methods or ()
        }

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        known = self._plain.get((scope.get("method", ""), scope.get("path", "")))
        if known is None:
            await self._router(scope, receive, send)
            return
        scope["route"], answering = known
        response = await answering(Request(scope, receive, send))
        await response(scope, receive, send)


def whence(request: Request, trusted: Iterable[Network]) -> str | None:
    """The address nearest to us that is not one of our proxies; None where nobody knows.

    For the audit and for lines about refused keys. The peer of the connection, since whatever a
    header says, anybody may say. Only where the peer is one of our own proxies is its header
    believed, and of that the end which our proxies wrote.
    """
    peer = None if request.client is None else request.client.host
    networks = tuple(trusted)
    if peer is None or not _is_in(peer, networks):
        return peer
    said = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
    for hop in reversed(said):
        address = _address(hop.strip())
        if address is None:  # what our proxies did not write: nothing beyond it is believed
            break
        peer = str(address)
        if not _is_in(peer, networks):
            break
    return peer


def _is_in(host: str, networks: Sequence[Network]) -> bool:
    address = _address(host) if networks else None
    return address is not None and any(address in network for network in networks)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)  # how a socket of both families shows IPv4
    return address if mapped is None else mapped


_BEARER: Final = HTTPBearer(auto_error=False, description="An API key, `if_…`.")

Submitter = Annotated[ApiKey, Depends(needs("submit"))]
Reader = Annotated[ApiKey, Depends(needs("read"))]
OriginalsReader = Annotated[ApiKey, Depends(needs("originals"))]
Operator = Annotated[ApiKey, Depends(needs("operate"))]
AnyKey = Annotated[ApiKey, Depends(needs(None))]
