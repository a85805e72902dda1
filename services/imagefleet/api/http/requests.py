"""A request: what is around it, what its route works with, and how it is answered.

Around every request are a correlation id, a span, two metrics, one log line, and the last net:
what the framework could not turn into an answer becomes one here. Within, a route has the tools
that `main` makes once, and answers with a shape.
"""

import re
from collections.abc import AsyncIterator, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter
from typing import Annotated, Any, Final, TypeAlias, cast
from uuid import UUID, uuid4, uuid5

import structlog
from fastapi import Depends, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from imagefleet.api.http.errors import CLIENT_LEFT, NOT_OURS, Unhurried, refused
from imagefleet.aws.objects import Objects
from imagefleet.aws.queue import Queue
from imagefleet.doorbell import Doorbell
from imagefleet.errors import NotFound, RequestRejected
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.kinds import STANDARD_RETRY, Kinds
from imagefleet.jobs.model import Lane, Submission, TenantId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.jobs.shapes.shape import AcceptedImage, AcceptedJob, Shape
from imagefleet.live import Live
from imagefleet.settings import Api
from imagefleet.settings.live import ORIGINALS
from imagefleet.store.database import Connection, Isolation, Pool
from imagefleet.store.fleet.audit import LONGEST_NAME, Acting, Actor, acting
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.jobs.rings import rings_for
from imagefleet.telemetry.metrics import ApiMetrics
from imagefleet.telemetry.tracing import Tracing, extract

CORRELATION: Final = b"x-correlation-id"
LARGEST_HEADERS: Final = 32_768  # bytes, all together
LARGEST_QUERY: Final = 8192  # bytes; 500 characters of a reason, each of twelve, and some more
MOST_PARAMETERS: Final = 64

TOKEN: Final = r"^[A-Za-z0-9._:/@+=-]{1,128}$"  # noqa: S105 - a form, not a secret
_TOKEN: Final = re.compile(TOKEN.encode())
_REFUSED: Final = 4  # hundred and something
_TOO_LARGE: Final = "The headers are larger than they may be."
_TOO_LONG: Final = f"A query may have {LARGEST_QUERY} bytes and {MOST_PARAMETERS} parameters."
_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)

_NAMESPACE: Final = UUID("2b1f6f52-6f0a-4d6c-9a3e-5f0f6f3f0d11")
_ROUTE: Final = "route"

log = structlog.get_logger()

State = MutableMapping[str, Any]  # what a request carries along, as the framework types it


@dataclass(frozen=True, slots=True)
class Observed:
    """An application that is watched from outside."""

    app: ASGIApp
    unhurried: Unhurried
    metrics: ApiMetrics
    tracing: Tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and tell what became of it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        state: State = scope.setdefault("state", {})
        given = headers.get(CORRELATION, b"")
        request_id = state["request_id"] = uuid4().hex
        state["correlation_given"] = _TOKEN.fullmatch(given) is not None
        state["correlation_id"] = given.decode() if state["correlation_given"] else request_id
        parent = extract(_text(headers, b"traceparent"), _text(headers, b"tracestate"))
        # The server makes a task of each.
        bind_contextvars(correlation_id=state["correlation_id"], request_id=request_id)
        with self.tracing.span(f"HTTP {scope['method']}", "server", parent=parent):
            begun, answer = perf_counter(), _Outgoing(scope, send, self.unhurried)
            try:
                answering = _refusal_of(scope) or self.app
                await answering(scope, receive, answer.send)
            except Exception:
                log.exception("request.broke")
                state["problem"] = "internal_error"
                if not answer.started:
                    await refused("internal_error", NOT_OURS)(scope, receive, answer.send)
            finally:
                self._tell(scope, answer, perf_counter() - begun)

    def _tell(self, scope: Scope, answer: "_Outgoing", seconds: float) -> None:
        state: State = scope["state"]
        route = getattr(scope.get("route"), "path", None)
        status = answer.status or CLIENT_LEFT
        self.metrics.answered(scope["method"], route, status, timedelta(seconds=seconds))
        log.info(
            "request.answered",
            method=scope["method"],
            route=route,
            status=status,
            problem=state.get("problem"),
            duration_seconds=round(seconds, 4),
            tenant_id=state.get("tenant_id"),
            correlation_id=state["correlation_id"],
            request_id=state["request_id"],
        )


@dataclass(slots=True)
class _Outgoing:
    """The answer on its way out; a refusal to who showed no valid key is in no hurry."""

    scope: Scope
    passed_on: Send
    unhurried: Unhurried
    started: bool = False
    status: int | None = None

    async def send(self, message: Message) -> None:
        state: State = self.scope["state"]
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            if message["status"] // 100 == _REFUSED and "tenant_id" not in state:
                await self.unhurried.answer(Request(self.scope))
            own = {name for name, _ in message.get("headers", ())}
            message["headers"] = [
                *message.get("headers", ()),
                *((name, value) for name, value in _ALWAYS if name not in own),
                (CORRELATION, state["correlation_id"].encode()),
            ]
        await self.passed_on(message)


def _text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    return headers[name].decode("latin-1") if name in headers else None


def _refusal_of(scope: Scope) -> Response | None:
    """Of what would cost much to read, whoever sends it."""
    query: bytes = scope["query_string"]
    line = len(scope.get("raw_path") or b"") + len(query)
    if line + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > LARGEST_HEADERS:
        return refused("headers_too_large", _TOO_LARGE)
    if len(query) > LARGEST_QUERY or query.count(b"&") >= MOST_PARAMETERS:
        return refused("uri_too_long", _TOO_LONG)
    return None


class _Rehearsed(Exception):
    """Nothing of it is to stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The fleet, as far as the API reaches it."""

    settings: Api
    limits: Limits = field(default_factory=Limits)
    """What one picture may cost."""
    pool: Pool
    originals: Objects
    queues: Mapping[Lane, Queue]
    dead_letters: Queue
    doorbell: Doorbell
    known_kinds: Kinds
    """With the policies of the environment."""
    recipes: Mapping[str, Recipe]
    """Those in force, by name."""
    metrics: ApiMetrics
    tracing: Tracing
    live: Live = field(default_factory=Live)
    """What operators have turned."""
    standard_retry: RetryPolicy = STANDARD_RETRY
    """The policy of kinds that have none of their own."""
    edge_monthly_paths: int = 1000
    """How many invalidation paths a month are expected."""
    operators: Pool | None = None
    """Postgres under the operator's role; None where its routes are not served."""

    def recipe_of(self, name: str) -> Recipe:
        """The recipe of this name; RequestRejected if there is none."""
        if name not in self.recipes:
            sentence = f"There is no such recipe; known are: {', '.join(self.recipes)}."
            raise RequestRejected("unknown_recipe", sentence)
        return self.recipes[name]

    @property
    def versions(self) -> Mapping[str, str]:
        """The hash of each of the recipes, by name."""
        return {name: recipe.hash for name, recipe in self.recipes.items()}

    @property
    def originals_kept_for(self) -> timedelta | None:
        """How long originals are kept; None: for as long as their images."""
        days = self.live.now.count(ORIGINALS, self.settings.originals_kept_days)
        return timedelta(days=days) or None

    @property
    def makes(self) -> Mapping[str, frozenset[ImageFormat]]:
        """Which formats each of these versions makes, by hash."""
        return {recipe.hash: recipe.makes for recipe in self.recipes.values()}

    @property
    def kinds(self) -> Kinds:
        """The job types, with the policies that are in force."""
        return self.live.now.kinds(self.known_kinds, self.standard_retry)

    def turned_for(self, tenant_id: TenantId, name: str) -> int | None:
        """What operators have turned a limit to, of this tenant or of all."""
        return self.live.now.limit(tenant_id, name)

    @asynccontextmanager
    async def operating(
        self, operation: str, table: str, *, of_one_moment: bool = False
    ) -> AsyncIterator[Connection]:
        """The same under the operator's role, to look; who changes something is `acting`.

        Postgres refuses whatever else is tried here. Several statements may see one moment alone.
        """
        isolation: Isolation | None = "repeatable_read" if of_one_moment else None
        async with (
            self._operators(operation, table) as connection,
            connection.transaction(isolation=isolation, readonly=True),
        ):
            yield connection

    @asynccontextmanager
    async def rehearsing(self, operation: str, table: str) -> AsyncIterator[Connection]:
        """The same to do something and leave no trace of it: it is always undone."""
        async with self._operators(operation, table) as connection:
            with suppress(_Rehearsed):
                async with connection.transaction():
                    yield connection
                    raise _Rehearsed

    @asynccontextmanager
    async def _operators(self, operation: str, table: str) -> AsyncIterator[Connection]:
        if self.operators is None:  # then nobody has these routes
            raise NotFound(_ROUTE)
        async with self.operators.use(operation, table) as connection:
            yield connection

    @asynccontextmanager
    async def acting(
        self, operation: str, table: str, request: Request, key: ApiKey
    ) -> AsyncIterator[Acting]:
        """The one way for operators to change something: one transaction, told to the audit."""
        async with (
            self._operators(operation, table) as connection,
            acting(connection, actor_of(request, key)) as begun,
        ):
            yield begun

    def ring(self, accepted: Iterable[tuple[Submission, object]]) -> None:
        """After the commit: announce what is new and due, without waiting for it."""
        self.doorbell.ring(rings_for(accepted))


def actor_of(request: Request, key: ApiKey) -> Actor:
    """Who asks, as the audit keeps it."""
    return Actor(name=key.name[:LONGEST_NAME], key_id=key.id, address=request.state.address)


async def tools_of(request: Request) -> Tools:
    """The dependency of every route. One that is no coroutine would be run in another thread."""
    return cast("Tools", request.app.state.tools)


ToolsHere: TypeAlias = Annotated[Tools, Depends(tools_of)]


def correlate(request: Request, tenant_id: TenantId, key: str | None, asked: str | None) -> str:
    """The correlation id of what this request submits, and of its answer.

    Where the caller named none it follows from the key: a repeat is answered with the same headers.
    """
    state = request.state
    if asked is not None:
        state.correlation_id = asked
    elif key is not None and not state.correlation_given:
        state.correlation_id = uuid5(_NAMESPACE, f"{tenant_id}/{key}").hex
    chosen: str = state.correlation_id
    bind_contextvars(correlation_id=chosen)
    return chosen


def answer(shape: Shape, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The shape as it is sent; the framework would look at every field of it once more."""
    return Response(shape.encoded(), status, headers, "application/json")


def accepted(shape: AcceptedJob | AcceptedImage) -> Response:
    """202: recorded, and it will be done."""
    return answer(shape, 202, {"Location": shape.links.self})
